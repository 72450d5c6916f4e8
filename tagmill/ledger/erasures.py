"""The record of a journal's erasures: they are numbered 1, 2, 3 … and are ERASING until they are ERASED.

While an erasure is ERASING, no other work is done on the journal's pipelines, because data that was read
before may be gone by now. The next erasure finishes it first. The record keeps only a digest of each
persistence id (docs/decisions/0018).
"""

import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from cassandra import ConsistencyLevel

from tagmill.cassandra.client import Cassandra, needs_tables, utc
from tagmill.domain import identifiers
from tagmill.errors import FenceRaised, WorkUnfinished

SERIAL = ConsistencyLevel.SERIAL
TABLES = ("erasures", "erased_ids", "erased_rows")


class ErasureState(StrEnum):
    """The state of an erasure."""

    ERASING = "ERASING"
    ERASED = "ERASED"


@dataclass(frozen=True, slots=True)
class ErasureRow:
    """An erasure as the ledger has it.

    `counts` are by place. `plan_sha256` names its plan until it is ERASED. `plan_file` is set while that plan
    is a file, as earlier versions wrote it, and not in the ledger.
    """

    journal: str
    erasure: int
    state: ErasureState
    owner: str
    who: str
    why: str
    persistence_ids: int
    counts: Mapping[str, int]
    plan_file: str | None
    plan_sha256: str | None
    begun_at: datetime
    done_at: datetime | None


@dataclass(frozen=True, slots=True)
class ErasedRows:
    """What an erasure deletes from ClickHouse for one tag: rows, whole batches, and `unseen` rows, which the
    view no longer had.
    """

    tag: str
    rows: int
    batches: int
    unseen: int


FIELDS = ", ".join(ErasureRow.__dataclass_fields__)


class Erasures:
    """The erasures of one journal keyspace."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, journal: str) -> None:
        needs_tables(cassandra, ledger_keyspace, TABLES)
        self.cassandra, self.journal = cassandra, journal
        ledger = identifiers.cql(ledger_keyspace)
        self.table, self.ids, self.rows = (f"{ledger}.{table}" for table in TABLES)

    def newest(self, limit: int) -> list[ErasureRow]:
        """Return up to `limit` erasures, the newest first."""
        rows = self.cassandra.execute(
            f"SELECT {FIELDS} FROM {self.table} WHERE journal = ? LIMIT ?",
            self.journal,
            limit,
            consistency=SERIAL,
        )
        return [_row(row._asdict()) for row in rows if row.state is not None]

    def unfinished(self) -> ErasureRow | None:
        """Return the erasure that is ERASING, or None.

        It is the newest, since no other begins before it is ERASED.
        """
        newest = self.newest(1)
        return newest[0] if newest and newest[0].state == ErasureState.ERASING else None

    def check(self, pipeline: str) -> None:
        """Raise GuardRefused if an erasure of the journal is under way or was interrupted."""
        if row := self.unfinished():
            raise WorkUnfinished(
                f"pipeline {pipeline}: erasure {row.erasure} of journal {self.journal} was begun by "
                f"{row.who} and is not finished. Nothing "
                f"was done; finish it: tagmill erase --pipeline {pipeline}",
                pipeline=pipeline,
            )

    # -- one erasure

    def next_number(self) -> int:
        """Return the number that the next erasure has; raises FenceRaised while another is under way."""
        newest = self.newest(1)
        if newest and newest[0].state == ErasureState.ERASING:
            raise FenceRaised(
                f"erasure {newest[0].erasure} of journal {self.journal} was begun by somebody else "
                "meanwhile. Nothing was erased"
            )
        return newest[0].erasure + 1 if newest else 1

    def begin(self, row: ErasureRow) -> None:
        """Write an erasure's row, which decides it; raises FenceRaised if another erasure has this number."""
        if not self._insert(row):
            raise FenceRaised(
                f"erasure {row.erasure} of journal {self.journal} was begun by somebody else meanwhile. "
                "Nothing was erased"
            )

    def skip(self, erasure: int, owner: str) -> None:
        """Take the number of an erasure that never began: record it as ERASED with no persistence ids.

        An erasure that has the number is left as it is.
        """
        now = self.cassandra.now()
        why = "it never began: its process ended first. Its plan was removed"
        row = ErasureRow(
            self.journal, erasure, ErasureState.ERASED, owner, "tagmill", why, 0, {}, None, None, now, now
        )
        self._insert(row)

    def _insert(self, row: ErasureRow) -> bool:
        """Write an erasure's row unless another erasure has its number; return whether it is in force."""
        values = {name: getattr(row, name) for name in ErasureRow.__dataclass_fields__}
        values |= {"state": row.state.value, "counts": dict(row.counts)}
        # Columns without a value are not bound, so that they stay unset.
        values = {name: value for name, value in values.items() if value is not None}
        marks = ", ".join("?" for _ in values)
        return self.cassandra.transact(
            f"INSERT INTO {self.table} ({', '.join(values)}) VALUES ({marks}) IF NOT EXISTS",
            *values.values(),
            landed=lambda: (
                (found := self.unfinished()) is not None
                and (found.erasure, found.plan_sha256) == (row.erasure, row.plan_sha256)
            ),
        )

    def finish(self, row: ErasureRow, persistence_ids: Iterable[str]) -> None:
        """Finish an erasure, ERASING → ERASED: write digests of the persistence ids, and remove the name
        of the plan from the record.
        """
        salt = self._salt() or self._new_salt()
        self.cassandra.write_many(
            f"INSERT INTO {self.ids} (journal, digest, erasure) VALUES (?, ?, ?)",
            ((self.journal, digest(salt, one), row.erasure) for one in persistence_ids),
        )
        self.cassandra.transact(
            f"UPDATE {self.table} SET state = ?, done_at = ?, plan_file = null, plan_sha256 = null"
            " WHERE journal = ? AND erasure = ? IF state = ?",
            ErasureState.ERASED.value,
            self.cassandra.now(),
            self.journal,
            row.erasure,
            ErasureState.ERASING.value,
            landed=lambda: True,
        )

    def erased(self, persistence_ids: Iterable[str]) -> dict[str, int]:
        """Return those of these persistence ids that were erased before, each with its newest erasure."""
        known, salt = list(persistence_ids), self._salt()
        if salt is None:
            return {}
        found = self.cassandra.execute_many(
            f"SELECT erasure FROM {self.ids} WHERE journal = ? AND digest = ?",
            [(self.journal, digest(salt, one)) for one in known],
        )
        return {one: int(rows[0].erasure) for one, rows in zip(known, found, strict=True) if rows}

    def _salt(self) -> bytes | None:
        """Return the salt of this journal's digests; None until an erasure first needs it."""
        rows = self.cassandra.execute(
            f"SELECT salt FROM {self.table} WHERE journal = ? LIMIT 1", self.journal, consistency=SERIAL
        )
        return bytes(rows[0].salt) if rows and rows[0].salt is not None else None

    def _new_salt(self) -> bytes:
        """Make a salt for this journal unless another process was first, and return the one in force."""
        made = f"UPDATE {self.table} SET salt = ? WHERE journal = ? IF salt = null"
        self.cassandra.transact(made, secrets.token_bytes(32), self.journal, landed=lambda: True)
        salt = self._salt()
        assert salt is not None  # noqa: S101 - made
        return salt

    # -- rows of ClickHouse

    def keep_rows(self, pipeline: str, erasure: int, of_tags: Iterable[ErasedRows]) -> None:
        """Record the rows that an erasure deletes from ClickHouse; a repetition writes the same."""
        self.cassandra.write_many(
            f"INSERT INTO {self.rows} (pipeline, tag, journal, erasure, rows, batches, unseen) VALUES "
            "(?, ?, ?, ?, ?, ?, ?)",
            (
                (pipeline, one.tag, self.journal, erasure, one.rows, one.batches, one.unseen)
                for one in of_tags
            ),
        )

    def unseen(self, pipeline: str, tag: str) -> int:
        """Return how many erased rows of a tag the view no longer had, over all erasures."""
        found = self.cassandra.execute(
            f"SELECT sum(unseen) AS rows FROM {self.rows} WHERE pipeline = ? AND tag = ?", pipeline, tag
        )
        return int(found[0].rows or 0)


def digest(salt: bytes, persistence_id: str) -> str:
    """Return the salted SHA-256 digest by which the record keeps a persistence id, in hexadecimal."""
    return hmac.digest(salt, persistence_id.encode(), "sha256").hex()


def _row(columns: dict[str, Any]) -> ErasureRow:
    moments = {name: utc(columns[name]) for name in ("begun_at", "done_at")}
    return ErasureRow(
        **{
            **columns,
            **moments,
            "state": ErasureState(columns["state"]),
            "counts": dict(columns["counts"] or {}),
        }
    )
