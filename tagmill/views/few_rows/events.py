"""Read the new events of few persistence ids, as event_reader.Reader does with Spark.

An atomic write is in the partition of its highest sequence_nr, so behind an event of partition n, the next one is in
n, n + 1 or n + 2.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from tagmill.cassandra.client import Cassandra
from tagmill.cassandra.paging import Pages
from tagmill.journal.event_batches import rows_of_events
from tagmill.journal.frames import ID, JournalSchema
from tagmill.journal.tag_view_reader import SEARCHED_PARTITIONS
from tagmill.views.event_reader import PARTITIONS_AT_ONCE, REACH, first_new_events
from tagmill.views.few_rows.positions import Position, TooMany

# Queries under way at once.
AHEAD = 16
# Persistence ids by whose new events those of all are estimated, so that too many are noticed early.
SAMPLE = 500
Partitions = dict[str, int]  # the partition to read from, by persistence_id


class EventReader:
    """Reads at most `most` events, and at most `most_bytes` of them; raises TooMany where there are more."""

    def __init__(
        self, cassandra: Cassandra, pages: Pages, journal: JournalSchema, most: int, most_bytes: int
    ) -> None:
        self.cassandra, self.pages, self.journal = cassandra, pages, journal
        self.most, self.most_bytes = most, most_bytes
        self.table = journal.names.cql(journal.names.messages)
        self.columns = ", ".join(journal.columns)

    def new_events(self, positions: Sequence[Position]) -> list[pa.RecordBatch]:
        """Return the events behind these positions as rows of messages; of a first build, all events that the table
        has, maybe of other persistence ids, too.
        """
        if not any(one.known for one in positions):
            from_nr = {one.persistence_id: one.from_nr for one in positions if one.reason is None}
            return self._kept(_without_built(page, from_nr) for page in self._whole_table())
        taken = [one for one in positions if one.reason is None]
        some, others = taken[:SAMPLE], taken[SAMPLE:]
        kept = self._kept(self._behind(some))
        if others and sum(page.num_rows for page in kept) * len(taken) > self.most * len(some):
            raise TooMany
        return self._kept(chain(kept, self._behind(others)))

    def _behind(self, positions: Sequence[Position]) -> Iterator[pa.RecordBatch]:
        """Yield the events behind these positions."""
        partitions = self._of_known(
            [one for one in positions if one.known and one.deleted_to <= one.sequence_nr]
        )
        partitions |= self._behind_deletions([one for one in positions if one.deleted_to > one.sequence_nr])
        for one in positions:
            if not one.known:
                partitions.setdefault(one.persistence_id, 0)
        yield from self._partitions(partitions, {one.persistence_id: one.from_nr for one in positions})

    def _kept(self, pages: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        kept, rows, size = list[pa.RecordBatch](), 0, 0
        for page in pages:
            rows, size = rows + page.num_rows, size + page.nbytes
            if rows > self.most or size > self.most_bytes:
                raise TooMany
            if page.num_rows:
                kept.append(page)
        return kept

    def _whole_table(self) -> Iterator[pa.RecordBatch]:
        return map(rows_of_events, self.pages.of(f"SELECT {self.columns} FROM {self.table}"))

    def _of_known(self, positions: Sequence[Position]) -> Partitions:
        """Return the known persistence ids that have new events, each with the partition of its last event built."""
        lines = [
            {ID: one.persistence_id, "from_nr": one.from_nr, "first": one.partition_nr} for one in positions
        ]
        return {
            line[ID]: line["first"] for line in first_new_events(self.journal.names, self.cassandra, lines)
        }

    def _behind_deletions(self, positions: Sequence[Position]) -> Partitions:
        """Return of each persistence id the partition of the first event behind deleted_to, or where to begin if that
        event isn't found.
        """
        found = {one.persistence_id: one.partition_nr for one in positions}
        query = (
            f"SELECT partition_nr FROM {self.table} WHERE {ID} = ? AND partition_nr IN ? AND sequence_nr = ?"
        )
        remaining, first = list(positions), 0
        while remaining:
            asked = [_searched(one)[first : first + PARTITIONS_AT_ONCE] for one in remaining]
            keys = (
                (one.persistence_id, list(partitions), one.from_nr + 1)
                for one, partitions in zip(remaining, asked, strict=True)
            )
            left, first = list[Position](), first + PARTITIONS_AT_ONCE
            for one, rows in zip(
                remaining, self.cassandra.application.execute_many(query, keys), strict=True
            ):
                if rows:
                    found[one.persistence_id] = min(row.partition_nr for row in rows)
                elif first < len(_searched(one)):
                    left.append(one)
            remaining = left
        return found

    def _partitions(self, partitions: Partitions, from_nr: dict[str, int]) -> Iterator[pa.RecordBatch]:
        """Yield the events behind from_nr in the partitions from these on, until no event is met further on."""
        marks = ", ".join("?" * REACH)
        query = (
            f"SELECT {self.columns} FROM {self.table} WHERE {ID} = ? AND partition_nr IN ({marks}) "
            "AND sequence_nr > ?"
        )
        while partitions:
            keys = ((one, *range(first, first + REACH), from_nr[one]) for one, first in partitions.items())
            reached = Partitions()
            for page in map(rows_of_events, self.pages.of_each(query, keys, AHEAD)):
                yield page
                for one, partition_nr in _last_partitions(page):
                    reached[one] = max(partition_nr, reached.get(one, partition_nr))
            partitions = {one: last + 1 for one, last in reached.items() if last > partitions[one]}


def _searched(position: Position) -> range:
    """Return the partitions that the first event behind deleted_to may be in."""
    begin = position.partition_nr
    return range(begin, begin + min(position.from_nr, SEARCHED_PARTITIONS) + 1)


def _last_partitions(rows: pa.RecordBatch) -> Iterator[tuple[str, int]]:
    last = pa.table([rows[ID], rows["partition_nr"]], [ID, "last"]).group_by(ID).aggregate([("last", "max")])
    return zip(last[ID].to_pylist(), last["last_max"].to_pylist(), strict=True)


def _without_built(rows: pa.RecordBatch, from_nr: dict[str, int]) -> pa.RecordBatch:
    """Return the rows that are behind the from_nr of their persistence_id."""
    least = pa.array([from_nr.get(one, 0) for one in rows[ID].to_pylist()], pa.int64())
    return rows.filter(pc.greater(rows["sequence_nr"], least))
