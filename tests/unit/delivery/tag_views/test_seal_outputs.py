"""What a sealed run leaves: the order of its batches, its holds and its outcome by tag."""

from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.delivery.tag_views.batch_contents import JUDGED_STREAMS, Contents, CutTotal
from tagmill.delivery.tag_views.file_summaries import FileTotal
from tagmill.delivery.tag_views.holds import to_judge_again
from tagmill.delivery.tag_views.model import HoldRecheck, HourRows, Plan, TagRange
from tagmill.delivery.tag_views.seal_outputs import (
    HOLD_SCHEMA,
    findings,
    grown,
    hold_record,
    hours_read,
    in_push_order,
    in_their_gaps,
    judged_hold,
    no_longer_held,
    oldest_hour,
    tag_outcome,
)
from tagmill.delivery.tag_views.working_rows import RowsInMemory
from tagmill.domain.continuity.model import Gap
from tests.unit.delivery.tag_views.ledger_rows import NOW, hold_row, sealed_batch

HOUR_MS = 3_600_000
PLAN = Plan(
    pipeline="p",
    run=7,
    planned_at=NOW + timedelta(hours=5),
    reread=False,
    first=False,
    tags={},
    units=[],
    holds=[],
    view_columns={},
    more=False,
)
LOOK = HoldRecheck(
    tag="t",
    persistence_id="p-1",
    reason="hole",
    first_missing=2,
    last_missing=2,
    after_sequence_nr=1,
    before_sequence_nr=3,
    from_ticks=50,
    since_run=1,
    since=NOW,
    seen="f",
)


def staged(unit: int, tag: str = "t", window_rows: int = 0, hours: tuple[tuple[int, int], ...] = ()):
    return FileTotal(unit, f"{unit}.parquet", tag, True, 10, 1, 0, 0, 0, window_rows, hours)


def cut(stream: int, number: int = 0, tag: str = "t") -> CutTotal:
    order = (1, 0, "", number) if stream >= JUDGED_STREAMS else (0, stream, "", number)
    return CutTotal(order, stream, number, tag, f"cut-{stream}-{number}", 10, 0)


def test_batches_of_judged_rows_come_last() -> None:
    """Within a tag, files come in the order of their units, and judged rows after them."""
    contents = Contents(
        [],
        [staged(9), staged(1), staged(0, "a")],
        [cut(JUDGED_STREAMS, 1), cut(JUDGED_STREAMS), cut(4)],
        None,
        "s",
    )
    assert [(file, judged) for file, _, judged in in_push_order(contents)] == [
        ("s/0.parquet", False),
        ("s/1.parquet", False),
        ("cut-4-0", False),
        ("s/9.parquet", False),
        (f"cut-{JUDGED_STREAMS}-0", True),
        (f"cut-{JUDGED_STREAMS}-1", True),
    ]


@given(order=st.permutations([staged(1), staged(2), staged(3, "u"), staged(4)]))
def test_push_order_ignores_order_of_files(order: list[FileTotal]) -> None:
    """Sealing the same rows again names the same batches, in whatever order files were listed."""
    files = [file for file, _, _ in in_push_order(Contents([], order, [], None, "s"))]
    assert files == ["s/1.parquet", "s/2.parquet", "s/4.parquet", "s/3.parquet"]


def test_hold_keeps_its_age() -> None:
    """A hold that still waits for the same number has its age; with another number it is new."""
    key = ("t", "p-1")
    same = judged_hold(PLAN, LOOK, key, "hole", Gap(2, 5, 1, 9), 50, 4)
    assert (same.since_run, same.since, same.seen) == (1, NOW, "f")
    other = judged_hold(PLAN, LOOK, key, "hole", Gap(4, 4, 1, 9), 50, 4)
    assert (other.since_run, other.since, other.seen) == (7, PLAN.planned_at, "f")
    new = judged_hold(PLAN, None, key, "hole", Gap(2, 2, 1, 3), 50, 4)
    assert (new.since_run, new.since, new.seen) == (7, PLAN.planned_at, "")
    assert new == to_judge_again(new)


def test_hold_ends_with_its_rows_judged() -> None:
    """A hold without a row in the view stays, so that rows that come back are judged."""
    over = no_longer_held(PLAN, LOOK, judged=True)
    assert over["ended"] and (over["tag"], over["persistence_id"]) == ("t", "p-1")
    stays = no_longer_held(PLAN, LOOK, judged=False)
    assert stays == hold_record(hold_row(held_rows=0))
    assert set(stays) == set(HOLD_SCHEMA.names)


@given(
    new=st.dictionaries(st.sampled_from(["p-1", "p-2", "p-3"]), st.integers(1, 9)),
    recounted=st.dictionaries(st.sampled_from(["p-1", "p-2", "p-3"]), st.integers(0, 9)),
)
def test_grown_holds_have_new_rows(new: dict[str, int], recounted: dict[str, int]) -> None:
    """A recount replaces an addition, and holds with as many rows as before are not written."""
    holds = [hold_row(name) for name in ("p-1", "p-2")]
    rows = {
        hold.persistence_id: hold.held_rows
        for hold in grown(
            holds,
            {("t", key): n for key, n in new.items()},
            {("t", key): n for key, n in recounted.items()},
            (),
        )
    }
    for hold in holds:
        name = hold.persistence_id
        expected = recounted[name] if name in recounted else hold.held_rows + new.get(name, 0)
        assert rows.get(name, hold.held_rows) == expected
        assert (name in rows) is (expected != hold.held_rows)


def test_grown_leaves_rest_of_hold() -> None:
    assert list(grown([hold_row()], {("t", "p-1"): 2}, {}, ())) == [replace(hold_row(), held_rows=6)]


@pytest.mark.parametrize(
    ("reason", "number", "is_in_gap"),
    [
        ("hole", 2, True),
        ("first_seen", 5, True),
        ("too_many_missing", 4, True),
        ("gap_too_large", 4, True),
        ("hole", 1, False),
        ("hole", 6, False),
        ("null_event", 4, False),
    ],
)
def test_missing_number_that_came_clears_fingerprint(reason: str, number: int, is_in_gap: bool) -> None:
    """A hold that waits for missing numbers is judged by the next plan as soon as a run has read one of them."""
    hold = hold_row(reason=reason, gap=Gap(2, 5, 1, 6))
    keys = {"tag": "t", "persistence_id": "p-1", "tag_pid_sequence_nr": number}
    others = [keys | {"persistence_id": "p-2"}, keys | {"tag": "u"}, keys | {"tag_pid_sequence_nr": 9}]
    rows = RowsInMemory(pa.Table.from_pylist([keys, *others]))
    in_gap = in_their_gaps([hold], rows)
    assert in_gap == ({("t", "p-1")} if is_in_gap else set())
    assert list(grown([hold], {}, {}, in_gap)) == ([replace(hold, seen="")] if is_in_gap else [])


def test_outcome_counts_rows_of_its_tag() -> None:
    span = TagRange(after=10, until=20, window_from=15, long_look=True, back_from=90)
    counts = {
        ("t", "late", "below_progress"): 2,
        ("t", "drop", "already_delivered"): 3,
        ("t", "hold", "hole"): 4,
        ("t", "hold", "first_seen"): 1,
        ("u", "hold", "hole"): 100,
    }
    totals = [staged(1, window_rows=5), staged(2, window_rows=6), staged(3, "u", window_rows=100)]
    done = tag_outcome(span, "t", [sealed_batch(1), sealed_batch(2), sealed_batch(3, "u")], counts, totals, 0)
    assert (done.after, done.until, done.window_from, done.back_from) == (10, 20, 15, 90)
    assert done.long_look and done.window_rows == 11
    assert (done.delivered, done.late, done.dropped, done.held) == (20, 2, 3, 5)
    assert findings(counts) == {"already_delivered": 3, "below_progress": 2, "first_seen": 1, "hole": 104}


def test_hours_read_add_up_within_reach() -> None:
    """Rows of an hour add up over files; hours older than the last window are not counted."""
    now_ms = int(NOW.timestamp() * 1000)
    oldest = oldest_hour(NOW, [3600, 86_400])
    assert oldest == now_ms - 24 * HOUR_MS and oldest_hour(NOW, []) == now_ms
    files = [
        staged(1, hours=((oldest - HOUR_MS, 9), (oldest, 1))),
        staged(2, hours=((oldest, 2), (oldest + HOUR_MS, 4))),
    ]
    assert hours_read(files, oldest) == [
        HourRows(begin=oldest, rows=3),
        HourRows(begin=oldest + HOUR_MS, rows=4),
    ]
