"""What an audit keeps of rows: the pipeline's tags, buckets, hashes that tell rows apart, and the flaw of each event."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tagmill.audit.row_hashes import JOURNAL, VIEW, of_messages, of_view
from tagmill.delivery.arrow_checksum import hashes_of_numbers
from tagmill.domain.batches.layout import FACTOR
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import FUTURE_TICKS, lowest
from tagmill.journal.flaws import Reason

UNTIL = 17_672_256_000_000_000
TAGS = ("a", "b")
EVENT = {
    "persistence_id": "p",
    "sequence_nr": 7,
    "timestamp": lowest(UNTIL).bytes,
    "event": b"1",
    "event_manifest": "",
    "ser_id": 20,
    "ser_manifest": "",
    "writer_uuid": "w",
    "written": 9,
}
MESSAGE = {**EVENT, "partition_nr": 0, "tags": ["a", "x"]}
ROW = {**EVENT, "tag_name": "a", "timebucket": 5, "tag_pid_sequence_nr": 3}
TYPES = {
    "persistence_id": pa.string(),
    "partition_nr": pa.int64(),
    "sequence_nr": pa.int64(),
    "timestamp": pa.binary(16),
    "event": pa.binary(),
    "event_manifest": pa.string(),
    "ser_id": pa.int32(),
    "ser_manifest": pa.string(),
    "writer_uuid": pa.string(),
    "tags": pa.list_(pa.string()),
    "tag1": pa.string(),
    "tag2": pa.string(),
    "tag3": pa.string(),
    "message": pa.binary(),
    "meta": pa.binary(),
    "meta_ser_id": pa.int32(),
    "meta_ser_manifest": pa.string(),
    "tag_name": pa.string(),
    "timebucket": pa.int64(),
    "tag_pid_sequence_nr": pa.int64(),
    "written": pa.int64(),
}


def kept(kind: Any, plain: dict[str, Any], *changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is kept of rows with these changes, which a worker gets as a slice."""
    rows = [plain, *({**plain, **change} for change in changes)]
    names = sorted({name for row in rows for name in row})
    schema = pa.schema([(name, TYPES[name]) for name in names])
    batch = pa.RecordBatch.from_pylist([{name: row.get(name) for name in names} for row in rows], schema)
    found = kind(batch.slice(1), TAGS, UNTIL, BucketSize.HOUR)
    assert found.schema.equals(JOURNAL if kind is of_messages else VIEW)
    return list(found.to_pylist())


def test_event_is_kept_with_the_pipelines_tags() -> None:
    (found,) = kept(of_messages, MESSAGE, {})
    bucket = UNTIL // 10_000 // 3_600_000 * 3_600_000
    assert found.pop("event_hash") is not None
    assert found == {
        "persistence_id": "p",
        "partition_nr": 0,
        "sequence_nr": 7,
        "offset": str(lowest(UNTIL)),
        "ticks": UNTIL,
        "bucket": bucket,
        "writer_uuid": "w",
        "tags": ["a"],
        "tag_count": 2,
        "flaw": None,
        "written": 9,
    }


def test_tags_of_all_columns_are_counted() -> None:
    """Lists of different lengths, null and empty ones, and old columns keep their own tags."""
    changes = [{"tags": tags} for tags in (["b", "a"], None, [], ["x"], ["b"])]
    found = kept(of_messages, MESSAGE, *changes, {"tags": None, "tag1": "b", "tag3": "x"})
    assert [sorted(row["tags"]) for row in found] == [["a", "b"], [], [], [], ["b"], ["b"]]
    assert [row["tag_count"] for row in found] == [2, 0, 0, 1, 1, 2]
    assert [row["event_hash"] is None for row in found] == [False, True, True, True, False, False]


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [
        ({}, None),
        ({"ser_id": None}, Reason.NO_EVENT),
        ({"event": None, "message": b"old"}, Reason.BEFORE_0_10),
        ({"event": None, "message": None}, Reason.NO_EVENT),
        ({"tags": None, "tag2": "a"}, Reason.OLD_TAGS),
        ({"tags": None, "tag2": "a", "event": None}, Reason.OLD_TAGS),
        ({"timestamp": bytes(16)}, Reason.NO_TIME_UUID),
        ({"timestamp": lowest(UNTIL + FUTURE_TICKS + 1).bytes, "event": None}, Reason.NO_TIME_UUID),
    ],
)
def test_flaw_of_an_event_is_its_first(changes: dict[str, Any], flaw: Reason | None) -> None:
    (found,) = kept(of_messages, MESSAGE, changes)
    assert found["flaw"] == (flaw and flaw.value)


def test_rows_without_key_are_no_events() -> None:
    """Static columns of an emptied partition, and sequence_nrs below 1, are left out."""
    found = kept(of_messages, MESSAGE, {"sequence_nr": None}, {"sequence_nr": 0}, {"sequence_nr": 1})
    assert [row["sequence_nr"] for row in found] == [1]


def test_view_rows_of_other_tags_are_left_out() -> None:
    found = kept(of_view, ROW, {"tag_name": "x"}, {"tag_name": "b", "tag_pid_sequence_nr": 9}, {})
    assert [(row["tag"], row["number"], row["timebucket"]) for row in found] == [("b", 9, 5), ("a", 3, 5)]
    assert [row["written"] for row in kept(of_view, ROW, {}, {"written": None})] == [9, 0]
    assert found[0]["size"] == len("p") + len(b"1") + len("b") + 100


def test_hash_is_of_the_event_alone() -> None:
    """Journal and view have one hash of an event; another value of any of its columns has another hash."""
    changes: list[dict[str, Any]] = [
        {"event": b"2"},
        {"event_manifest": "m"},
        {"ser_id": 21},
        {"ser_manifest": "s"},
        {"writer_uuid": "v"},
        {"persistence_id": "q"},
        {"sequence_nr": 8},
        {"timestamp": lowest(UNTIL - 1).bytes},
        {"meta": b""},
        {"meta_ser_id": 0},
        {"meta_ser_manifest": ""},
    ]
    of_journal = [row["event_hash"] for row in kept(of_messages, MESSAGE, {}, *changes)]
    of_rows = kept(of_view, ROW, {"tag_name": "b", "timebucket": 6}, *changes)
    assert [row["event_hash"] for row in of_rows] == of_journal
    assert len(set(of_journal)) == len(changes) + 1


def test_row_hash_has_the_number() -> None:
    first, second = kept(of_view, ROW, {}, {"tag_pid_sequence_nr": 4})
    assert first["event_hash"] == second["event_hash"] and first["row_hash"] != second["row_hash"]
    folded = np.array([first["event_hash"] * FACTOR + 3 & 2**64 - 1], np.uint64)
    assert hashes_of_numbers(folded).view(np.int64)[0] == first["row_hash"]
