"""Rows of messages as staged events: places and payloads unchanged, tags as the plugin sees them, and the
flaw of each.
"""

from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.domain.journal_tables import JournalTables
from tagmill.domain.timeuuid import FUTURE_TICKS, lowest, ticks
from tagmill.journal.flaws import Reason
from tagmill.journal.frames import META, REQUIRED, JournalSchema
from tagmill.views.staging import as_events, schema_of

UNTIL = 17_672_256_000_000_000
EVENT = {
    "persistence_id": "p", "partition_nr": 0, "sequence_nr": 1, "timestamp": lowest(UNTIL).bytes, "tags": ["a", "b"], "event": b"1",
    "event_manifest": "", "ser_id": 20, "ser_manifest": "", "writer_uuid": "w",
}  # fmt: skip
TYPES = {
    "persistence_id": pa.string(), "partition_nr": pa.int64(), "sequence_nr": pa.int64(), "timestamp": pa.binary(),
    "tags": pa.list_(pa.string()), "event": pa.binary(), "event_manifest": pa.string(), "ser_id": pa.int32(),
    "ser_manifest": pa.string(), "writer_uuid": pa.string(), "meta_ser_id": pa.int32(), "meta_ser_manifest": pa.string(),
    "meta": pa.binary(), "message": pa.binary(), "tag1": pa.string(), "tag2": pa.string(), "tag3": pa.string(),
}  # fmt: skip
OLD = ("message", "tag1", "tag2", "tag3")
LARGEST = 1000


def journal(*also: str) -> JournalSchema:
    return JournalSchema(JournalTables("j"), {"messages": {*REQUIRED, *also}}, None)


def staged(*rows: dict, also: tuple[str, ...] = ()) -> list[dict]:
    """Return the staged events that EVENT gives with these changes, one per row."""
    columns = [*REQUIRED, *also]
    batch = pa.RecordBatch.from_pylist(
        [{**EVENT, **row} for row in rows], pa.schema([(name, TYPES[name]) for name in columns])
    )
    # Workers get slices of batches, so read a batch that does not start at its first row.
    together = pa.concat_tables(
        [pa.Table.from_batches([batch]).slice(0, 1), pa.Table.from_batches([batch])]
    ).combine_chunks()
    return as_events(together.to_batches()[0].slice(1), schema_of(journal(*also)), UNTIL, LARGEST).to_pylist()


def flaw(also: tuple[str, ...] = (), **changes: object) -> str | None:
    return staged(changes, also=also)[0]["flaw"]


def test_staged_event_is_unchanged_with_time() -> None:
    """Events are staged unchanged, with their time and without a flaw."""
    (found,) = staged({})
    assert found == {**EVENT, "timestamp": str(lowest(UNTIL)), "ticks": UNTIL, "flaw": None}


def test_an_event_without_tags_leaves_its_payload_behind() -> None:
    gone = dict.fromkeys(("tags", "event", "event_manifest", "ser_id", "ser_manifest", "writer_uuid"))
    kept = {**EVENT, **gone, "timestamp": str(lowest(UNTIL)), "ticks": UNTIL, "flaw": None}
    assert staged({"tags": None}, {"tags": []}) == [kept, kept]


def test_metadata_of_replicated_events_comes_along() -> None:
    meta = {"meta_ser_id": 3, "meta_ser_manifest": "m", "meta": b"\x00"}
    found = staged(meta, {**meta, "tags": None}, also=tuple(META))
    assert [{name: row[name] for name in META} for row in found] == [meta, dict.fromkeys(META)]


@pytest.mark.parametrize(
    ("tags", "old", "seen"),
    [
        (None, ("a", None, None), ["a"]),
        (["b", "a"], (None, None, "c"), ["a", "b", "c"]),
        (["a"], ("a", "é", "z"), ["a", "z", "é"]),
        (["b", "a"], (None, None, None), ["b", "a"]),
        (None, (None, None, None), None),
    ],
)
def test_tags_of_old_columns_are_tags(
    tags: list[str] | None, old: tuple[str | None, ...], seen: list[str] | None
) -> None:
    changes = {"tags": tags, **dict(zip(OLD[1:], old, strict=True))}
    assert staged(changes, also=OLD[1:])[0]["tags"] == seen


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"event": None}, Reason.NO_EVENT),
        ({"ser_id": None}, Reason.NO_EVENT),
        ({"event": None, "tags": None}, None),
        ({"event": None, "message": b""}, Reason.BEFORE_0_10),
        ({"message": b"1"}, None),
        ({"timestamp": UUID(int=0).bytes}, Reason.NO_TIME_UUID),
        ({"timestamp": UUID("00000000-0000-4000-8000-000000000000").bytes}, Reason.NO_TIME_UUID),
        ({"timestamp": UUID(int=0).bytes, "tags": None}, None),
        ({"timestamp": lowest(-1).bytes}, Reason.NO_TIME_UUID),
        ({"timestamp": lowest(0).bytes}, None),
        ({"timestamp": lowest(UNTIL + 1).bytes}, Reason.YOUNG),
        ({"timestamp": lowest(UNTIL + 1).bytes, "tags": None}, Reason.YOUNG),
        ({"timestamp": lowest(UNTIL + FUTURE_TICKS).bytes}, Reason.YOUNG),
        ({"timestamp": lowest(UNTIL + FUTURE_TICKS + 1).bytes}, Reason.NO_TIME_UUID),
        ({"timestamp": lowest(UNTIL + FUTURE_TICKS + 1).bytes, "tags": None}, None),
        ({"timestamp": lowest(UNTIL + 1).bytes, "event": None}, Reason.NO_EVENT),
    ],
)
def test_what_is_wrong_with_an_event_is_said(changes: dict, reason: Reason | None) -> None:
    """Name the flaw of an event with tags; events without tags have none."""
    assert flaw(("message",), **{"message": None, **changes}) == (reason and reason.value)


@given(
    st.lists(st.uuids(), min_size=1, max_size=20),
    st.lists(st.integers(-(2**48), 2**59), min_size=1, max_size=20),
)
def test_staged_uuid_has_text_and_time(some: list[UUID], times: list[int]) -> None:
    """UUIDs of any version give their text; time UUIDs also give their ticks."""
    versions = [*some, *map(lowest, times)]
    found = staged(*({"timestamp": one.bytes} for one in versions))
    assert [row["timestamp"] for row in found] == list(map(str, versions))
    assert [row["ticks"] for row in found[len(some) :]] == [ticks(one) for one in versions[len(some) :]]


def test_many_rows_keep_their_order() -> None:
    found = staged(
        *(
            {"sequence_nr": number, "tags": [f"t{number % 7}"] if number % 3 else None}
            for number in range(1000)
        )
    )
    assert [row["sequence_nr"] for row in found] == list(range(1000))
    assert all(
        row["tags"] == ([f"t{row['sequence_nr'] % 7}"] if row["sequence_nr"] % 3 else None) for row in found
    )
    assert pc.sum(pa.array([row["event"] is None for row in found])).as_py() == 334


def test_row_of_view_beyond_one_write_is_flawed() -> None:
    beside = sum(
        len(EVENT[name]) for name in ("persistence_id", "event_manifest", "ser_manifest", "writer_uuid")
    )
    assert flaw(event=b"x" * (LARGEST - beside)) is None
    assert flaw(event=b"x" * (LARGEST - beside + 1)) == "too_large"
    assert flaw(event=b"x" * LARGEST, tags=None) is None
    assert [row["flaw"] for row in staged({}, {"event": b"x" * LARGEST}, {})] == [None, "too_large", None]
