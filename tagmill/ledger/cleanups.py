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
from typing import Any

from tagmill.cassandra.client import Cassandra, needs_tables, utc
from tagmill.config.settings import Settings
from tagmill.domain import identifiers
from tagmill.domain.time_buckets import BucketSize, View, first_ticks
from tagmill.errors import WorkUnfinished
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
        self.keyspace, self.journal = journal, view.key(journal)
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
        rows = self.cassandra.execute(
            f"SELECT state FROM {self.table} WHERE journal = ? AND tag = ? AND timebucket = ?",
            self.journal,
            tag,
            timebucket,
        )
        if rows and rows[0].state != "CLEANED":
            return None
        size = self.view.size
        return self._once(tag, first_ticks(timebucket), timebucket + size.milliseconds, size)

    def total(self, tag: str, from_ticks: int) -> int:
        """Return how many rows of a tag were deleted from the bucket of `from_ticks` on, in this view and
        earlier ones.
        """
        return self._once(tag, from_ticks, END_OF_BUCKETS, BucketSize.DAY)

    def _once(self, tag: str, from_ticks: int, before: int, largest: BucketSize) -> int:
        """Count the rows that deletions took between the bucket of `from_ticks` and the one that begins at
        `before`, each once, from partitions of at most the size `largest`.

        What `rows_before` returned is part of a deletion's `rows`. So earlier deletions of smaller partitions
        within its bucket are left out.
        """
        sizes = {self.journal: self.view.size, **self.earlier}
        smallest = min(sizes.values(), key=_length)
        found, done = 0, dict[tuple[BucketSize, int], datetime]()
        for key, size in sorted(sizes.items(), key=lambda one: _length(one[1]), reverse=True):
            begin = size.start(from_ticks)
            larger = [one for one in BucketSize if _length(one) > _length(size)]
            if size == smallest:
                # No larger partition includes what lies before the first of them, so the server sums that up.
                first = max(begin, min((bucket for _, bucket in done), default=before))
                found += self._sum(key, tag, begin, first)
                begin = first
            for row in self._done(key, tag, begin, before) if begin < before else ():
                ticks, at = first_ticks(row.timebucket), utc(row.cleaned_at)
                is_included = any(done.get((one, one.start(ticks)), at) > at for one in larger)
                if _length(size) <= _length(largest) and not is_included:
                    found += row.rows
                if size != smallest:
                    done[size, row.timebucket] = max(at, done.get((size, row.timebucket), at))
        return found

    def _done(self, key: str, tag: str, from_bucket: int, before: int) -> Iterator[Any]:
        return self.cassandra.stream(
            f"SELECT timebucket, rows, cleaned_at FROM {self.table} WHERE journal = ? AND tag = ? AND "
            "timebucket >= ? AND timebucket < ? AND state = 'CLEANED' ALLOW FILTERING",
            key,
            tag,
            from_bucket,
            before,
        )

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

    def unfinished(self) -> list[tuple[str, Cleaning]]:
        """Return the deletions of the view, each with its pipeline, that are decided and perhaps not done, because
        the cleanup died in between.

        The tags are those on record: a pipeline may have lost a tag since.
        """
        recorded = self.cassandra.stream(f"SELECT DISTINCT journal, tag FROM {self.table}")
        tags = sorted(row.tag for row in recorded if row.journal == self.journal)
        query = (
            f"SELECT tag, timebucket, rows, pipeline, cleaned_at FROM {self.table} WHERE journal = ? AND tag = ? "
            "AND state = 'CLEANING' ALLOW FILTERING"
        )
        return [
            (row.pipeline, Cleaning(row.tag, row.timebucket, row.rows, utc(row.cleaned_at)))
            for tag in tags
            for row in self.cassandra.stream(query, self.journal, tag)
        ]

    def require_finished(self, settings: Settings, untouched: str) -> None:
        """Raise WorkUnfinished if a deletion of the view is decided and perhaps not done."""
        for decided_by, cleaning in self.unfinished():
            pipeline = finisher(settings, self.keyspace, decided_by, cleaning.tag)
            first = "finish it first" if pipeline else f"configure it with tag {cleaning.tag!r} again, then"
            name = pipeline or decided_by
            raise WorkUnfinished(
                f"a cleanup of pipeline {name} is not finished (tag {cleaning.tag!r}, timebucket "
                f"{cleaning.timebucket}). {untouched}; {first}: tagmill cleanup --pipeline {name} --yes",
                pipeline=name,
            )

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


def finisher(settings: Settings, journal: str, decided_by: str, tag: str) -> str | None:
    """Return the pipeline whose cleanup finishes a decided deletion: the one that decided it, else one that has its
    tag, preferably with cleanups enabled. None: the configuration has neither.
    """
    names = settings.on_journal(journal)
    with_tag = [name for name in names if tag in settings.pipeline(name).tags]
    if decided_by in (with_tag or names):
        return decided_by
    return min(with_tag, key=lambda name: not settings.pipeline(name).cleanup.enabled, default=None)


def _length(size: BucketSize) -> int:
    return size.milliseconds
