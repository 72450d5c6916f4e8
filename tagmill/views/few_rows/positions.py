"""Read up to which event each persistence_id is built, as frames.build_positions does with Spark."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from uuid import UUID

from tagmill.cassandra.client import Cassandra
from tagmill.cassandra.paging import Pages
from tagmill.domain import identifiers
from tagmill.journal.flaws import Reason
from tagmill.journal.frames import ID, NOT_SCANNED, JournalSchema
from tagmill.views.numbered import Line, Refused

# Rows of tag_write_progress, which has one a tag, that are read for each persistence_id.
LINES = 4


class TooMany(Exception):
    """There are more rows than this process is to read."""


@dataclass(frozen=True, slots=True)
class Position:
    """Up to which event a persistence_id is built, and what the plugin's tables say of it.

    `sequence_nr` and `partition_nr`: of the last event built (0: none). `known`: Tagmill has a record;
    `progress`: the last number of each tag, sorted by tag. `found`, `scanned`: tag_write_progress and tag_scanning now;
    `written`: the newest write to these (microseconds; 0: none). `reason`: why none of its events may be numbered
    (ELSEWHERE: they differ from the record; DELETED: tags of its view were deleted; None: they may).
    """

    persistence_id: str
    sequence_nr: int
    partition_nr: int
    known: bool
    deleted_to: int
    scanned: int | None
    progress: list[Line]
    found: list[Line]
    written: int
    reason: Reason | None

    @property
    def from_nr(self) -> int:
        """The sequence_nr up to which nothing is left to build."""
        return max(self.sequence_nr, self.deleted_to)

    @property
    def waits_numbered(self) -> bool:
        """Whether the application has numbered events that are still to be built, as they waited when its numbers were
        adopted.
        """
        return any((line.sequence_nr or 0) > self.from_nr for line in self.progress)

    def as_refused(self) -> Refused:
        """Return what an error says of a persistence_id that another writer has numbered."""
        return Refused(self.persistence_id, self.progress, self.found, self.scanned)


@dataclass(slots=True)
class _Plugin:
    """What the plugin's tables say of one persistence_id."""

    lines: list[Line] = field(default_factory=list)
    scanned: int | None = None
    deleted_to: int = 0
    written: int = 0


def positions(
    cassandra: Cassandra, pages: Pages, journal: JournalSchema, ledger_keyspace: str, most: int
) -> list[Position]:
    """Return the position of each persistence_id of the journal.

    Raises TooMany if there are more than `most`, or tag_write_progress has more than LINES rows for each of so many.
    """
    ids = _ids(pages, journal, most)
    plugin = _plugin(pages, journal, most)
    record = (
        "SELECT sequence_nr, partition_nr, scanned, numbers, sequence_nrs, offsets "
        f"FROM {identifiers.cql(ledger_keyspace)}.view_progress WHERE journal = ? AND persistence_id = ?"
    )
    records = cassandra.execute_many(record, ((journal.keyspace, one) for one in ids))
    none = _Plugin()
    return [
        _position(one, rows[0] if rows else None, plugin.get(one, none))
        for one, rows in zip(ids, records, strict=True)
    ]


def _position(persistence_id: str, record: Any, plugin: _Plugin) -> Position:
    known = record is not None and record.sequence_nr is not None
    recorded = _recorded(record) if record is not None else []
    scanned_then = None if record is None or record.scanned == NOT_SCANNED else record.scanned
    found = sorted(plugin.lines, key=lambda line: line.tag)
    reason = None
    if found != recorded or plugin.scanned != scanned_then:
        reason = Reason.ELSEWHERE
    elif known and plugin.deleted_to < record.sequence_nr and _forgotten(record):
        reason = Reason.DELETED
    return Position(
        persistence_id=persistence_id,
        sequence_nr=record.sequence_nr if known else 0,
        partition_nr=record.partition_nr if known else 0,
        known=known,
        deleted_to=plugin.deleted_to,
        scanned=plugin.scanned,
        progress=recorded,
        found=found,
        written=plugin.written,
        reason=reason,
    )


def _recorded(record: Any) -> list[Line]:
    numbers, sequence_nrs, offsets = record.numbers or {}, record.sequence_nrs or {}, record.offsets or {}
    return [Line(tag, numbers[tag], sequence_nrs.get(tag), offsets.get(tag)) for tag in sorted(numbers)]


def _forgotten(record: Any) -> set[str]:
    """Return the tags whose view was deleted, and not rebuilt since (frames.with_records)."""
    return set(record.sequence_nrs or ()) - set(record.numbers or ())


def _ids(pages: Pages, journal: JournalSchema, most: int) -> list[str]:
    """Return all persistence ids (frames.persistence_ids)."""
    names = journal.names
    if names.all_persistence_ids in journal.tables:
        listed = _rows(pages, f"SELECT {ID} FROM {names.cql(names.all_persistence_ids)}", most)
        if ids := [row[ID] for row in listed]:
            return ids
    keys = _rows(pages, f"SELECT DISTINCT {ID}, partition_nr FROM {names.cql(names.messages)}", most)
    return sorted({row[ID] for row in keys})


def _plugin(pages: Pages, journal: JournalSchema, most: int) -> dict[str, _Plugin]:
    """Return what tag_write_progress, tag_scanning and metadata say, by persistence_id."""
    names, said = journal.names, defaultdict[str, _Plugin](_Plugin)
    columns = f"{ID}, tag, tag_pid_sequence_nr AS number, sequence_nr, offset"
    written = "writetime(tag_pid_sequence_nr) AS written"
    query = f"SELECT {columns}, {written} FROM {names.cql('tag_write_progress')}"
    for row in _rows(pages, query, LINES * most):
        offset = None if row["offset"] is None else str(UUID(bytes=row["offset"]))
        one = said[row[ID]]
        one.lines.append(Line(row["tag"], row["number"], row["sequence_nr"], offset))
        one.written = max(one.written, row["written"] or 0)
    if "tag_scanning" in journal.tables:
        query = (
            f"SELECT {ID}, sequence_nr, writetime(sequence_nr) AS written FROM {names.cql('tag_scanning')}"
        )
        for row in _rows(pages, query, most):
            said[row[ID]].scanned = row["sequence_nr"]
            said[row[ID]].written = max(said[row[ID]].written, row["written"] or 0)
    if names.metadata in journal.tables:
        for row in _rows(pages, f"SELECT {ID}, deleted_to FROM {names.cql(names.metadata)}", most):
            said[row[ID]].deleted_to = row["deleted_to"] or 0
    return dict(said)


def _rows(pages: Pages, query: str, most: int) -> Sequence[dict[str, Any]]:
    rows = list(islice(_each(pages, query), most + 1))
    if len(rows) > most:
        raise TooMany
    return rows


def _each(pages: Pages, query: str) -> Iterator[dict[str, Any]]:
    for page in pages.of(query):
        yield from page.to_pylist()
