"""Replicate each small piece by this process and by Spark, and compare what both stage, fold and write."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pyarrow as pa

from tagmill.kafka_journal import few_records, many_records
from tagmill.kafka_journal.few_records import EVENTS, FewRecords
from tagmill.kafka_journal.many_records import ManyRecords
from tagmill.kafka_journal.piece_files import PieceFiles
from tagmill.kafka_journal.staging import FOLDED, MOMENT, STAGED
from tagmill.spark.cassandra_table import CassandraTable

# A timestamp of a row of journal, as Spark leaves its milliseconds in a file.
IN_FILES = pa.timestamp("ms", "UTC")
Rows = list[dict[str, Any]]


@contextmanager
def compared(spark: Any) -> Iterator[None]:
    """Compare both ways for each small piece in the block, also where one goes on with what the other staged; at its end
    each way of staging, folding and writing was compared and had rows.
    """
    ways = Ways(spark)
    writes = {name: ways.writing(name) for name in ("write_delete_to", "write_events", "write_entries")}
    doubled = {"stage": ways.staging(), "fold": ways.folding(), "differing": ways.differing(), **writes}
    with patch.multiple(FewRecords, **doubled):
        yield
    assert {"staged", "folded", "write_events", "write_entries"} <= set(ways.alike)


class Ways:
    """Makes methods of FewRecords that do the same with Spark, too, and compare."""

    def __init__(self, spark: Any) -> None:
        self.spark, self.alike = spark, list[str]()

    def staging(self) -> Any:
        stage = FewRecords.stage

        def both(few: FewRecords, *of_run: Any) -> None:
            stage(few, *of_run)
            many = self._many(few, _by_spark(few.piece))
            many.stage(*of_run)
            self._note("staged", _staged(few.piece), _staged(many.piece))

        return both

    def folding(self) -> Any:
        fold = FewRecords.fold

        def both(few: FewRecords, segment_size: int) -> None:
            fold(few, segment_size)
            for staged in (few.piece, _by_spark(few.piece)):
                here = FewRecords(few.tables, _refolded(staged), few.many)
                fold(here, segment_size)
                many = self._many(few, _refolded(staged))
                many.fold(segment_size)
                for piece in (here.piece, many.piece):
                    self._note("folded", _folded(few.piece), _folded(piece))
                    assert _summary(few.piece) == _summary(piece)

        return both

    def writing(self, name: str) -> Any:
        write = getattr(FewRecords, name)

        def both(few: FewRecords, written_at: int) -> None:
            for piece in (few.piece, _by_spark(few.piece, few.piece.folds_folder)):
                here = self._here(FewRecords(few.tables, piece, few.many), write, written_at)
                by_spark = self._by_spark(self._many(few, piece), name, written_at)
                assert here[0] == by_spark[0]
                self._note(name, here[1], by_spark[1])
            write(few, written_at)

        return both

    def _here(self, few: FewRecords, write: Any, written_at: int) -> tuple[list[Any], Rows]:
        """Return the targets and the rows that this process would write."""
        targets, batches = list[Any](), list[Any]()

        def take(_: Any, target: Any, some: Any) -> None:
            targets.append((target.keyspace, target.table, target.written_at))
            batches.extend(some)

        with patch.object(few_records, "write_rows", take):
            write(few, written_at)
        return targets, _rows(batches)

    def _by_spark(self, many: ManyRecords, name: str, written_at: int) -> tuple[list[Any], Rows]:
        """Return the targets and the rows that Spark would write, by way of files."""
        targets, batches = list[Any](), list[Any]()

        def take(table: CassandraTable, rows: Any, written_at: int) -> None:
            targets.append((table.keyspace, table.name, written_at))
            piece, folder = many.piece, f"{many.piece.folder}/{name}-{uuid4().hex}"
            rows.write.parquet(piece.files.url(folder))
            batches.extend(piece._read(piece.files.parquet(folder), rows.columns))

        def take_files(_: Any, __: Any, files: Any, parts: Any, target: Any, **___: Any) -> None:
            targets.append((target.keyspace, target.table, target.written_at))
            for batch in many.piece._read([part.name for part in parts], EVENTS.names):
                at = batch.schema.get_field_index("timestamp")
                batches.append(
                    batch.set_column(at, "timestamp", batch["timestamp"].cast(IN_FILES).cast(MOMENT))
                )

        with patch.object(CassandraTable, "append", take), patch.object(many_records, "load", take_files):
            getattr(many, name)(written_at)
        return targets, _rows(batches)

    def differing(self) -> Any:
        differing = FewRecords.differing

        def both(few: FewRecords) -> Any:
            wrong = differing(few)
            assert (wrong is None) == (self._many(few, few.piece).differing() is None)
            return wrong

        return both

    def _many(self, few: FewRecords, piece: PieceFiles) -> ManyRecords:
        return ManyRecords(self.spark, few.tables, piece)

    def _note(self, what: str, here: Rows, by_spark: Rows) -> None:
        assert here == by_spark, what
        if here:
            self.alike.append(what)


def _by_spark(piece: PieceFiles, folds: str | None = None) -> PieceFiles:
    """Return the files of the same piece whose records Spark has staged."""
    other = PieceFiles(piece.files, piece.folder)
    other.records_folder, other.folds_folder = f"{piece.folder}/by-spark", folds or f"{piece.folder}/none"
    return other


def _refolded(piece: PieceFiles) -> PieceFiles:
    """Return the files of the same piece with a new folder for its folds."""
    other = PieceFiles(piece.files, piece.folder)
    other.records_folder, other.folds_folder = piece.records_folder, f"{piece.folder}/{uuid4().hex}"
    return other


def _staged(piece: PieceFiles) -> Rows:
    return _rows(piece.records(STAGED.names))


def _folded(piece: PieceFiles) -> Rows:
    return _rows(piece.folds(FOLDED.names))


def _summary(piece: PieceFiles) -> tuple[Any, ...]:
    """Return the counts, the warnings, and the latest write time of the entries that are written over."""
    (counts, told), newest = piece.counts(), piece.newest_overwritten()
    return counts, sorted(told), newest and newest[1]


def _rows(batches: Iterable[Any]) -> Rows:
    rows = (row for batch in batches for row in batch.to_pylist())
    plain = ({name: _plain(name, row[name]) for name in sorted(row)} for row in rows)
    return sorted(plain, key=repr)


def _plain(name: str, value: Any) -> Any:
    """Return a value of a set or a map in one order."""
    if name == "tags":
        return sorted(set(value))
    if name == "headers":
        return value and sorted(map(tuple, value))
    return value
