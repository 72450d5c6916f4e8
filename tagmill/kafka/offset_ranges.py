"""Choose the records that a run reads: from the end of the last read to the last record that is committed in
Kafka now.
"""

from collections.abc import Iterable, Mapping, Sequence

from tagmill.domain.documents import Document
from tagmill.errors import ConfigurationError, RecordsLost, TopicRecreated
from tagmill.kafka.client import Kafka, Partition, Span

OWN_TABLES = "Give the new topic a pipeline and tables of its own"


class Range(Document):
    """Records of a topic's partition: offsets from `first` (inclusive) to `end` (exclusive), of which some
    may hold no record.
    """

    topic: str
    partition: int
    first: int
    end: int

    @property
    def topic_partition(self) -> Partition:
        """Topic and partition."""
        return self.topic, self.partition


def partitions_of(
    kafka: Kafka, pipeline: str, topics: Sequence[str], prefixes: Sequence[str]
) -> list[Partition]:
    """Return the partitions of the topics that are named or have one of the prefixes, by topic and partition.

    Raises ConfigurationError: a named topic doesn't exist.
    """
    there = kafka.topics()
    if missing := [topic for topic in topics if topic not in there]:
        raise ConfigurationError(
            f"pipelines.{pipeline}.topics: {kafka.where} has no topic {', '.join(missing)}. Nothing was read",
            pipeline=pipeline,
        )
    found = {*topics, *(topic for topic in there if topic.startswith(tuple(prefixes)))}
    return [(topic, partition) for topic in sorted(found) for partition in range(there[topic])]


def unread(
    pipeline: str,
    spans: Mapping[Partition, Span],
    read_to: Mapping[Partition, int],
    *,
    accept_lost: bool,
    go_on: str,
    ways_on: str = OWN_TABLES,
) -> tuple[list[Range], list[str]]:
    """Return the ranges to read, and warnings.

    A range without a record means that all unread records of its partition are lost, or that a topic's first run
    sees none in it; the partition then counts as read up to its end. Without another range the latter waits.

    Args:
        pipeline: the pipeline's name, for the message.
        spans: the offsets that Kafka has.
        read_to: the offset behind the last record that was read, of the partitions that were read.
        accept_lost: accept that records are lost.
        go_on: the command that accepts it.
        ways_on: what to do with a topic that is shorter than what was read of it.

    Raises RecordsLost: records are gone before they were read. Raises TopicRecreated: a topic is shorter than
    what was read of it.
    """
    ranges, warnings, is_any_unread = list[Range](), list[str](), False
    read_to = with_new_partitions(read_to, spans)
    for (topic, partition), span in spans.items():
        begin = read_to.get((topic, partition), span.first)
        wrong = misplaced((topic, partition), span, begin)
        if begin > span.end:
            raise TopicRecreated(f"{pipeline}: {wrong}. Nothing was read. {ways_on}", pipeline=pipeline)
        if wrong:
            if not accept_lost:
                raise RecordsLost(
                    f"{pipeline}: {wrong}. Nothing was read. To go on with what is there: {go_on}",
                    pipeline=pipeline,
                )
            warnings.append(wrong)
        elif span.first and (topic, partition) not in read_to:
            warnings.append(
                f"topic {topic}, partition {partition} is read for the first time, and begins at offset "
                f"{span.first}"
            )
        is_unread = wrong is not None or begin < span.end
        is_any_unread |= is_unread
        if is_unread or (span.end and (topic, partition) not in read_to):
            ranges.append(Range(topic=topic, partition=partition, first=max(begin, span.first), end=span.end))
    return ranges if is_any_unread else [], warnings


def with_new_partitions(
    read_to: Mapping[Partition, int], partitions: Iterable[Partition]
) -> dict[Partition, int]:
    """Add the partitions without a position of topics that are being read: each came, or got its first record,
    after the topic's first run, and begins at offset 0.
    """
    topics = {topic for topic, _ in read_to}
    return dict.fromkeys((one for one in partitions if one[0] in topics), 0) | dict(read_to)


def misplaced(partition: Partition, span: Span, begin: int) -> str | None:
    """Return what is wrong if records from `begin` on are to be read and Kafka has those of `span`; None:
    nothing is.
    """
    where = f"topic {partition[0]}, partition {partition[1]}"
    if begin > span.end:
        return f"{where} ends at offset {span.end}, but {begin} were read: it was made anew"
    if begin < span.first:
        return (
            f"{where}: {span.first - begin} records (offsets {begin} to {span.first - 1}) were gone "
            "from Kafka before they were read"
        )
    return None


def lost_records(ranges: Iterable[Range], spans: Mapping[Partition, Span]) -> list[str]:
    """Return a text for each of these ranges of which Kafka no longer has all offsets."""
    found = []
    for one in ranges:
        span = spans[one.topic_partition]
        left = max(0, min(one.end, span.end) - max(one.first, span.first))
        if gone := one.end - one.first - left:
            there = f"there are {span.first} to {span.end - 1}" if span.first < span.end else "none is there"
            of = f"(of offsets {one.first} to {one.end - 1}; {there})"
            found.append(f"topic {one.topic}, partition {one.partition}: {gone} records {of}")
    return found


def capped(ranges: Sequence[Range], most: int) -> list[Range]:
    """Shorten ranges to `most` records in total, in equal shares; a range shorter than its share leaves the
    rest to the others.

    Each range keeps at least one record, even if the total then exceeds `most`.
    """
    left, done = most, list[Range]()
    for number, one in enumerate(sorted(ranges, key=lambda one: one.end - one.first)):
        end = min(one.end, one.first + max(1, left // (len(ranges) - number)))
        done.append(one.model_copy(update={"end": end}))
        left -= end - one.first
    return sorted(done, key=lambda one: one.topic_partition)
