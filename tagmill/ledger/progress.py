"""How far each tag and persistence_id is delivered: watermarks, known buckets, progress, holds.

All rows but the buckets, which are only added, are written USING TIMESTAMP = the write time of the run
(tagmill.ledger.write_times), so an older run can't overwrite a newer one. Each write is read back;
ForeignWriteTime says that another program's write outranks it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from tagmill.cassandra.client import READ_TOGETHER, READS_AT_ONCE, Cassandra, needs_tables, utc
from tagmill.domain import identifiers
from tagmill.domain.continuity.model import Gap, Interval, Progress
from tagmill.domain.timeuuid import ticks as ticks_of
from tagmill.errors import ForeignWriteTime
from tagmill.ledger.write_times import NOT_AS_WRITTEN, WriteTimes, foreign

if TYPE_CHECKING:
    import pyarrow as pa

# Partitions over which the holds of a tag are spread; one request reads them all. It must never change.
HOLD_SHARDS = 16
# Rows that are written and read back together.
READ_BACK_AT_ONCE = 5000
T = TypeVar("T")
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far a tag is delivered, and its look-back window: `window_rows` rows from `window_from` (exclusive)
    to `ticks`.
    """

    tag: str
    ticks: int
    run: int
    window_from: int
    window_rows: int
    long_look_at: datetime | None
    delivered: int
    batches: int


@dataclass(frozen=True, slots=True)
class HoldRow:
    """A persistence_id that is kept back at a gap.

    `seen`: fingerprint of the view's rows in the gap when it was last judged.
    """

    tag: str
    persistence_id: str
    reason: str
    gap: Gap
    from_ticks: int
    held_rows: int
    since_run: int
    since: datetime
    seen: str


class ProgressStore:
    """The tables of one ledger that say how far delivery has come."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str) -> None:
        self.cassandra, self.keyspace = cassandra, identifiers.cql(ledger_keyspace)
        self.ledger_keyspace = ledger_keyspace
        self.write_times = WriteTimes(cassandra, ledger_keyspace)
        self._lives: dict[str, dict[Key, int]] = {}

    def watermarks(self, pipeline: str) -> dict[str, Watermark]:
        """Return the watermarks of a pipeline by tag."""
        fields = ", ".join(Watermark.__dataclass_fields__)
        rows = self.cassandra.execute(
            f"SELECT {fields} FROM {self.keyspace}.watermarks WHERE pipeline = ?", pipeline
        )
        return {
            row.tag: Watermark(**{**row._asdict(), "long_look_at": utc(row.long_look_at)}) for row in rows
        }

    def write_watermark(self, pipeline: str, mark: Watermark) -> None:
        """Write one tag's watermark; raises ForeignWriteTime if it does not read back as written."""
        self.write_watermarks(pipeline, [mark])

    def write_watermarks(self, pipeline: str, marks: Sequence[Watermark]) -> None:
        """Write watermarks of some tags; raises ForeignWriteTime if one does not read back as written."""
        if not marks:
            return
        fields = ", ".join(Watermark.__dataclass_fields__)
        base = self.write_times.base(pipeline)
        self.cassandra.write_many(
            f"INSERT INTO {self.keyspace}.watermarks (pipeline, {fields}) VALUES (?, ?, ?, ?, ?, ?, ?, "
            "?, ?) USING TIMESTAMP ?",
            (
                (
                    pipeline,
                    *(getattr(mark, field) for field in Watermark.__dataclass_fields__),
                    base + mark.run,
                )
                for mark in marks
            ),
        )
        written = self.watermarks(pipeline)
        for mark in marks:
            stored = written.get(mark.tag)
            if stored is None or replace(stored, long_look_at=None) != replace(mark, long_look_at=None):
                raise _outranked(pipeline, f"the watermark of tag {mark.tag!r}")

    def known_buckets(self, pipeline: str, tag: str) -> tuple[int | None, list[int]]:
        """Return the timebucket up to which the view was scanned for a tag (None: never), and the buckets
        that were found.
        """
        rows = self.cassandra.execute(
            f"SELECT timebucket, scanned_to FROM {self.keyspace}.buckets WHERE pipeline = ? AND tag = ?",
            pipeline,
            tag,
        )
        return (rows[0].scanned_to if rows else None), [
            row.timebucket for row in rows if row.timebucket is not None
        ]

    def keep_buckets(self, pipeline: str, tag: str, buckets: Iterable[int], scanned_to: int) -> None:
        """Write the buckets that a scan found, and only then how far it scanned."""
        self.cassandra.write_many(
            f"INSERT INTO {self.keyspace}.buckets (pipeline, tag, timebucket) VALUES (?, ?, ?)",
            ((pipeline, tag, b) for b in buckets),
        )
        self.cassandra.write_many(
            f"INSERT INTO {self.keyspace}.buckets (pipeline, tag, scanned_to) VALUES (?, ?, ?)",
            [(pipeline, tag, scanned_to)],
        )

    def progress(self, pipeline: str, keys: Iterable[tuple[str, str]]) -> Iterator[Progress | None]:
        """Yield the progress of each (tag, persistence_id), in the order of the keys; None: it has none."""
        return (known and known[0] for known in self.progress_written(pipeline, keys))

    def progress_written(
        self, pipeline: str, keys: Iterable[tuple[str, str]]
    ) -> Iterator[tuple[Progress, int] | None]:
        """Yield the progress of each (tag, persistence_id) and its write time in microseconds, in the order of
        the keys; None: it has none.
        """
        asked = deque[list[Key]]()

        def values() -> Iterator[tuple[str, str, list[str]]]:
            for tag, of_tag in groupby(keys, lambda key: key[0]):
                while part := list(islice(of_tag, READ_TOGETHER)):
                    asked.append(part)
                    yield pipeline, tag, [persistence_id for _, persistence_id in part]

        results = self.cassandra.execute_many(
            'SELECT persistence_id, tag_pid_sequence_nr, sequence_nr, "offset", missing,'
            " WRITETIME(tag_pid_sequence_nr) AS written"
            f" FROM {self.keyspace}.progress WHERE pipeline = ? AND tag = ? AND persistence_id IN ?",
            values(),
            concurrency=READS_AT_ONCE,
        )
        for rows in results:
            known = {row.persistence_id: row for row in rows}
            lives = self.lives(pipeline)
            for tag, persistence_id in asked.popleft():
                row = known.get(persistence_id)
                life_from = lives.get((tag, persistence_id), 0)
                yield None if row is None else (_progress(row, life_from), row.written)

    def lives(self, pipeline: str) -> dict[Key, int]:
        """Return by (tag, persistence_id) from where on, in ticks, the rows are of its present life; those in their
        first life are left out. They are read once: they change under the pipeline's lease only.
        """
        if pipeline not in self._lives:
            needs_tables(self.cassandra, self.ledger_keyspace, ["lives"])
            rows = self.cassandra.stream(
                f"SELECT tag, persistence_id, from_ticks FROM {self.keyspace}.lives WHERE pipeline = ?",
                pipeline,
            )
            self._lives[pipeline] = {(row.tag, row.persistence_id): row.from_ticks for row in rows}
        return self._lives[pipeline]

    def begin_life(self, pipeline: str, run: int, key: Key, progress: Progress) -> None:
        """Write where the present life of a (tag, persistence_id) begins, and the progress that it begins with.

        Raises ForeignWriteTime.
        """
        self.cassandra.write_many(
            f"INSERT INTO {self.keyspace}.lives (pipeline, tag, persistence_id, from_ticks, run)"
            " VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",
            [(pipeline, *key, progress.life_from, run, self.write_times.of(pipeline, run))],
        )
        self._lives.pop(pipeline, None)
        self.write_progress(pipeline, run, [(*key, progress)])

    def write_progress(self, pipeline: str, run: int, rows: Iterable[tuple[str, str, Progress]]) -> int:
        """Write the progress of each (tag, persistence_id) and read it back; return how many.

        Raises ForeignWriteTime.
        """
        return self.write_progress_rows(pipeline, run, _progress_tables(rows))

    def write_progress_rows(self, pipeline: str, run: int, tables: "Iterable[pa.Table]") -> int:
        """Write progress that comes as tables (progress_rows.SCHEMA), read it back, and return how many rows it has.

        An `offset` that is null replaces one that an earlier run has written.

        Raises ForeignWriteTime.
        """
        from tagmill.ledger.progress_rows import ProgressRows  # most users of the ledger need no Arrow

        written_at = self.write_times.of(pipeline, run)
        rows = ProgressRows(self.cassandra, self.ledger_keyspace, pipeline, run, written_at)
        count = 0
        for written, other in rows.write(tables):
            if other is not None:
                raise _outranked(pipeline, f"progress of {other[1]!r}, tag {other[0]!r},")
            count += written
        return count

    def delete_progress(self, pipeline: str, run: int, keys: Iterable[Key]) -> int:
        """Delete the progress of each (tag, persistence_id), with where its life begins; return how many were given.

        Raises ForeignWriteTime: a write with a later time outranks the deletion.
        """
        written, keys, lives = self.write_times.of(pipeline, run), list(keys), self.lives(pipeline)
        self.cassandra.write_many(
            f"DELETE FROM {self.keyspace}.lives USING TIMESTAMP ? WHERE pipeline = ? AND tag = ? AND "
            "persistence_id = ?",
            ((written, pipeline, *key) for key in keys if key in lives),
        )
        self._lives.pop(pipeline, None)
        return self._written(
            pipeline,
            "progress",
            f"DELETE FROM {self.keyspace}.progress USING TIMESTAMP ? WHERE pipeline = ? AND tag = ? AND "
            "persistence_id = ?",
            keys,
            lambda key: (written, pipeline, *key),
            lambda part: (known is None for known in self.progress(pipeline, part)),
            lambda key: key,
        )

    def _written(
        self,
        pipeline: str,
        table: str,
        statement: str,
        rows: Iterable[T],
        values: Callable[[T], tuple[Any, ...]],
        read_back: Callable[[list[T]], Iterable[bool]],
        key: Callable[[T], Key],
    ) -> int:
        """Write rows and read them back, READ_BACK_AT_ONCE at a time, and return how many there were.

        Raises ForeignWriteTime for the first row that does not read back as written.
        """
        count, remaining = 0, iter(rows)
        while part := list(islice(remaining, READ_BACK_AT_ONCE)):
            count += self.cassandra.write_many(statement, map(values, part))
            for row, stands in zip(part, read_back(part), strict=True):
                if not stands:
                    tag, persistence_id = key(row)
                    raise _outranked(pipeline, f"{table} of {persistence_id!r}, tag {tag!r},")
        return count

    def holds(self, pipeline: str, tags: Iterable[str]) -> Iterator[HoldRow]:
        """Yield all open holds of these tags."""
        query = f"SELECT * FROM {self.keyspace}.holds WHERE pipeline = ? AND tag = ? AND shard IN ?"
        for tag, shards in self._shards_with_holds(pipeline, tags):
            yield from map(_hold, self.cassandra.stream(query, pipeline, tag, shards))

    def held_rows(self, pipeline: str, tags: Sequence[str]) -> dict[str, int]:
        """Return by tag how many rows the open holds keep back."""
        keys = [
            (pipeline, tag, shard)
            for tag, shards in self._shards_with_holds(pipeline, tags)
            for shard in shards
        ]
        # One shard a request: Cassandra warns of sums over several partitions.
        sums = self.cassandra.execute_many(
            f"SELECT sum(held_rows) AS held FROM {self.keyspace}.holds WHERE pipeline = ? AND tag = ? "
            "AND shard = ?",
            keys,
        )
        held = dict.fromkeys(tags, 0)
        for (_, tag, _), rows in zip(keys, sums, strict=True):
            held[tag] += int(rows[0].held or 0)
        return held

    def _shards_with_holds(self, pipeline: str, tags: Iterable[str]) -> Iterator[tuple[str, list[int]]]:
        """Yield the tags that have open holds, and the shards in which these are."""
        found = self.cassandra.execute_many(
            f"SELECT tag, shard FROM {self.keyspace}.holds WHERE pipeline = ? AND tag = ? AND shard IN ? "
            "PER PARTITION LIMIT 1",
            ((pipeline, tag, list(range(HOLD_SHARDS))) for tag in tags),
        )
        yield from ((rows[0].tag, [row.shard for row in rows]) for rows in found if rows)

    def hold(self, pipeline: str, tag: str, persistence_id: str) -> HoldRow | None:
        """Return the open hold of one persistence_id; None: it has none."""
        return next(iter(self._holds_of(pipeline, [(tag, persistence_id)])))

    def _holds_of(self, pipeline: str, keys: Iterable[Key]) -> Iterator[HoldRow | None]:
        """Yield the hold of each (tag, persistence_id), in the order of the keys; None: it has none."""
        results = self.cassandra.execute_many(
            f"SELECT * FROM {self.keyspace}.holds WHERE pipeline = ? AND tag = ? AND shard = ? AND "
            "persistence_id = ?",
            ((pipeline, tag, shard(persistence_id), persistence_id) for tag, persistence_id in keys),
        )
        for rows in results:
            yield _hold(rows[0]) if rows else None

    def write_holds(self, pipeline: str, run: int, holds: Iterable[HoldRow]) -> int:
        """Open holds or update open ones, and read them back; return how many. Raises ForeignWriteTime."""
        written = self.write_times.of(pipeline, run)
        insert = (
            f"INSERT INTO {self.keyspace}.holds (pipeline, tag, shard, persistence_id, reason, "
            "first_missing, last_missing,"
            " after_sequence_nr, before_sequence_nr, from_ticks, held_rows, since_run, since, seen)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ?"
        )

        def values(h: HoldRow) -> tuple[Any, ...]:
            return (
                pipeline,
                h.tag,
                shard(h.persistence_id),
                h.persistence_id,
                h.reason,
                h.gap.first,
                h.gap.last,
                h.gap.after_sequence_nr,
                h.gap.before_sequence_nr,
                h.from_ticks,
                h.held_rows,
                h.since_run,
                h.since,
                h.seen,
                written,
            )

        return self._written(
            pipeline,
            "the hold",
            insert,
            holds,
            values,
            lambda part: self._has_holds(pipeline, part),
            lambda h: (h.tag, h.persistence_id),
        )

    def end_holds(self, pipeline: str, run: int, keys: Iterable[Key]) -> int:
        """Delete the holds of each (tag, persistence_id), and return how many were given.

        Raises ForeignWriteTime.
        """
        written = self.write_times.of(pipeline, run)
        return self._written(
            pipeline,
            "the hold",
            f"DELETE FROM {self.keyspace}.holds USING TIMESTAMP ? WHERE pipeline = ? AND tag = ? AND "
            "shard = ? AND persistence_id = ?",
            keys,
            lambda key: (written, pipeline, key[0], shard(key[1]), key[1]),
            lambda part: (hold is None for hold in self._holds_of(pipeline, part)),
            lambda key: key,
        )

    def written(self, pipeline: str, tags: Iterable[str]) -> Iterator[tuple[str, int]]:
        """Yield progress and holds as text for a message, with their write times; this reads the progress of
        all pipelines.
        """
        for row in self.cassandra.stream(
            "SELECT pipeline, tag, persistence_id, WRITETIME(tag_pid_sequence_nr) AS written FROM "
            f"{self.keyspace}.progress"
        ):
            if row.pipeline == pipeline and row.written is not None:
                yield f"progress of {row.persistence_id!r}, tag {row.tag!r}", row.written
        for tag in tags:
            for part in range(HOLD_SHARDS):
                for row in self.cassandra.stream(
                    f"SELECT persistence_id, WRITETIME(reason) AS written FROM {self.keyspace}.holds"
                    " WHERE pipeline = ? AND tag = ? AND shard = ?",
                    pipeline,
                    tag,
                    part,
                ):
                    yield f"the hold of {row.persistence_id!r}, tag {tag!r}", row.written or 0

    def _has_holds(self, pipeline: str, holds: list[HoldRow]) -> Iterator[bool]:
        stored = self._holds_of(pipeline, ((hold.tag, hold.persistence_id) for hold in holds))
        for wanted, known in zip(holds, stored, strict=True):
            # Cassandra keeps only milliseconds of `since`, so it is left out of the comparison.
            yield known is not None and replace(known, since=wanted.since) == wanted


def _outranked(pipeline: str, row: str) -> ForeignWriteTime:
    return foreign(pipeline, row, NOT_AS_WRITTEN)


def shard(persistence_id: str) -> int:
    """Return the one of a tag's hold partitions that a persistence_id is in; the formula must never
    change.
    """
    return sum(persistence_id.encode()) % HOLD_SHARDS


def _progress_tables(rows: Iterable[tuple[str, str, Progress]]) -> "Iterator[pa.Table]":
    """Yield the progress of each (tag, persistence_id) as tables (progress_rows.SCHEMA)."""
    import pyarrow as pa

    from tagmill.ledger.progress_rows import ROWS_AT_ONCE, SCHEMA

    remaining = iter(rows)
    while part := list(islice(remaining, ROWS_AT_ONCE)):
        lines = (
            (
                tag,
                persistence_id,
                known.number,
                known.sequence_nr,
                str(UUID(known.offset)) if known.offset else None,
                write_intervals(known.missing),
            )
            for tag, persistence_id, known in part
        )
        yield pa.table(list(map(list, zip(*lines, strict=True))), SCHEMA)


def write_intervals(missing: tuple[Interval, ...]) -> str:
    """Format intervals as text: '1-4,9-9' for ((1, 4), (9, 9))."""
    return ",".join(f"{low}-{high}" for low, high in missing)


def read_intervals(text: str | None) -> tuple[Interval, ...]:
    """Parse the text of write_intervals: ((1, 4), (9, 9)) for '1-4,9-9', () for None or an empty text."""
    pairs = (part.split("-") for part in (text or "").split(",") if part)
    return tuple((int(low), int(high)) for low, high in pairs)


def _hold(row: Any) -> HoldRow:
    gap = Gap(row.first_missing, row.last_missing, row.after_sequence_nr, row.before_sequence_nr)
    since = utc(row.since) or datetime.now(UTC)
    return HoldRow(
        row.tag,
        row.persistence_id,
        row.reason,
        gap,
        row.from_ticks,
        row.held_rows,
        row.since_run,
        since,
        row.seen or "",
    )


def _progress(row: Any, life_from: int) -> Progress:
    offset = row.offset
    return Progress(
        row.tag_pid_sequence_nr,
        row.sequence_nr,
        ticks_of(offset) if offset else 0,
        str(offset or ""),
        read_intervals(row.missing),
        life_from,
    )
