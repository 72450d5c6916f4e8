"""Which rows the plan of a run reads, and when there is none."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.delivery.tag_views.future_watermarks import proven_ticks
from tagmill.delivery.tag_views.model import HoldRecheck, HourRows, Slice
from tagmill.delivery.tag_views.plan import (
    LONG_LOOK_EVERY,
    Part,
    ViewCoverage,
    make_bucket_reread,
    make_plan,
    make_reread,
    reread_range,
)
from tagmill.delivery.tag_views.plan_inputs import built_by
from tagmill.domain.timeuuid import TICKS_PER_SECOND, from_datetime
from tagmill.ledger.view_builds import BuildRow, BuildState
from tests.unit.delivery.tag_views.plans import (
    BEFORE,
    NOW,
    START,
    UNTIL,
    at,
    bucket,
    inputs,
    mark,
    pipeline,
    slices_of,
    times_read,
    whole,
)

HOUR = 3600 * TICKS_PER_SECOND
ROWS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.integers(BEFORE + 1, UNTIL + HOUR)), max_size=60, unique=True
)
LIMITS = st.fixed_dictionaries(
    {
        "max_slices_per_run": st.integers(1, 8),
        "max_rows_per_run": st.integers(1, 20),
        "batch_rows": st.integers(1, 10),
    }
)
LOOK = HoldRecheck(
    tag="t",
    persistence_id="p-1",
    reason="hole",
    first_missing=2,
    last_missing=2,
    after_sequence_nr=1,
    before_sequence_nr=3,
    from_ticks=at(5),
    since_run=1,
    since=NOW,
    seen="f",
)


def unread() -> Iterator[Part]:
    """Fail when a stream is read that the decision does not need."""
    raise AssertionError("read without need")
    yield


# -- new rows


def test_first_run_begins_with_first_bucket() -> None:
    plan = make_plan(inputs(new=[whole(3)]))
    assert plan is not None and plan.first
    assert (plan.tags["t"].after, plan.tags["t"].until) == (BEFORE, UNTIL)


def test_later_run_begins_behind_watermark() -> None:
    plan = make_plan(inputs(mark(3), new=[whole(4)]))
    assert plan is not None and not plan.first
    assert (plan.tags["t"].after, plan.tags["t"].until) == (at(3), UNTIL)


def test_plan_without_new_rows_is_none() -> None:
    assert make_plan(inputs()) is None
    assert make_plan(inputs(mark(23))) is None


@pytest.mark.parametrize(
    ("built", "until"),
    [
        pytest.param(None, UNTIL, id="delay"),
        pytest.param(ViewCoverage(1, None, {}), UNTIL, id="application writes what is new"),
        pytest.param(ViewCoverage(1, at(7), {}), at(7), id="end of the build"),
        pytest.param(ViewCoverage(1, at(30), {}), UNTIL, id="build ends after the delay"),
    ],
)
def test_plan_reads_up_to(built: ViewCoverage | None, until: int) -> None:
    plan = make_plan(inputs(new=[whole(3)], built=built))
    assert plan is not None and plan.tags["t"].until == until


def test_range_of_future_start_is_empty() -> None:
    """A tag whose start_from is in the future has an empty range, which ends where it begins."""
    settings = pipeline(tags=["t", "u"], start_from={"u": NOW + timedelta(days=1)})
    plan = make_plan(inputs(settings=settings, new=[whole(3)]))
    assert plan is not None and plan.tags["u"].after == plan.tags["u"].until == at(48) - 1


@given(rows=ROWS, limits=LIMITS, begins=st.none() | st.integers(BEFORE, UNTIL))
def test_each_row_is_in_one_unit(rows: list[tuple[str, int]], limits: dict[str, int], begins: int | None):
    """Runs after one another read each row up to the delay exactly once, in order, within their limits."""
    settings = pipeline(tags=["a", "b"], **limits)
    marks = {} if begins is None else {"a": replace(mark(0, "a"), ticks=begins)}
    first = {"a": BEFORE if begins is None else begins, "b": BEFORE}
    read = dict.fromkeys(rows, 0)
    for run in count(2):
        assert run < 200
        after = {tag: marks[tag].ticks if tag in marks else BEFORE for tag in settings.tags}
        new = sorted(
            (
                part
                for tag in settings.tags
                for part in slices_of([row for row in rows if row[0] == tag], after[tag], UNTIL)
            ),
            key=lambda item: (item[1].timebucket, item[0]),
        )
        plan = make_plan(inputs(*marks.values(), settings=settings, new=new, run=run))
        if plan is None:
            break
        slices = {(unit.tag, part.timebucket) for unit in plan.units for part in unit.slices}
        assert len(slices) <= limits["max_slices_per_run"]
        assert plan.rows <= limits["max_rows_per_run"] or len(slices) == 1
        for tag, tick in rows:
            times = times_read(plan, (tag, tick), "new")
            assert times == (plan.tags[tag].after < tick <= plan.tags[tag].until)
            read[tag, tick] += times
        assert plan.more == any(
            plan.tags[tag].until < tick <= UNTIL for tag, tick in rows if tick > first[tag]
        )
        marks = {tag: replace(mark(0, tag), ticks=plan.tags[tag].until) for tag in settings.tags}
    assert read == {(tag, tick): int(first[tag] < tick <= UNTIL) for tag, tick in rows}


def test_full_plan_stops_reading() -> None:
    """A plan that is full reads no further slice, however long the backlog is."""
    backlog = (whole(hour) for hour in count())
    plan = make_plan(inputs(settings=pipeline(max_slices_per_run=3), new=backlog, late_hours=unread()))
    assert plan is not None and plan.more
    assert [part.timebucket for unit in plan.units for part in unit.slices] == [bucket(h) for h in range(3)]
    assert plan.tags["t"].until == at(3) - 1
    assert next(backlog) == whole(4)


@given(rows=st.integers(1, 50), batch_rows=st.integers(1, 20))
def test_large_bucket_is_divided_into_units(rows: int, batch_rows: int) -> None:
    """The units of one bucket follow each other without a gap, and none is larger than a batch."""
    plan = make_plan(inputs(settings=pipeline(batch_rows=batch_rows), new=[whole(3, rows)]))
    assert plan is not None and all(unit.rows <= batch_rows for unit in plan.units)
    parts = [part for unit in plan.units for part in unit.slices]
    assert (parts[0].after, parts[-1].until) == (None, None)
    assert [part.until for part in parts[:-1]] == [part.after for part in parts[1:]]


# -- watermarks in the future


def test_future_watermark_is_planned_without_rows() -> None:
    """A watermark in the future is brought back by a run of its own, even if there is nothing to read."""
    plan = make_plan(inputs(mark(20), back_from={"t": at(90)}))
    assert plan is not None and plan.moves_watermark
    assert (plan.tags["t"].after, plan.tags["t"].until) == (at(20), UNTIL)
    assert plan.tags["t"].back_from == at(90)


@pytest.mark.parametrize(
    ("beginnings", "proven"),
    [
        pytest.param([80, 20, 10], 20, id="where the first run under the wrong clock began"),
        pytest.param([20], 20, id="one run"),
        pytest.param([80, 70], None, id="older runs are past retention"),
        pytest.param([], None, id="no run is known"),
    ],
)
def test_proven_ticks_of_future_watermark(beginnings: list[int], proven: int | None) -> None:
    assert proven_ticks(90, beginnings, now=24) == proven


# -- look-back


@pytest.mark.parametrize(("rows", "due"), [(5, False), (6, True), (4, True)])
def test_changed_window_is_read_again(rows: int, due: bool) -> None:
    known = mark(23, window_from=at(22), window_rows=5)
    window = ("t", Slice(timebucket=bucket(22), after=at(22), until=at(23), rows=rows))
    plan = make_plan(inputs(known, window_rows=[(known, rows)], look_back=[window]))
    assert (plan is not None) is due
    if plan:
        assert [(unit.kind, unit.slices[0].after) for unit in plan.units] == [("again", at(22))]


def test_long_look_is_due_hourly() -> None:
    """A long look is due an hour after the last one, if its window is longer than the one read."""
    settings = pipeline(look_back_seconds=60, long_look_back_seconds=7200)
    for ago, window_from, due in [
        (LONG_LOOK_EVERY, at(22.9), True),
        (LONG_LOOK_EVERY - timedelta(seconds=1), at(22.9), False),
        (LONG_LOOK_EVERY, at(21), False),
        (-LONG_LOOK_EVERY, at(22.9), True),  # under a wrong clock
    ]:
        known = mark(23, window_from=window_from, long_look_at=NOW - ago)
        assert (make_plan(inputs(known, settings=settings)) is not None) is due
    never = mark(23, window_from=at(22.9), long_look_at=None)
    plan = make_plan(inputs(never, settings=settings))
    assert plan is not None and plan.tags["t"].long_look


@given(hours=st.floats(0, 23), long=st.booleans(), short_seconds=st.integers(0, 3600))
def test_next_window_ends_at_next_watermark(hours: float, long: bool, short_seconds: int) -> None:
    """The next window is as long as the one that this run reads, and begins no earlier than the tag."""
    settings = pipeline(look_back_seconds=short_seconds, long_look_back_seconds=100 * 3600)
    known = mark(hours, long_look_at=NOW - LONG_LOOK_EVERY if long else NOW)
    plan = make_plan(inputs(known, settings=settings, new=[whole(23)]))
    assert plan is not None and plan.tags["t"].long_look is long
    window = BEFORE if long else UNTIL - short_seconds * TICKS_PER_SECOND
    assert plan.tags["t"].window_from == window


def test_late_hours_fill_one_run() -> None:
    """Hours with late rows are read up to the limits of a run, at least one; others wait."""
    hours = [("t", bucket(hour), [whole(hour, 6)[1]]) for hour in (1, 2, 3)]
    for limit, read in [(5, 1), (12, 2), (18, 3)]:
        settings = pipeline(max_rows_per_run=limit)
        plan = make_plan(inputs(mark(23), settings=settings, late_hours=iter(hours)))
        assert plan is not None and plan.more is (read < 3)
        assert plan.look_back == {"t": [HourRows(begin=b, rows=6) for _, b, _ in hours[:read]]}
        assert sorted(part.timebucket for unit in plan.units for part in unit.slices) == [
            b for _, b, _ in hours[:read]
        ]


# -- late rows of builds


def test_late_rows_come_with_new_ones() -> None:
    """Late rows of a build that fit a run are read with the new rows, and the watermark moves."""
    late = [whole(1), whole(2)]
    plan = make_plan(
        inputs(mark(23), built=ViewCoverage(4, at(24), {"t": at(1)}), late=late, new=[whole(23)])
    )
    assert plan is not None and plan.moves_watermark and not plan.more
    assert (plan.build, plan.filled_tags, plan.late_left) == (4, ["t"], {})
    assert [unit.kind for unit in plan.units] == ["new", "again"]


@given(hours=st.sets(st.integers(0, 20), min_size=1), rows=st.integers(1, 5), limits=LIMITS)
def test_late_backlog_is_read_before_new_rows(hours: set[int], rows: int, limits: dict[str, int]) -> None:
    """Runs that read only late rows leave the watermark; what one leaves, the next begins with."""
    settings, left, read = pipeline(**limits), at(0), []
    for run in count(2):
        late = [whole(hour, rows) for hour in sorted(hours) if at(hour) >= left]
        plan = make_plan(
            inputs(
                mark(22),
                settings=settings,
                run=run,
                built=ViewCoverage(1, None, {"t": left}),
                late=late,
                new=[],
            )
        )
        assert plan is not None
        read += sorted({part.timebucket for unit in plan.units for part in unit.slices})
        if not plan.late_left:
            assert plan.moves_watermark
            break
        assert plan.more and not plan.moves_watermark and plan.filled_tags == ["t"]
        assert plan.tags["t"].after == plan.tags["t"].until == at(22)
        left = plan.late_left["t"]
    assert read == [bucket(hour) for hour in sorted(hours)]


def test_late_backlog_reads_nothing_else() -> None:
    """While late rows are left, neither new rows nor hours of look-back are counted."""
    plan = make_plan(
        inputs(
            mark(23),
            settings=pipeline(max_slices_per_run=1),
            built=ViewCoverage(1, None, {"t": at(1)}),
            late=[whole(1), whole(2)],
            new=unread(),
            late_hours=unread(),
            look_back=unread(),
            of_holds=unread(),
        )
    )
    assert plan is not None and plan.late_left == {"t": at(2)}


@pytest.mark.parametrize(
    ("state", "grows", "expected"),
    [
        (BuildState.DONE, True, ViewCoverage(3, 50, {"t": 1})),
        (BuildState.DONE, False, ViewCoverage(3, None, {"t": 1})),
        (BuildState.SEALED, True, ViewCoverage(2, 50, {"t": 1})),
    ],
    ids=["done", "application writes what is new", "not done"],
)
def test_built_by_counts_finished_builds(state: BuildState, grows: bool, expected: ViewCoverage) -> None:
    newest = BuildRow("j", 3, state, 1, uuid4(), "o", "Hour", None, None, 0, 50)
    assert built_by(newest, grows=grows, late={"t": 1}) == expected
    assert built_by(None, grows=grows, late={}) is None


# -- holds


def test_changed_hold_is_planned_without_new_rows() -> None:
    """A hold that is judged again is a reason for a run; its buckets are read once with the look-back."""
    window = ("t", Slice(timebucket=bucket(5), after=at(5.5), until=at(6) - 1, rows=1))
    plan = make_plan(
        inputs(
            mark(23),
            looks=[LOOK],
            of_holds=[whole(5, 3)],
            look_back=[window],
            held_ttls=[("t", 9), ("u", 1)],
        )
    )
    assert plan is not None and plan.holds == [LOOK] and plan.moves_watermark
    ((part,),) = [unit.slices for unit in plan.units]
    assert part.whole and part.timebucket == bucket(5)
    assert plan.held_ttl_seconds == {"t": 9}


@given(hours=st.lists(st.tuples(st.integers(0, 22), st.floats(0, 1), st.floats(0, 1)), max_size=12))
def test_overlapping_slices_are_read_once(hours: list[tuple[int, float, float]]) -> None:
    """What look-back, holds and late rows read again is in exactly one slice."""
    parts = [
        ("t", Slice(timebucket=bucket(hour), after=at(hour + min(a, b)), until=at(hour + max(a, b)) - 1))
        for hour, a, b in hours
    ]
    plan = make_plan(
        inputs(
            mark(23),
            looks=[LOOK],
            look_back=parts[::3],
            of_holds=parts[1::3],
            late=parts[2::3],
        )
    )
    assert plan is not None
    for _, part in parts:
        assert part.after is not None and part.until is not None
        if part.after < part.until < at(24):
            assert times_read(plan, ("t", part.until), "again") == 1


# -- reading again


def test_reread_leaves_watermarks() -> None:
    plan = make_reread(inputs(mark(23)), START, START + timedelta(hours=4), [whole(1), whole(2)])
    assert plan is not None and plan.reread and not plan.moves_watermark and plan.build is None
    assert {unit.kind for unit in plan.units} == {"again"} and plan.rows == 0


def test_reread_without_rows_is_none() -> None:
    assert make_reread(inputs(mark(23)), START, NOW, []) is None
    assert make_bucket_reread(inputs(mark(23)), [("t", bucket(1), None)]) == (None, 1)


def test_reread_ends_at_delay() -> None:
    """A range in the future is read up to the delay, as every range is."""
    assert reread_range(inputs(mark(23)), START, NOW + timedelta(days=9)) == (BEFORE, UNTIL)
    end = datetime(2026, 5, 1, 3, tzinfo=UTC)
    assert reread_range(inputs(mark(23)), START, end) == (BEFORE, from_datetime(end))


@given(rows=st.lists(st.integers(0, 9), max_size=23), limits=LIMITS)
def test_bucket_rereads_deal_with_each_bucket(rows: list[int], limits: dict[str, int]) -> None:
    """Runs after one another read each bucket with rows once, in order; empty ones are dealt with too."""
    settings, read = pipeline(**limits), []
    parts = [("t", bucket(hour), whole(hour, n)[1] if n else None) for hour, n in enumerate(rows)]
    left = parts
    while left:
        plan, taken = make_bucket_reread(inputs(mark(23), settings=settings), iter(left))
        assert taken > 0
        dealt_with = [part for _, _, part in left[:taken] if part]
        assert (plan is not None) is bool(dealt_with)
        if plan:
            assert plan.more is (taken < len(left)) and not plan.moves_watermark
            assert len(dealt_with) <= limits["max_slices_per_run"]
            read += sorted({part.timebucket for unit in plan.units for part in unit.slices})
            for part in dealt_with:
                assert plan.tags["t"].after < at(0) + (part.timebucket - bucket(0)) * 10_000
        left = left[taken:]
    assert read == [timebucket for _, timebucket, part in parts if part]
