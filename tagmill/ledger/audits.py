"""Audits in the ledger: they are numbered 1, 2, 3 … and RUNNING until they are DONE.

An audit that was killed stays RUNNING; the next one gets a new number.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from cassandra import ConsistencyLevel

from tagmill.cassandra.client import Cassandra, needs_tables, utc
from tagmill.domain import identifiers

SERIAL = ConsistencyLevel.SERIAL
TABLES = ("audits", "audit_tags", "audited_buckets", "cleaned_buckets", "deleted_ids")


class AuditState(StrEnum):
    """The state of an audit."""

    RUNNING = "RUNNING"
    DONE = "DONE"


@dataclass(frozen=True, slots=True)
class AuditRow:
    """An audit as the ledger has it; the figures are None until it is DONE.

    `tags`: the tags that it judges; None: all that its pipeline had.
    """

    pipeline: str
    audit: int
    state: AuditState
    started_at: datetime
    done_at: datetime | None
    until: int
    agrees: bool | None
    journal_rows: int | None
    view_rows: int | None
    clickhouse_rows: int | None
    findings: Mapping[str, int]
    docs: str | None
    tags: frozenset[str] | None = None


# Columns of the table audits.
FIELDS = ", ".join(name for name in AuditRow.__dataclass_fields__ if name != "tags")


class Audits:
    """The audits of one pipeline."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        self.cassandra = cassandra
        self.pipeline = pipeline
        self.table = f"{identifiers.cql(ledger_keyspace)}.audits"
        self.tags_table = f"{identifiers.cql(ledger_keyspace)}.audit_tags"
        needs_tables(cassandra, ledger_keyspace, TABLES)

    def begin(self, until: int, tags: Iterable[str] | None = None) -> AuditRow:
        """Write a new audit, RUNNING, of these tags or of all, under the next free number, and return its row."""
        newest = self.newest(1)
        number = newest[0].audit + 1 if newest else 1
        started = self.cassandra.now().replace(microsecond=0)
        while not self.cassandra.transact(
            f"INSERT INTO {self.table} (pipeline, audit, state, started_at, until) VALUES (?, ?, ?, ?, "
            "?) IF NOT EXISTS",
            self.pipeline,
            number,
            AuditState.RUNNING.value,
            started,
            until,
            landed=lambda: False,
        ):
            number += 1  # Another process has the number, or we have it and the answer was lost. Numbers don't run out.
        judged = None if tags is None else frozenset(tags)
        if judged is not None:
            self.cassandra.execute(
                f"INSERT INTO {self.tags_table} (pipeline, audit, tags) VALUES (?, ?, ?)",
                self.pipeline,
                number,
                judged,
            )
        return AuditRow(
            self.pipeline,
            number,
            AuditState.RUNNING,
            started,
            None,
            until,
            None,
            None,
            None,
            None,
            {},
            None,
            judged,
        )

    def finish(self, row: AuditRow) -> None:
        """Finish an audit, RUNNING → DONE, and write its figures and findings."""
        values = (
            row.done_at,
            row.agrees,
            row.journal_rows,
            row.view_rows,
            row.clickhouse_rows,
            dict(row.findings),
            row.docs,
        )
        self.cassandra.transact(
            f"UPDATE {self.table} SET state = ?, done_at = ?, agrees = ?, journal_rows = ?, view_rows = "
            "?, clickhouse_rows = ?,"
            " findings = ?, docs = ? WHERE pipeline = ? AND audit = ? IF state = ?",
            AuditState.DONE.value,
            *values,
            row.pipeline,
            row.audit,
            AuditState.RUNNING.value,
            landed=lambda: True,
        )

    def newest(self, limit: int) -> list[AuditRow]:
        """Return up to `limit` audits, the newest first."""
        rows = self.cassandra.execute(
            f"SELECT {FIELDS} FROM {self.table} WHERE pipeline = ? LIMIT ?",
            self.pipeline,
            limit,
            consistency=SERIAL,
        )
        tags = self._tags()
        return [_row(row._asdict(), tags) for row in rows]

    def words_written(self, view: str, tags: Iterable[str]) -> Iterator[tuple[int, int]]:
        """Yield for each audited partition of a view (by its key) the number of the audit that judged it, and
        that row's write time.
        """
        table = self.table.replace(".audits", ".audited_buckets")
        for tag in tags:
            for row in self.cassandra.stream(
                f"SELECT audit, WRITETIME(agrees) AS written FROM {table} WHERE pipeline = ? AND tag = ?",
                view,
                tag,
            ):
                yield row.audit, row.written or 0

    def forget(self, row: AuditRow) -> None:
        """Delete an audit's row; its judgements of partitions stay."""
        self.cassandra.transact(
            f"DELETE FROM {self.table} WHERE pipeline = ? AND audit = ? IF state = ?",
            row.pipeline,
            row.audit,
            row.state.value,
            landed=lambda: True,
        )
        self.cassandra.execute(
            f"DELETE FROM {self.tags_table} WHERE pipeline = ? AND audit = ?", row.pipeline, row.audit
        )

    def last_done(self) -> AuditRow | None:
        """Return the newest audit that is DONE, of whatever tags; None: none is."""
        return next(self._done(), None)

    def last_done_of(self, tags: Iterable[str]) -> dict[str, AuditRow]:
        """Return the newest audit of each tag that is DONE; a tag that none has judged is left out."""
        left, found = set(tags), dict[str, AuditRow]()
        for row in self._done() if left else ():
            judged = left if row.tags is None else left & row.tags
            found |= dict.fromkeys(judged, row)
            left = left - judged
            if not left:
                break
        return found

    def _done(self) -> Iterator[AuditRow]:
        """Yield the audits that are DONE, the newest first."""
        tags = self._tags()
        for row in self.cassandra.stream(
            f"SELECT {FIELDS} FROM {self.table} WHERE pipeline = ?", self.pipeline, page=20
        ):
            if row.state == AuditState.DONE.value:
                yield _row(row._asdict(), tags)

    def _tags(self) -> dict[int, frozenset[str]]:
        """Return the tags of the audits that are of some tags only, by their numbers."""
        rows = self.cassandra.execute(
            f"SELECT audit, tags FROM {self.tags_table} WHERE pipeline = ?", self.pipeline
        )
        return {row.audit: frozenset(row.tags) for row in rows}


def folder(pipeline: str, audit: int) -> str:
    """Return the folder of an audit's files, relative to the storage root."""
    return f"{home(pipeline)}/{audit:08d}"


def home(pipeline: str) -> str:
    """Return the folder of all audits of a pipeline, relative to the storage root."""
    return f"{pipeline}/audit"


def in_words(findings: Mapping[Any, int]) -> str:
    """Return a text with the number of findings of each kind."""
    return ", ".join(f"{count} {kind}" for kind, count in findings.items())


def _row(columns: dict[str, Any], tags: Mapping[int, frozenset[str]]) -> AuditRow:
    moments = {name: utc(columns[name]) for name in ("started_at", "done_at")}
    return AuditRow(
        **{
            **columns,
            **moments,
            "state": AuditState(columns["state"]),
            "findings": dict(columns["findings"] or {}),
            "tags": tags.get(columns["audit"]),
        }
    )
