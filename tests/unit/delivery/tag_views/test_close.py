"""How closing a run moves watermarks and progress."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.delivery.tag_views.close import counting, last_before_void, may_move, moved
from tagmill.delivery.tag_views.model import TagOutcome, Withdrawn
from tagmill.ledger.progress import Watermark
from tests.unit.delivery.tag_views.ledger_rows import NOW, batch_row

BEFORE = NOW - timedelta(hours=2)


def mark(ticks: int, **changes: Any) -> Watermark:
    fields: dict[str, Any] = {
        "run": 2,
        "window_from": ticks,
        "window_rows": 0,
        "long_look_at": BEFORE,
        "delivered": 100,
        "batches": 5,
    }
    return Watermark(tag="t", ticks=ticks, **{**fields, **changes})


def outcome(after: int, until: int, back_from: int | None = None, *, long_look: bool = False) -> TagOutcome:
    return TagOutcome(
        after=after,
        until=until,
        window_from=until - 5,
        window_rows=7,
        long_look=long_look,
        delivered=0,
        late=0,
        dropped=0,
        held=0,
        back_from=back_from,
    )


@pytest.mark.parametrize(
    ("known", "done", "moves"),
    [
        pytest.param(None, outcome(-1, 20), True, id="first run"),
        pytest.param(10, outcome(10, 20), True, id="range begins at the watermark"),
        pytest.param(15, outcome(10, 20), True, id="range begins before it"),
        pytest.param(20, outcome(10, 20), True, id="nothing new"),
        pytest.param(5, outcome(10, 20), False, id="range begins behind it"),
        pytest.param(30, outcome(10, 20), False, id="range ends before it"),
        pytest.param(90, outcome(10, 20, back_from=90), True, id="brought back from the future"),
        pytest.param(91, outcome(10, 20, back_from=90), False, id="moved since it was planned"),
    ],
)
def test_may_move(known: int | None, done: TagOutcome, moves: bool) -> None:
    assert may_move(mark(known) if known is not None else None, done) is moves


@given(known=st.integers(0, 50), after=st.integers(0, 50), length=st.integers(0, 50))
def test_watermark_moves_forward_without_gap(known: int, after: int, length: int) -> None:
    """A watermark that moves never goes back, and the run has read everything behind it."""
    done = outcome(after, after + length)
    if may_move(mark(known), done):
        assert known <= moved(mark(known), done, NOW).ticks
        assert done.after <= known


def test_moved_takes_window_of_run() -> None:
    """A long look is noted when a run has made one; other runs leave the time of the last."""
    short = moved(mark(10), outcome(10, 20), NOW)
    assert (short.ticks, short.window_from, short.window_rows, short.long_look_at) == (20, 15, 7, BEFORE)
    assert moved(mark(10), outcome(10, 20, long_look=True), NOW).long_look_at == NOW


def test_counting_leaves_tick() -> None:
    """Delivered and withdrawn batches count whether or not the watermark moves."""
    gone = Withdrawn(run=1, number=1, batch_id="b", tag="t", rows=4)
    after = counting(mark(10), 3, [batch_row(1, rows=7), batch_row(2, rows=2)], [gone])
    assert (after.ticks, after.run, after.delivered, after.batches) == (10, 3, 105, 6)


def step(persistence_id: str, batch: int, number: int, tag: str = "t") -> dict[str, Any]:
    return {"tag": tag, "persistence_id": persistence_id, "batch": batch, "number": number}


def test_progress_before_void_batch() -> None:
    """With a void batch, progress ends with the batch before it; what is in batch 0 needs the whole run."""
    steps = [
        step("p-1", 2, 20),
        step("p-1", 1, 10),
        step("p-1", 3, 30),
        step("p-2", 3, 1),
        step("p-3", 0, 9),
        step("p-1", 1, 99, tag="u"),
    ]
    assert last_before_void(steps, {"t": 3}) == [step("p-1", 2, 20)]


@given(
    steps=st.lists(
        st.builds(
            step,
            st.sampled_from(["p-1", "p-2", "p-3"]),
            st.integers(0, 5),
            st.integers(1, 99),
            st.sampled_from(["t", "u", "v"]),
        )
    ),
    first_void=st.dictionaries(st.sampled_from(["t", "u"]), st.integers(1, 6)),
)
def test_progress_never_passes_void_batch(steps: list[dict[str, Any]], first_void: dict[str, int]) -> None:
    """Each persistence_id of a void tag has the highest step of a delivered batch, and one at most."""
    best = {(row["tag"], row["persistence_id"]): row for row in last_before_void(steps, first_void)}
    delivered = [row for row in steps if 0 < row["batch"] < first_void.get(row["tag"], 0)]
    assert set(best) == {(row["tag"], row["persistence_id"]) for row in delivered}
    assert all(best[row["tag"], row["persistence_id"]]["number"] >= row["number"] for row in delivered)
    assert all(row in delivered for row in best.values())
