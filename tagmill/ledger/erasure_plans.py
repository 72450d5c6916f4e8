"""The plans of a journal's erasures while they are under way (docs/decisions/0083).

A plan is kept in compressed parts, under the erasure's number and the plan's SHA-256. It is written as a
whole before the record that names it. So a plan without such a record may be incomplete, and is never read.
"""

import hashlib
import zlib

from tagmill.cassandra.client import Cassandra, needs_tables
from tagmill.domain import identifiers
from tagmill.errors import TerminalError
from tagmill.ledger.erasures import ErasureRow, Erasures, ErasureState

TABLE = "erasure_plans"
# Bytes of a plan in one row: Cassandra takes some MiB in one write, and answers small ones quickly.
PART_BYTES = 256 * 1024
# Write time of all parts, in microseconds: every deletion is later, whichever clock it has.
WRITE_TIME = 1


class ErasurePlans:
    """Plans of one journal's erasures in the ledger."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, erasures: Erasures) -> None:
        needs_tables(cassandra, ledger_keyspace, (TABLE,))
        self.cassandra, self.erasures, self.journal = cassandra, erasures, erasures.journal
        self.table = f"{identifiers.cql(ledger_keyspace)}.{TABLE}"

    def write(self, erasure: int, content: bytes) -> str:
        """Write a plan and return its SHA-256, by which the erasure's row names it.

        Two processes never write the same content: each plan has run numbers that its process has claimed.
        """
        sha256, packed = hashlib.sha256(content).hexdigest(), zlib.compress(content)
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (journal, erasure, plan_sha256, part, content) VALUES (?, ?, ?, ?, ?)"
            f" USING TIMESTAMP {WRITE_TIME}",
            (
                (self.journal, erasure, sha256, part, packed[start : start + PART_BYTES])
                for part, start in enumerate(range(0, len(packed), PART_BYTES))
            ),
        )
        return sha256

    def read(self, row: ErasureRow) -> bytes:
        """Return the plan of an erasure that is ERASING; raises TerminalError if it is incomplete."""
        parts = self.cassandra.execute(
            f"SELECT content FROM {self.table} WHERE journal = ? AND erasure = ? AND plan_sha256 = ?",
            self.journal,
            row.erasure,
            row.plan_sha256 or "",
        )
        try:
            content = zlib.decompress(b"".join(part.content for part in parts))
        except zlib.error:
            content = b""
        if hashlib.sha256(content).hexdigest() != row.plan_sha256:
            raise TerminalError(
                f"{self.table}: the plan of erasure {row.erasure}, journal {self.journal}, is not the one "
                "that the erasure's record names (SHA-256 differs). Nothing more was erased; restore this table "
                "from a backup of the ledger, then run the same command again"
            )
        return content

    def remove(self, owner: str) -> None:
        """Remove all plans except that of an erasure that is ERASING.

        The number of a plan whose erasure never began is taken first, so that a process that slept after
        writing it can't begin without its plan.
        """
        # The plans are listed before the record is read: one that is written later is not removed here.
        written = {
            (row.erasure, row.plan_sha256)
            for row in self.cassandra.execute(
                f"SELECT erasure, plan_sha256, part FROM {self.table} WHERE journal = ?", self.journal
            )
        }
        if not written or self.erasures.unfinished():
            return
        begun = max((row.erasure for row in self.erasures.newest(1)), default=0)
        for erasure in sorted({erasure for erasure, _ in written if erasure > begun}):
            self.erasures.skip(erasure, owner)
        newest = self.erasures.newest(1)[0]
        in_force = (newest.erasure, newest.plan_sha256) if newest.state == ErasureState.ERASING else None
        for erasure, sha256 in sorted(written - {in_force}):
            self.cassandra.execute(
                f"DELETE FROM {self.table} WHERE journal = ? AND erasure = ? AND plan_sha256 = ?",
                self.journal,
                erasure,
                sha256,
            )
