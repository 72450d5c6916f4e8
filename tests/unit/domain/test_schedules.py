"""Schedules: Airflow's presets and cron expressions, and what is neither."""

import pytest

from tagmill.domain.schedules import cron_of, require_schedule


@pytest.mark.parametrize(
    "schedule",
    [
        "@quarterly",
        "@hourly",
        "@midnight",
        "@once",
        "@continuous",
        "*/10 * * * *",
        "0 0 L * *",
        "0 0 1 * * 30",
    ],
)
def test_schedule_of_airflow_is_accepted(schedule: str) -> None:
    assert require_schedule(schedule) == schedule


@pytest.mark.parametrize(
    "schedule", ["", " ", "61 * * * *", "* * *", "@foo", "H * * * *", "0 0 31 2 *", "0 0 1 1 * 0 2020"]
)
def test_schedule_without_moment_is_refused(schedule: str) -> None:
    with pytest.raises(ValueError, match=" is neither a cron expression | never comes"):
        require_schedule(schedule)


@pytest.mark.parametrize(
    ("schedule", "cron"), [("@quarterly", "0 0 1 */3 *"), ("@daily", "0 0 * * *"), ("5 * * * *", "5 * * * *")]
)
def test_preset_is_short_for_cron(schedule: str, cron: str) -> None:
    assert cron_of(schedule) == cron
