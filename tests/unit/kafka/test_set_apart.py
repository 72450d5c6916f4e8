"""Records that a run of a topic sets apart."""

import pyarrow as pa
import pytest

from tagmill.kafka.offset_ranges import Range
from tagmill.kafka.set_apart import parts, record_of, within


@pytest.mark.parametrize(
    ("item", "record"),
    [
        ("orders/0/17", ("orders", 0, 17)),
        ("a.b_c-d/12/0", ("a.b_c-d", 12, 0)),
        ("orders/0", None),
        ("orders/-1/3", None),
        ("a/b/0/1", None),
        ("colour", None),
    ],
)
def test_record_of_text_is_read(item: str, record: tuple[str, int, int] | None) -> None:
    """Read topic/partition/offset as a record, and no other text."""
    assert record_of(item) == record


def test_within_ranges_keeps_only_those_read() -> None:
    """Records outside of a run's ranges are left to another run."""
    ranges = [Range(topic="t", partition=0, first=5, end=9)]
    records = {"t/0/4": "x", "t/0/5": "x", "t/0/8": "y", "t/0/9": "x", "t/1/5": "x"}
    assert within(records, ranges) == [("t", 0, 5, "x"), ("t", 0, 8, "y")]


@pytest.mark.parametrize("apart", [[], [0], [2], [4], [0, 1, 4], [0, 1, 2, 3, 4]])
def test_parts_any_records_apart_in_order(apart: list[int]) -> None:
    """Parts hold every record once, in order; those set apart are alone and carry their reason."""
    batch = pa.RecordBatch.from_pydict({"topic": ["t"] * 5, "partition": [0] * 5, "offset": list(range(5))})
    found = [
        (part["offset"].to_pylist(), reason)
        for part, reason in parts(batch, {("t", 0, at): f"why {at}" for at in apart})
    ]
    assert [at for offsets, _ in found for at in offsets] == list(range(5))
    assert [(offsets, reason) for offsets, reason in found if reason] == [([at], f"why {at}") for at in apart]
