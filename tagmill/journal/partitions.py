"""Find the partitions of messages that hold the events below a sequence_nr, however many empty partitions lie
between them.
"""

from collections.abc import Iterator

from tagmill.cassandra.client import Cassandra

# Partitions that the first query asks for (most persistence ids have one), and that any query asks for at
# most.
FIRST, MOST = 3, 64
QUERIES_AT_ONCE = 16
# Partitions that are searched at most while no event limits their number.
MOST_SEARCHED = 65_536


def partitions_before(cassandra: Cassandra, messages: str, persistence_id: str, before: int) -> Iterator[int]:
    """Yield in order the partition_nrs that have events of a persistence_id with a sequence_nr below
    `before`.

    The plugin puts an event into partition (number - 1) / size, where the number is the highest of its atomic
    write. So an event with number s in partition p says that the size is at least s / (p + 1), and in which
    partition those below `before` end at the latest. `messages` is the quoted table.
    """
    begin, size, end = 0, FIRST, min(before, MOST_SEARCHED)
    while begin < end:
        found = _filled(cassandra, messages, persistence_id, begin, min(end, begin + size))
        for partition, first in found:
            if first >= before:
                return
            yield partition
        if found:
            partition = found[-1][0]
            last = _last(cassandra, messages, persistence_id, partition)
            if last >= before:
                return
            end = min(MOST_SEARCHED, before * (partition + 1) // last + 2)
        begin, size = begin + size, min(8 * size, MOST * QUERIES_AT_ONCE)


def _filled(
    cassandra: Cassandra, messages: str, persistence_id: str, begin: int, end: int
) -> list[tuple[int, int]]:
    """Return in order (partition_nr, lowest sequence_nr) of the partitions from `begin` to `end` (exclusive)
    that have events.
    """
    asked = [
        (persistence_id, list(range(first, min(end, first + MOST)))) for first in range(begin, end, MOST)
    ]
    answers = cassandra.execute_many(
        f"SELECT partition_nr, sequence_nr FROM {messages} WHERE persistence_id = ? AND partition_nr IN "
        "? PER PARTITION LIMIT 1",
        asked,
        concurrency=QUERIES_AT_ONCE,
    )
    # A partition of the oldest schema may have a static column and no event.
    found = [
        (row.partition_nr, row.sequence_nr) for rows in answers for row in rows if row.sequence_nr is not None
    ]
    return sorted(found)


def _last(cassandra: Cassandra, messages: str, persistence_id: str, partition: int) -> int:
    rows = cassandra.execute(
        f"SELECT sequence_nr FROM {messages} WHERE persistence_id = ? AND partition_nr = ? ORDER BY "
        "sequence_nr DESC LIMIT 1",
        persistence_id,
        partition,
    )
    return int(rows[0].sequence_nr or 1) if rows else 1
