"""Which batches can be withdrawn, and which events a withdrawal delivers again."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.delivery.tag_views.withdraw import Event, ViewPlaces, undelivered, withdrawable
from tagmill.domain.batches.states import BatchState, RunState
from tagmill.domain.continuity.model import Gap
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import ticks
from tagmill.errors import GuardRefused
from tagmill.ledger.runs import RunRow
from tests.support.errors import raises
from tests.support.events import offset_at
from tests.unit.delivery.tag_views.ledger_rows import batch_row, run_row


def test_withdrawable_batch_of_closed_run() -> None:
    row, batches = run_row(RunState.CLOSED), [batch_row(1), batch_row(2)]
    assert withdrawable("p", 3, UUID(int=2), row, batches) == (row, batches[1])


@pytest.mark.parametrize(
    ("row", "state", "number", "message"),
    [
        (None, BatchState.IN_CLICKHOUSE, 1, "has no batch"),
        (run_row(RunState.CLOSED), BatchState.IN_CLICKHOUSE, 9, "has no batch"),
        (run_row(RunState.SEALED), BatchState.IN_CLICKHOUSE, 1, "only a closed run"),
        (run_row(RunState.ABANDONED), BatchState.IN_CLICKHOUSE, 1, "only a closed run"),
        (run_row(RunState.CLOSED), BatchState.VOIDED, 1, "VOIDED already"),
    ],
    ids=["unknown run", "unknown batch", "sealed run", "abandoned run", "void batch"],
)
def test_withdrawable_refuses(row: RunRow | None, state: BatchState, number: int, message: str) -> None:
    about = {"pipeline": "p", "run": 3, "batch": str(UUID(int=number))}
    with raises(GuardRefused, match=message, **about):
        withdrawable("p", 3, UUID(int=number), row, [batch_row(1, state)])


class RenumberedView:
    """A view whose numbers went down by one since they were delivered, all in one bucket."""

    def sequence_nrs(self, keys: Any) -> Iterator[int | None]:
        return (None for _ in keys)

    def journal_events(self, tag: str, persistence_id: str, gap: Gap, limit: int) -> list[Any]:
        number = gap.after_sequence_nr + 1
        return [SimpleNamespace(sequence_nr=number, offset=offset_at(number), writer_uuid="w")]

    def numbers_at(self, tag: str, bucket: int, offset: UUID, persistence_id: str) -> list[tuple[int, int]]:
        return [(ticks(offset), ticks(offset))]

    def numbers(self, tag: str, persistence_id: str, buckets: Any) -> Iterator[tuple[int, int, UUID, str]]:
        return ((number, number, offset_at(number), "w") for number in range(1, 5))


def test_numbers_of_other_delivered_events_stay_delivered() -> None:
    """Withdraw the first two of four events after all were numbered one lower: the third one's number is not noted."""
    row = {"tag": "t", "persistence_id": "p", "timebucket": 0, "writer_uuid": "w"}
    rows = [
        row | {"sequence_nr": nr, "tag_pid_sequence_nr": nr + 1, "offset": str(offset_at(nr))}
        for nr in (1, 2)
    ]
    places = ViewPlaces(RenumberedView(), BucketSize.HOUR, "batch 1")  # type: ignore[arg-type]
    noted = undelivered(places.of([rows]), {("t", "p", 3, "w"), ("t", "p", 4, "w")})
    assert {event.number for event in noted} == {1, 2}


def test_event_of_another_life_takes_no_place() -> None:
    """Refuse to withdraw an event if the journal has only another writer's under its sequence_nr."""
    row = {"tag": "t", "persistence_id": "p", "timebucket": 0, "writer_uuid": "earlier"}
    rows = [row | {"sequence_nr": 1, "tag_pid_sequence_nr": 2, "offset": str(offset_at(1))}]
    places = ViewPlaces(RenumberedView(), BucketSize.HOUR, "batch 1")  # type: ignore[arg-type]
    with raises(GuardRefused, match="has no longer"):
        list(places.of([rows]))


EVENTS = st.builds(
    Event,
    st.sampled_from(["t", "u"]),
    st.sampled_from(["p-1", "p-2"]),
    st.integers(1, 9),
    st.integers(1, 9),
    st.just(0),
    st.sampled_from(["w-1", "w-2"]),
)


def key_of(event: Event) -> Any:
    return event.tag, event.persistence_id, event.sequence_nr, event.writer_uuid


@given(events=st.lists(EVENTS), delivered=st.lists(EVENTS))
def test_undelivered_events_are_in_no_batch(events: list[Event], delivered: list[Event]) -> None:
    """A number is noted if ClickHouse has its event in no other batch, so that nothing comes twice."""
    present = set(map(key_of, delivered))
    noted = list(undelivered(events, present))
    assert noted == [event for event in events if key_of(event) not in present]


def test_undelivered_tells_events_by_sequence_nr() -> None:
    """An event that moved to another number of the view is still the delivered one; another writer's is not."""
    moved = Event("t", "p-1", sequence_nr=5, number=8, timebucket=0, writer_uuid="w")
    assert not list(undelivered([moved], {("t", "p-1", 5, "w")}))
    others = {("u", "p-1", 5, "w"), ("t", "p-2", 5, "w"), ("t", "p-1", 5, "of an earlier life")}
    assert list(undelivered([moved], others)) == [moved]


def test_undelivered_of_unknown_writer_by_number() -> None:
    """Events of a withdrawal that an earlier version planned are told by their sequence_nr alone."""
    planned = Event("t", "p-1", sequence_nr=5, number=8, timebucket=0)
    assert not list(undelivered([planned], {("t", "p-1", 5, "w")}))
    assert list(undelivered([planned], {("t", "p-1", 6, "w")})) == [planned]
