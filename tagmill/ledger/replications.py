"""The state of the replication of a Kafka Journal: one row per pipeline in replications, moved by lightweight
transactions.

A replication is SEALED when what its records do is fixed as files, DONE when all of it is in Cassandra. Every
move says IF replication = ? AND fence = ?, so a replicator that wakes up late changes nothing.
"""

from dataclasses import dataclass
from uuid import UUID

from cassandra import ConsistencyLevel

from tagmill.cassandra.client import Cassandra, needs_tables
from tagmill.domain import identifiers
from tagmill.ledger.fenced_record import FencedRecord

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
        self.record = FencedRecord(
            cassandra,
            self.table,
            {"pipeline": pipeline},
            self.newest,
            f"the replication of {pipeline}",
            "This one sealed nothing; the other goes on",
        )

    def newest(self) -> ReplicationRow | None:
        """Return the newest replication; None: nothing was replicated yet."""
        rows = self.cassandra.execute(
            f"SELECT {FIELDS} FROM {self.table} WHERE pipeline = ?", self.pipeline, consistency=SERIAL
        )
        return ReplicationRow(*rows[0]) if rows and rows[0].state else None

    def take_over(self, owner: str) -> ReplicationRow:
        """Raise the fence, so that an earlier replicator can no longer seal; raises FenceRaised."""
        self.cassandra.check_clocks()
        known = self.newest()
        if known is None:
            return self.record.begin(owner, {"replication": 0, "state": DONE, "written_at": 0})
        return self.record.take_over(known, owner)

    def seal(self, row: ReplicationRow, file: str, sha256: str, written_at: int) -> ReplicationRow:
        """Commit the next replication, which the manifest and its files fix; raises FenceRaised."""
        changes = {
            "replication": row.replication + 1,
            "state": SEALED,
            "manifest_file": file,
            "manifest_sha256": sha256,
            "written_at": written_at,
            "sealed_at": self.cassandra.now(),
        }
        self.record.move(row.fence, _expected(row), changes, lambda now: now.manifest_file == file)
        return self.current(row.fence)

    def restamp(self, row: ReplicationRow, written_at: int) -> ReplicationRow:
        """Give a sealed replication a later write time from now on; raises FenceRaised."""
        changes = {"written_at": written_at}
        self.record.move(row.fence, _expected(row), changes, lambda now: now.written_at == written_at)
        return self.current(row.fence)

    def finish(self, row: ReplicationRow) -> ReplicationRow:
        """Finish a replication, SEALED → DONE; raises FenceRaised."""
        self.record.finish(row.fence, _expected(row), DONE, {"done_at": self.cassandra.now()})
        return self.current(row.fence)

    def current(self, fence: int) -> ReplicationRow:
        """Return the newest replication if this fence is still in force; raises FenceRaised otherwise."""
        return self.record.current(fence)


def _expected(row: ReplicationRow) -> dict[str, int]:
    return {"replication": row.replication}
