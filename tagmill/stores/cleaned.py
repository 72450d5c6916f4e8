"""Partitions of a journal's view that cleanups have deleted, and what audits say of those that are there.

CLEANING is the decision: its `cleaned_at` is the moment up to which writes are deleted, so whoever goes on deletes the same. CLEANED:
it is done, `cleaned_at` says when. `rows`: all that were ever deleted of the partition.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from tagmill import names
from tagmill.buckets import View
from tagmill.ledger.write_times import WriteTimes, foreign
from tagmill.stores.cassandra import Cassandra, needs_tables, utc
from tagmill.stores.journalviews import JournalViews

TABLES = ("audited_buckets", "cleaned_buckets")
END_OF_BUCKETS = 2**62


@dataclass(frozen=True, slots=True)
class AuditedBucket:
    """What the newest audit of a pipeline says of a partition."""

    audited_at: datetime
    rows: int
    agrees: bool


@dataclass(frozen=True, slots=True)
class Cleaning:
    """A deletion that is decided; up to `up_to` everything in the partition goes."""

    tag: str
    timebucket: int
    rows: int
    up_to: datetime


class Cleaned:
    """The record of one journal keyspace."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, journal: str, view: View) -> None:
        """`view`: the one that is cleaned; what was cleaned of earlier ones stays on record beside it."""
        needs_tables(cassandra, ledger_keyspace, TABLES)
        self.cassandra = cassandra
        self.write_times = WriteTimes(cassandra, ledger_keyspace)
        self.view = view
        self.journal = view.key(journal)
        earlier = JournalViews(cassandra, ledger_keyspace, journal).earlier(view)
        self.earlier = {one.key(journal): one.size for one in earlier}
        self.audited_table = f"{names.cql(ledger_keyspace)}.audited_buckets"
        self.table = f"{names.cql(ledger_keyspace)}.cleaned_buckets"

    def audited(self, pipeline: str, keys: Iterable[tuple[str, int]]) -> Iterator[AuditedBucket | None]:
        """Yield the word on each (tag, timebucket) of its view, in their order; raise ForeignWriteTime where no audit has written it."""
        base = self.write_times.base(pipeline)
        found = self.cassandra.execute_many(
            "SELECT tag, timebucket, audited_at, rows, agrees, audit, WRITETIME(agrees) AS written"
            f" FROM {self.audited_table} WHERE pipeline = ? AND tag = ? AND timebucket = ?",
            ((self.view.key(pipeline), tag, bucket) for tag, bucket in keys),
        )
        for rows in found:
            word = rows[0] if rows else None
            if word is not None and (word.written or 0) > base + word.audit:
                raise foreign(pipeline, f"the audit of tag {word.tag!r}, timebucket {word.timebucket}", "Nothing was deleted")
            own = word is not None and word.written in (word.audit, base + word.audit)
            yield AuditedBucket(utc(word.audited_at), word.rows, word.agrees) if word and own else None

    def rows_before(self, tag: str, timebucket: int) -> int | None:
        """Rows that earlier cleanups deleted of a partition (late ones may lie in it now); None: another one is at it.

        With those of the smaller partitions of an earlier view that it covers; of a larger one the share isn't known.
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
        """Rows deleted of a tag, from the bucket of a moment on; also those of earlier views."""
        sizes = {self.journal: self.view.size, **self.earlier}
        return sum(self._sum(key, tag, size.start(from_ticks), END_OF_BUCKETS) for key, size in sizes.items())

    def _sum(self, key: str, tag: str, from_bucket: int, before: int) -> int:
        rows = self.cassandra.execute(
            f"SELECT sum(rows) AS rows FROM {self.table} WHERE journal = ? AND tag = ? AND timebucket >= ? AND timebucket < ?"
            " AND state = 'CLEANED' ALLOW FILTERING", key, tag, from_bucket, before,
        )  # fmt: skip
        return int(rows[0].rows or 0)

    def unfinished(self, tag: str) -> list[Cleaning]:
        """What was decided, and perhaps not done: the deleter died in between."""
        return [
            Cleaning(tag, row.timebucket, row.rows, utc(row.cleaned_at))
            for row in self.cassandra.stream(
                f"SELECT timebucket, rows, cleaned_at FROM {self.table} WHERE journal = ? AND tag = ? AND state = 'CLEANING'"
                " ALLOW FILTERING", self.journal, tag,
            )
        ]  # fmt: skip

    def is_unfinished(self, tags: Iterable[str]) -> bool:
        """Whether anything was decided of these tags, and perhaps not done."""
        return any(self.unfinished(tag) for tag in tags)

    def decide(self, pipeline: str, cleaning: Cleaning) -> None:
        """From now on the partition counts as one that goes."""
        self._write(pipeline, cleaning, "CLEANING", cleaning.up_to)

    def done(self, pipeline: str, cleaning: Cleaning) -> None:
        """It is gone."""
        self._write(pipeline, cleaning, "CLEANED", self.cassandra.now())

    def _write(self, pipeline: str, cleaning: Cleaning, state: str, at: datetime) -> None:
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (journal, tag, timebucket, state, rows, pipeline, cleaned_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(self.journal, cleaning.tag, cleaning.timebucket, state, cleaning.rows, pipeline, at)],
        )
