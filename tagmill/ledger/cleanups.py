"""The record of view partitions that cleanups have deleted, and the judgements of audits on existing
partitions.

CLEANING is the decision: its `cleaned_at` is the moment up to which writes are deleted, so a cleanup that
resumes deletes the same rows.
CLEANED: the deletion is done, and `cleaned_at` says when. `rows` counts all rows that were ever deleted from
the partition.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from tagmill.cassandra.client import Cassandra, needs_tables, utc
from tagmill.domain import identifiers
from tagmill.domain.time_buckets import View
from tagmill.ledger.view_tables import JournalViews
from tagmill.ledger.write_times import WriteTimes, foreign

TABLES = ("audited_buckets", "cleaned_buckets")
END_OF_BUCKETS = 2**62


@dataclass(frozen=True, slots=True)
class AuditedBucket:
    """The judgement of a pipeline's newest audit on a partition."""

    audited_at: datetime
    rows: int
    agrees: bool


@dataclass(frozen=True, slots=True)
class Cleaning:
    """A decided deletion of everything that was written to a partition up to `up_to`."""

    tag: str
    timebucket: int
    rows: int
    up_to: datetime


class CleanupLog:
    """The record of cleanups of one journal keyspace."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, journal: str, view: View) -> None:
        """Open the record for `view`, the one that is cleaned; cleanups of earlier views stay on record next
        to it.
        """
        needs_tables(cassandra, ledger_keyspace, TABLES)
        self.cassandra = cassandra
        self.write_times = WriteTimes(cassandra, ledger_keyspace)
        self.view = view
        self.journal = view.key(journal)
        earlier = JournalViews(cassandra, ledger_keyspace, journal).earlier(view)
        self.earlier = {one.key(journal): one.size for one in earlier}
        self.audited_table = f"{identifiers.cql(ledger_keyspace)}.audited_buckets"
        self.table = f"{identifiers.cql(ledger_keyspace)}.cleaned_buckets"

    def any_of(self, tags: Iterable[str]) -> bool:
        """Return whether a cleanup took, or is to take, a partition of one of these tags from any view that the
        journal had.
        """
        keys = [(journal, tag) for journal in (self.journal, *self.earlier) for tag in tags]
        query = f"SELECT timebucket FROM {self.table} WHERE journal = ? AND tag = ? LIMIT 1"
        return any(self.cassandra.execute_many(query, keys))

    def audited(self, pipeline: str, keys: Iterable[tuple[str, int]]) -> Iterator[AuditedBucket | None]:
        """Yield the newest audit's judgement on each (tag, timebucket) of its view, in order; None: there is
        none.

        Raises ForeignWriteTime: a row has a later write time than its audit gives.
        """
        base = self.write_times.base(pipeline)
        found = self.cassandra.execute_many(
            "SELECT tag, timebucket, audited_at, rows, agrees, audit, WRITETIME(agrees) AS written"
            f" FROM {self.audited_table} WHERE pipeline = ? AND tag = ? AND timebucket = ?",
            ((self.view.key(pipeline), tag, bucket) for tag, bucket in keys),
        )
        for rows in found:
            word = rows[0] if rows else None
            if word is not None and (word.written or 0) > base + word.audit:
                raise foreign(
                    pipeline,
                    f"the audit of tag {word.tag!r}, timebucket {word.timebucket}",
                    "Nothing was deleted",
                )
            own = word is not None and word.written in (word.audit, base + word.audit)
            yield AuditedBucket(utc(word.audited_at), word.rows, word.agrees) if word and own else None

    def rows_before(self, tag: str, timebucket: int) -> int | None:
        """Return how many rows earlier cleanups deleted from a partition; None: a deletion of it is decided
        and not done.

        The partition may have late rows again. The figure includes the smaller partitions of an earlier view
        that it covers. Larger ones are left out, because the partition's share of them isn't known.
        """
        size = self.view.size.milliseconds
        before = sum(
            self._sum(key, tag, timebucket, timebucket + size)
            for key, earlier in self.earlier.items()
            if earlier.milliseconds < size
        )
        rows = self.cassandra.execute(
            f"SELECT state, rows FROM {self.table} WHERE journal = ? AND tag = ? AND timebucket = ?",
            self.journal,
            tag,
            timebucket,
        )
        if not rows:
            return before
        return before + int(rows[0].rows) if rows[0].state == "CLEANED" else None

    def total(self, tag: str, from_ticks: int) -> int:
        """Return how many rows of a tag were deleted from the bucket of `from_ticks` on, in this view and
        earlier ones.
        """
        sizes = {self.journal: self.view.size, **self.earlier}
        return sum(self._sum(key, tag, size.start(from_ticks), END_OF_BUCKETS) for key, size in sizes.items())

    def _sum(self, key: str, tag: str, from_bucket: int, before: int) -> int:
        rows = self.cassandra.execute(
            f"SELECT sum(rows) AS rows FROM {self.table} WHERE journal = ? AND tag = ? AND timebucket >= "
            "? AND timebucket < ?"
            " AND state = 'CLEANED' ALLOW FILTERING",
            key,
            tag,
            from_bucket,
            before,
        )
        return int(rows[0].rows or 0)

    def unfinished(self, tag: str) -> list[Cleaning]:
        """Return the deletions of a tag that are decided and perhaps not done, because the cleanup died in
        between.
        """
        return [
            Cleaning(tag, row.timebucket, row.rows, utc(row.cleaned_at))
            for row in self.cassandra.stream(
                f"SELECT timebucket, rows, cleaned_at FROM {self.table} WHERE journal = ? AND tag = ? "
                "AND state = 'CLEANING'"
                " ALLOW FILTERING",
                self.journal,
                tag,
            )
        ]

    def is_unfinished(self, tags: Iterable[str]) -> bool:
        """Return whether any deletion of these tags is decided and perhaps not done."""
        return any(self.unfinished(tag) for tag in tags)

    def decide(self, pipeline: str, cleaning: Cleaning) -> None:
        """Record a deletion as decided (CLEANING); from now on its partition counts as one that is being
        deleted.
        """
        self._write(pipeline, cleaning, "CLEANING", cleaning.up_to)

    def done(self, pipeline: str, cleaning: Cleaning) -> None:
        """Record a deletion as done (CLEANED)."""
        self._write(pipeline, cleaning, "CLEANED", self.cassandra.now())

    def _write(self, pipeline: str, cleaning: Cleaning, state: str, at: datetime) -> None:
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (journal, tag, timebucket, state, rows, pipeline, cleaned_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(self.journal, cleaning.tag, cleaning.timebucket, state, cleaning.rows, pipeline, at)],
        )
