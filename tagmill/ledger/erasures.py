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
from tagmill.errors import FenceRaised, GuardRefused

SERIAL = ConsistencyLevel.SERIAL
TABLES = ("erasures", "erased_ids", "erased_rows")


class ErasureState(StrEnum):
    """The state of an erasure."""

    ERASING = "ERASING"
    ERASED = "ERASED"


@dataclass(frozen=True, slots=True)
class ErasureRow:
    """An erasure as the ledger has it. `counts` are by place; `plan_file` is None once it is ERASED."""

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
            raise GuardRefused(
                f"pipeline {pipeline}: erasure {row.erasure} of journal {self.journal} was begun by "
                f"{row.who} and is not finished. Nothing "
                f"was done; finish it: tagmill erase --pipeline {pipeline}",
                pipeline=pipeline,
            )

    # -- one erasure

    def begin(self, row: ErasureRow) -> None:
        """Write an erasure's row, which decides it; raises FenceRaised if another erasure has this number."""
        fields = [name for name in ErasureRow.__dataclass_fields__ if name != "done_at"]
        values = [getattr(row, name) for name in fields]
        marks = ", ".join("?" for _ in fields)
        begun = self.cassandra.transact(
            f"INSERT INTO {self.table} ({', '.join(fields)}) VALUES ({marks}) IF NOT EXISTS",
            *(
                value.value
                if isinstance(value, ErasureState)
                else dict(value)
                if isinstance(value, Mapping)
                else value
                for value in values
            ),
            landed=lambda: (found := self.unfinished()) is not None and found.plan_file == row.plan_file,
        )
        if not begun:
            raise FenceRaised(
                f"erasure {row.erasure} of journal {self.journal} was begun by somebody else meanwhile. "
                "Nothing was erased"
            )

    def finish(self, row: ErasureRow, persistence_ids: Iterable[str]) -> None:
        """Finish an erasure, ERASING → ERASED: write digests of the persistence ids, and remove the plan's
        file from the record.
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
