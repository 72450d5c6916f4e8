"""What depends on how many records a piece of a replication has: Spark reads and writes many, this process few.

Both leave the same files and rows, and either goes on with what the other has left.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from tagmill.kafka.client import Kafka
from tagmill.kafka.offset_ranges import Range

Decode = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
# Columns of FOLDED that are written to metajournal.
ENTRY = (
    "topic", "segment", "id", "partition", "offset", "segment_size", "seq_nr", "delete_to", "created", "updated", "origin", "record_id",
)  # fmt: skip
# Columns of FOLDED that say which events are deleted.
DOOMED = ["topic", "id", "purged", "doomed_to", "doomed_size", "old_delete_to"]
# Sequence numbers may skip: if this many segments of an id are to be deleted, the existing ones are looked up
# instead of counted through.
MOST_SEGMENTS = 10_000
# The key of an entry, and its columns that are read back.
STATE_KEY, STATE = ("topic", "segment", "id"), ("partition", "offset", "seq_nr", "delete_to")


class Records(Protocol):
    """The records of one piece, in its files. Write times are in microseconds."""

    def stage(self, kafka: Kafka, ranges: Sequence[Range], decode: Decode) -> None:
        """Read the records of ranges and write what `decode` makes of them (STAGED) to the piece's files.

        Raises GuardRefused: Kafka deleted records before they were read. StoreUnavailable: Kafka did not answer.
        """

    def fold(self, segment_size: int) -> None:
        """Fold the staged records of each id, marks included, into one row of FOLDED, and write the rows to the
        piece's files.
        """

    def write_delete_to(self, written_at: int) -> None:
        """Write delete_to of the entries in which it changes."""

    def write_events(self, written_at: int) -> None:
        """Write the rows of journal."""

    def write_entries(self, written_at: int) -> None:
        """Write the rows of metajournal that change, without their expiry."""

    def differing(self) -> tuple[str, int | None] | None:
        """Read the entries back; return id and write time of one that is not as it was written, or is not
        deleted; None: none.
        """

    def delete_wide(self, written_at: int) -> None:
        """Delete the doomed events of ids that span MOST_SEGMENTS or more segments."""
