"""Leave out of delivery what a person has set apart: a topic's records become dead letters, its columns null.

Pure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from tagmill.domain.documents import Document
from tagmill.kafka.offset_ranges import Range

# Topic, partition and offset.
RecordPosition = tuple[str, int, int]
REASON = "set apart: "
_RECORD = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})/(?P<partition>\d{1,9})/(?P<offset>\d{1,18})")


class Apart(Document):
    """What one run leaves out because a person has set it apart.

    `records`: topic, partition, offset and reason; `batches`: those whose ids do not count as delivered;
    `ids`: of a Kafka Journal, whose events are left out.
    """

    records: list[tuple[str, int, int, str]] = []
    columns: list[str] = []
    batches: list[str] = []
    ids: list[str] = []

    @property
    def reasons(self) -> dict[RecordPosition, str]:
        """The reason for which each record is set apart."""
        return {(topic, partition, offset): REASON + why for topic, partition, offset, why in self.records}

    def warnings(self) -> Iterator[str]:
        """Yield a warning for each reason why a run delivers less than it reads: records, columns or ids that
        are set apart.
        """
        if self.records:
            yield f"{len(self.records)} records are set apart: they become dead letters"
        if self.columns:
            yield f"{', '.join(self.columns)}: set apart, delivered as null until tagmill run take-back"
        if self.ids:
            yield (
                f"{len(self.ids)} ids are set apart, not delivered until tagmill run take-back; first: "
                f"{self.ids[0]!r}"
            )


class Since(Document):
    """The offsets from which the events of an id were left out, by topic and partition (missing: from 0).

    `delivered`: batch files that may have some of these events.
    """

    places: list[tuple[str, int, int]]
    delivered: list[str] = []


def record_of(item: str) -> RecordPosition | None:
    """Return the record that 'topic/partition/offset' names; None for other text."""
    found = _RECORD.fullmatch(item)
    return (found["topic"], int(found["partition"]), int(found["offset"])) if found else None


def of_topic(items: Iterable[str], topic: str) -> list[str]:
    """Return those of the items that name a record of this topic."""
    return [item for item in items if (record := record_of(item)) and record[0] == topic]


def within(records: Mapping[str, str], ranges: Sequence[Range]) -> list[tuple[str, int, int, str]]:
    """Return the records (topic, partition, offset, why) that lie in the ranges of a run."""
    spans = {one.topic_partition: one for one in ranges}
    chosen = ((record_of(item), why) for item, why in records.items())
    return [
        (*record, why)
        for record, why in chosen
        if record and (span := spans.get(record[:2])) and span.first <= record[2] < span.end
    ]


def parts(
    batch: pa.RecordBatch, reasons: Mapping[RecordPosition, str]
) -> Iterator[tuple[pa.RecordBatch, str | None]]:
    """Split records into parts to read, and parts of one record that is set apart, with its reason."""
    begin = 0
    if reasons:
        positions = zip(*(batch[name].to_pylist() for name in ("topic", "partition", "offset")), strict=True)
        for at, position in enumerate(positions):
            if position in reasons:
                if at > begin:
                    yield batch.slice(begin, at - begin), None
                yield batch.slice(at, 1), reasons[position]
                begin = at + 1
    if begin < batch.num_rows or not batch.num_rows:
        yield batch.slice(begin), None
