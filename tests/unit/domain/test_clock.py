"""Clocks that agree, and those that don't: which one is named, and by how much it differs."""

from datetime import UTC, datetime, timedelta

import pytest

from tagmill.domain import clock
from tagmill.errors import ClockDiffers

HERE = datetime(2026, 5, 1, tzinfo=UTC)
DAYS = timedelta(days=2)


def reading(where: str, ahead: timedelta) -> clock.Reading:
    return clock.Reading(where, HERE - ahead, 0.0, ahead)


def test_read_local_clock_ahead_measures_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure by how much the local clock is ahead of the server's."""
    monkeypatch.setattr(clock, "local", lambda: HERE + DAYS)
    assert clock.read("A", lambda: HERE).ahead == pytest.approx(DAYS, abs=timedelta(seconds=1))


def test_read_within_the_round_trip_is_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that answer slowly may have read their clock at any moment of the round trip."""
    monkeypatch.setattr(clock, "local", lambda: HERE)
    moments = iter((10.0, 100.0))
    monkeypatch.setattr(clock.time, "monotonic", lambda: next(moments))
    assert clock.read("A", lambda: HERE + timedelta(seconds=80)).ahead == timedelta(0)


@pytest.mark.parametrize(
    ("readings", "said"),
    [
        pytest.param(
            [("A", DAYS), ("B", DAYS)], r"this machine \(.+\) is 172800 s ahead of A's", id="ours-ahead"
        ),
        pytest.param([("A", -DAYS)], r"this machine \(.+\) is 172800 s behind A's", id="ours-behind"),
        pytest.param(
            [("A", timedelta(0)), ("B", DAYS)], "clock of B is 172800 s behind A's", id="server-behind"
        ),
        pytest.param(
            [("A", -DAYS), ("B", timedelta(0))], "clock of A is 172800 s ahead of B's", id="server-ahead"
        ),
    ],
)
def test_require_agreement_names_the_clock_that_differs(
    readings: list[tuple[str, timedelta]], said: str
) -> None:
    with pytest.raises(ClockDiffers, match=said):
        clock.require_agreement([reading(*each) for each in readings], 60)


def test_require_agreement_within_the_limit_is_silent() -> None:
    clock.require_agreement([reading("A", timedelta(seconds=59)), reading("B", timedelta(seconds=1))], 60)
