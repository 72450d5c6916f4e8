"""When an hour of a view is counted again, and what its count says."""

from datetime import UTC, datetime, timedelta

import pytest

from tagmill.delivery.tag_views.look_back import is_due, part_of, read_hours
from tagmill.delivery.tag_views.model import Slice
from tagmill.domain.time_buckets import BucketSize
from tagmill.ledger.hour_counts import HourCount

BEGIN = datetime(2026, 5, 1, 10, tzinfo=UTC)
BEGIN_MS = 1_777_629_600_000
HOUR = timedelta(hours=1)
WINDOWS = [3600, 6 * 3600, 86_400]


def counted(at: timedelta, run: int = 1) -> HourCount:
    return HourCount(BEGIN_MS, 5, run, BEGIN + at)


@pytest.mark.parametrize(
    ("known", "age", "due"),
    [
        pytest.param(None, HOUR / 2, False, id="never counted, too young"),
        pytest.param(None, 2 * HOUR, True, id="never counted"),
        pytest.param(None, 25 * HOUR, False, id="never counted, older than all windows"),
        pytest.param(counted(2 * HOUR), 5 * HOUR, False, id="counted in this window"),
        pytest.param(counted(2 * HOUR), 6 * HOUR, True, id="six hours old"),
        pytest.param(counted(7 * HOUR), 23 * HOUR, False, id="counted in the second window"),
        pytest.param(counted(7 * HOUR), 24 * HOUR, True, id="a day old"),
        pytest.param(
            counted(7 * HOUR), 40 * HOUR, True, id="counted last a day ago, the pipeline was paused"
        ),
        pytest.param(counted(25 * HOUR), 400 * HOUR, False, id="counted for the last time"),
    ],
)
def test_is_due_once_per_window(known: HourCount | None, age: timedelta, due: bool) -> None:
    assert is_due(BEGIN_MS, known, BEGIN + age, WINDOWS) is due


def test_is_due_without_windows_is_never() -> None:
    assert not is_due(BEGIN_MS, None, BEGIN + 2 * HOUR, [])


def test_read_hours_adds_each_run_once() -> None:
    """Closing a run again after a kill does not add its rows a second time."""
    first = {hour.begin: hour for hour in read_hours({BEGIN_MS: 5}, {}, 1, BEGIN)}
    assert first[BEGIN_MS].rows == 5
    assert not list(read_hours({BEGIN_MS: 5}, first, 1, BEGIN))
    (second,) = read_hours({BEGIN_MS: 2}, first, 2, BEGIN + HOUR)
    assert (second.rows, second.run) == (7, 2)


def test_part_of_hour_in_day_has_bounds() -> None:
    day, hour = BucketSize.DAY.start(BEGIN_MS * 10_000), 3_600_000 * 10_000
    first = day * 10_000
    assert part_of(BucketSize.DAY, day, first - 1, first + hour - 1) == Slice(
        timebucket=day, until=first + hour - 1
    )
    assert part_of(BucketSize.DAY, day, first + 23 * hour - 1, first + 24 * hour - 1) == Slice(
        timebucket=day, after=first + 23 * hour - 1
    )
    assert part_of(BucketSize.HOUR, BEGIN_MS, BEGIN_MS * 10_000 - 1, BEGIN_MS * 10_000 + hour - 1) == Slice(
        timebucket=BEGIN_MS
    )
