"""The state of the replication of a Kafka Journal: one row per pipeline in replications, moved by lightweight
transactions.

A replication is SEALED when what its records do is fixed as files, DONE when all of it is in Cassandra. Every
move says IF replication = ? AND fence = ?, so a replicator that wakes up late changes nothing.
"""

from dataclasses import dataclass
from uuid import UUID, uuid4

from cassandra import ConsistencyLevel

from tagmill.cassandra.client import Cassandra, needs_tables
from tagmill.domain import identifiers
from tagmill.errors import FenceRaised

SERIAL = ConsistencyLevel.SERIAL
SEALED, DONE = "SEALED", "DONE"


@dataclass(frozen=True, slots=True)
class ReplicationRow:
    """The newest replication of a pipeline; `replication` is 0 before the first one, `written_at` is in
    microseconds.
    """

    pipeline: str
    replication: int
    state: str
    fence: int
    attempt: UUID
    owner: str
    manifest_file: str | None
    manifest_sha256: str | None
    written_at: int


FIELDS = ", ".join(ReplicationRow.__dataclass_fields__)


class Replications:
    """The replications of one pipeline."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        self.cassandra = cassandra
        self.pipeline = pipeline
        self.table = f"{identifiers.cql(ledger_keyspace)}.replications"
        needs_tables(cassandra, ledger_keyspace, ["replications", "dead_letters", "dead_letter_places"])

    def newest(self) -> ReplicationRow | None:
        """Return the newest replication; None: nothing was replicated yet."""
        rows = self.cassandra.execute(
            f"SELECT {FIELDS} FROM {self.table} WHERE pipeline = ?", self.pipeline, consistency=SERIAL
        )
        return ReplicationRow(*rows[0]) if rows and rows[0].state else None

    def take_over(self, owner: str) -> ReplicationRow:
        """Raise the fence, so that an earlier replicator can no longer seal; raises FenceRaised."""
        self.cassandra.check_clocks()
        attempt, known = uuid4(), self.newest()
        if known is None:
            taken = self.cassandra.transact(
                f"INSERT INTO {self.table} (pipeline, replication, state, fence, attempt, owner, written_at)"
                " VALUES (?, 0, ?, 1, ?, ?, 0) IF NOT EXISTS",
                self.pipeline,
                DONE,
                attempt,
                owner,
                landed=lambda: self._is_attempt(attempt),
            )
        else:
            taken = self.cassandra.transact(
                f"UPDATE {self.table} SET fence = ?, attempt = ?, owner = ? WHERE pipeline = ? IF fence = ?",
                known.fence + 1,
                attempt,
                owner,
                self.pipeline,
                known.fence,
                landed=lambda: self._is_attempt(attempt),
            )
        found = self.newest()
        if not taken or found is None or found.attempt != attempt:
            raise self._lost()
        return found

    def seal(self, row: ReplicationRow, file: str, sha256: str, written_at: int) -> ReplicationRow:
        """Commit the next replication, which the manifest and its files fix; raises FenceRaised."""
        return self._moved(
            self.cassandra.transact(
                f"UPDATE {self.table} SET replication = ?, state = ?, manifest_file = ?, manifest_sha256 "
                "= ?, written_at = ?,"
                " sealed_at = ? WHERE pipeline = ? IF replication = ? AND fence = ?",
                row.replication + 1,
                SEALED,
                file,
                sha256,
                written_at,
                self.cassandra.now(),
                self.pipeline,
                row.replication,
                row.fence,
                landed=lambda: self.current(row.fence).manifest_file == file,
            ),
            row.fence,
        )

    def restamp(self, row: ReplicationRow, written_at: int) -> ReplicationRow:
        """Give a sealed replication a later write time from now on; raises FenceRaised."""
        return self._moved(
            self.cassandra.transact(
                f"UPDATE {self.table} SET written_at = ? WHERE pipeline = ? IF replication = ? AND fence = ?",
                written_at,
                self.pipeline,
                row.replication,
                row.fence,
                landed=lambda: self.current(row.fence).written_at == written_at,
            ),
            row.fence,
        )

    def finish(self, row: ReplicationRow) -> ReplicationRow:
        """Finish a replication, SEALED → DONE; raises FenceRaised."""
        return self._moved(
            self.cassandra.transact(
                f"UPDATE {self.table} SET state = ?, done_at = ? WHERE pipeline = ? IF replication = ? "
                "AND fence = ?",
                DONE,
                self.cassandra.now(),
                self.pipeline,
                row.replication,
                row.fence,
                landed=lambda: self.current(row.fence).state == DONE,
            ),
            row.fence,
        )

    def current(self, fence: int) -> ReplicationRow:
        """Return the newest replication if this fence is still in force; raises FenceRaised otherwise."""
        row = self.newest()
        if row is None or row.fence != fence:
            raise self._lost()
        return row

    def _moved(self, done: bool, fence: int) -> ReplicationRow:
        if not done:
            raise self._lost()
        return self.current(fence)

    def _is_attempt(self, attempt: UUID) -> bool:
        row = self.newest()
        return row is not None and row.attempt == attempt

    def _lost(self) -> FenceRaised:
        row = self.newest()
        who = row.owner if row else "somebody else"
        return FenceRaised(
            f"the replication of {self.pipeline} was taken over by {who}. This one sealed nothing; the "
            "other goes on"
        )
