"""The state of the builds of tag views: one row per journal in view_builds, moved by lightweight
transactions.

A build is SEALED when its events and numbers are fixed as files, DONE when all of them are in Cassandra.
Every move says IF build = ? AND fence = ?, so a builder that wakes up late changes nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from cassandra import ConsistencyLevel

from tagmill.cassandra.client import Cassandra, needs_tables
from tagmill.domain import identifiers
from tagmill.domain.timeuuid import from_datetime
from tagmill.errors import ViewDiffers
from tagmill.ledger.fenced_record import FencedRecord
from tagmill.ledger.view_tables import JournalViews
from tagmill.ledger.write_times import NOT_AS_WRITTEN, WriteTimes, foreign

SERIAL = ConsistencyLevel.SERIAL


class BuildState(StrEnum):
    """The state of a build."""

    SEALED = "SEALED"
    DONE = "DONE"


@dataclass(frozen=True, slots=True)
class BuildRow:
    """The newest build of a journal.

    `build` is 0 before the first one, `written_at` is in microseconds, `built_to` in ticks (None before the
    first build).
    """

    journal: str
    build: int
    state: BuildState
    fence: int
    attempt: UUID
    owner: str
    bucket_size: str
    manifest_file: str | None
    manifest_sha256: str | None
    written_at: int
    built_to: int | None


FIELDS = ", ".join(BuildRow.__dataclass_fields__)


class Builds:
    """The builds of one journal keyspace."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, journal: str) -> None:
        self.cassandra = cassandra
        self.journal = journal
        # The build that this process has sealed or taken over and not finished, 0 for none.
        self.sealed = 0
        self.ledger_keyspace = ledger_keyspace
        self.ledger = identifiers.cql(ledger_keyspace)
        self.table = f"{self.ledger}.view_builds"
        self.write_times = WriteTimes(cassandra, ledger_keyspace)
        needs_tables(cassandra, ledger_keyspace, ["view_builds"])
        self.record = FencedRecord(
            cassandra,
            self.table,
            {"journal": journal},
            self.newest,
            f"the build of journal {journal}",
            "This one numbered nothing; the other one goes on",
        )

    def newest(self) -> BuildRow | None:
        """Return the newest build; None: the journal was never built."""
        rows = self.cassandra.execute(
            f"SELECT {FIELDS} FROM {self.table} WHERE journal = ?", self.journal, consistency=SERIAL
        )
        if not rows or rows[0].state is None:
            return None
        return BuildRow(**{**rows[0]._asdict(), "state": BuildState(rows[0].state)})

    def look(self, bucket_size: str) -> BuildRow:
        """Return the newest build as a takeover would find it, without raising the fence.

        Raises ViewDiffers as `take_over`.
        """
        known = self._known(bucket_size)
        first = BuildRow(
            self.journal, 0, BuildState.DONE, 0, UUID(int=0), "", bucket_size, None, None, 0, None
        )
        return self._noted(known or first)

    def take_over(self, owner: str, bucket_size: str) -> BuildRow:
        """Raise the fence, so that an earlier builder can no longer change a number. Raises FenceRaised.

        Raises ViewDiffers: the view was built with another bucket size.
        """
        self.cassandra.check_clocks()
        known = self._known(bucket_size)
        if known is None:
            first = {"build": 0, "state": BuildState.DONE.value, "bucket_size": bucket_size, "written_at": 0}
            return self._noted(self.record.begin(owner, first))
        return self._noted(self.record.take_over(known, owner, {"bucket_size": bucket_size}))

    def _known(self, bucket_size: str) -> BuildRow | None:
        """Return the newest build; raises ViewDiffers if it and the view in force have buckets of another size."""
        known = self.newest()
        if known is None or not known.build or known.bucket_size == bucket_size:
            return known
        # A switch that was killed behind its commit has not told the builds the new size.
        views = JournalViews(self.cassandra, self.ledger_keyspace, self.journal).standing()
        if views is None or views.view.size.value != bucket_size:
            raise ViewDiffers(
                f"the view of journal {self.journal} is built with bucket size {known.bucket_size}, the "
                "pipeline says "
                f"{bucket_size}. Nothing was written; set bucket_size back (rows in buckets of two sizes "
                "would be lost to readers)"
            )
        return known

    def _noted(self, row: BuildRow) -> BuildRow:
        self.sealed = row.build if row.state == BuildState.SEALED else 0
        return row

    def untouched(self) -> str:
        """Return a sentence that says what a failure at this moment leaves behind, for the error's
        message.
        """
        if not self.sealed:
            return "Nothing was sealed"
        return (
            f"Build {self.sealed} of journal {self.journal} is sealed and perhaps half written; the "
            "next one finishes it"
        )

    def seal(self, row: BuildRow, file: str, sha256: str, written_at: int) -> BuildRow:
        """Commit the next build, which the manifest and its files fix; raises FenceRaised."""
        changes = {
            "build": row.build + 1,
            "state": BuildState.SEALED.value,
            "manifest_file": file,
            "manifest_sha256": sha256,
            "written_at": written_at,
            "sealed_at": self.cassandra.now(),
        }
        self.record.move(row.fence, _expected(row), changes, lambda now: now.manifest_file == file)
        self.sealed = row.build + 1
        return self.current(row.fence)

    def finish(self, row: BuildRow, built_to: int) -> None:
        """Finish a build, SEALED → DONE, or note a DONE one that found nothing new; raises FenceRaised.

        `built_to` is in ticks; 0: nothing was ever built.
        """
        changes = {"built_to": self._built_to(row, built_to) or None, "done_at": self.cassandra.now()}
        self.record.finish(row.fence, _expected(row), BuildState.DONE.value, changes)
        self.sealed = 0

    def _built_to(self, row: BuildRow, built_to: int) -> int:
        """Return how far the view is built (ticks); it goes back only if a wrong clock has put it into the
        future.
        """
        known = row.built_to or 0
        return built_to if known > from_datetime(self.cassandra.now()) else max(built_to, known)

    def rebucketed(self, row: BuildRow, bucket_size: str) -> None:
        """Record that builds write to a view with buckets of another size from now on; raises FenceRaised."""
        changes = {"bucket_size": bucket_size}
        self.record.move(row.fence, _expected(row), changes, lambda now: now.bucket_size == bucket_size)

    def current(self, fence: int) -> BuildRow:
        """Return the newest build if this fence is still in force; raises FenceRaised otherwise."""
        return self.record.current(fence)

    def numbered_to(self, persistence_id: str) -> int:
        """Return the sequence_nr up to which builds have numbered a persistence_id, 0 if none has."""
        rows = self.cassandra.execute(
            f"SELECT sequence_nr FROM {self.ledger}.view_progress WHERE journal = ? AND persistence_id = ?",
            self.journal,
            persistence_id,
        )
        return int(rows[0].sequence_nr or 0) if rows else 0

    def forget(self, persistence_ids: Iterable[str], written_at: int) -> None:
        """Delete the record of what builds have numbered of these persistence ids.

        `written_at` (microseconds) must not be earlier than anything that a build has written so far.
        """
        self.cassandra.write_many(
            f"DELETE FROM {self.ledger}.view_progress USING TIMESTAMP ? WHERE journal = ? AND "
            "persistence_id = ?",
            ((written_at, self.journal, one) for one in persistence_ids),
        )

    # -- rows that come late

    def add_late(self, build: int, earliest: dict[str, int]) -> None:
        """Record for each tag the earliest tick of a build's late rows, those at or before the end of the
        previous build.
        """
        self.cassandra.write_many(
            f"INSERT INTO {self.ledger}.view_late (journal, tag, build, from_ticks) VALUES (?, ?, ?, ?)",
            ((self.journal, tag, build, ticks) for tag, ticks in earliest.items()),
        )

    def late(self, pipeline: str) -> dict[str, int]:
        """Return by tag the tick from which a delivery has to read again.

        From there on lie late rows of builds that it has not read yet, or has read only in part.
        """
        seen, found = self._seen(pipeline)
        for row in self.cassandra.stream(
            f"SELECT tag, build, from_ticks FROM {self.ledger}.view_late WHERE journal = ?", self.journal
        ):
            if row.build > seen.get(row.tag, 0):
                found[row.tag] = min(row.from_ticks, found.get(row.tag, row.from_ticks))
        return found

    def _seen(self, pipeline: str) -> tuple[dict[str, int], dict[str, int]]:
        """Return by tag the newest build whose late rows a delivery has read, and by tag the tick from which
        it read only a part.
        """
        seen = self.cassandra.execute(
            f"SELECT tag, build FROM {self.ledger}.view_seen WHERE pipeline = ?", pipeline
        )
        left = self.cassandra.execute(
            f"SELECT tag, from_ticks FROM {self.ledger}.view_left WHERE pipeline = ?", pipeline
        )
        return {row.tag: row.build for row in seen}, {
            row.tag: row.from_ticks for row in left if row.from_ticks is not None
        }

    def has_seen(
        self, pipeline: str, run: int, build: int, tags: Sequence[str], left: Mapping[str, int]
    ) -> None:
        """Record that a closed run has read the late rows of all builds up to `build`.

        Of a tag in `left` it has read only those before the tick there. Raises ForeignWriteTime: the record
        does not read back as written.
        """
        written = self.write_times.of(pipeline, run)
        self.cassandra.write_many(
            f"INSERT INTO {self.ledger}.view_left (pipeline, tag, from_ticks) VALUES (?, ?, ?) USING "
            "TIMESTAMP ?",
            ((pipeline, tag, left.get(tag), written) for tag in tags),
        )
        self.cassandra.write_many(
            f"INSERT INTO {self.ledger}.view_seen (pipeline, tag, build) VALUES (?, ?, ?) USING TIMESTAMP ?",
            ((pipeline, tag, build, written) for tag in tags),
        )
        seen, still_left = self._seen(pipeline)
        for tag in tags:
            if seen.get(tag) != build or still_left.get(tag) != left.get(tag):
                raise foreign(pipeline, f"the newest build that was read of tag {tag!r}", NOT_AS_WRITTEN)


def _expected(row: BuildRow) -> dict[str, int]:
    return {"build": row.build}
