"""Replicate each small piece by this process and by Spark, and compare what both stage, fold and write."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from tagmill.kafka_journal import few_records, many_records
from tagmill.kafka_journal.few_records import FewRecords
from tagmill.kafka_journal.many_records import ManyRecords
from tagmill.kafka_journal.piece_files import PieceFiles
from tagmill.kafka_journal.staging import FOLDED, STAGED

Rows = list[dict[str, Any]]


@contextmanager
def compared(spark: Any) -> Iterator[list[str]]:
    """Compare both ways for each small piece in the block, also where one goes on with what the other staged; yield
    the names of what was compared and had rows.
    """
    alike = list[str]()
    stage, fold, differing = FewRecords.stage, FewRecords.fold, FewRecords.differing

    def note(what: str, here: Rows, by_spark: Rows) -> None:
        assert here == by_spark, what
        if here:
            alike.append(what)

    def both_stage(few: FewRecords, kafka: Any, ranges: Any, decode: Any) -> None:
        stage(few, kafka, ranges, decode)
        many = ManyRecords(spark, few.tables, _by_spark(few.piece))
        many.stage(kafka, ranges, decode)
        note("staged", _staged(few.piece), _staged(many.piece))

    def both_fold(few: FewRecords, segment_size: int) -> None:
        fold(few, segment_size)
        counts, warnings = few.piece.counts()
        for staged in (few.piece, _by_spark(few.piece)):
            for way in (
                ManyRecords(spark, few.tables, _refolded(staged)),
                FewRecords(few.tables, _refolded(staged), few.many),
            ):
                (fold if isinstance(way, FewRecords) else ManyRecords.fold)(way, segment_size)
                note("folded", _folded(few.piece), _folded(way.piece))
                found, told = way.piece.counts()
                assert (found, sorted(told)) == (counts, sorted(warnings))
                newest = (few.piece.newest_overwritten(), way.piece.newest_overwritten())
                assert len({found and found[1] for found in newest}) == 1

    def both_write(name: str) -> Any:
        write = getattr(FewRecords, name)

        def both(few: FewRecords, written_at: int) -> None:
            here, by_spark, targets = list[Any](), list[Any](), list[Any]()

            def take(_: Any, target: Any, batches: Any) -> None:
                targets.append((target.keyspace, target.table, target.written_at))
                here.extend(batches)

            def take_of_spark(rows: Any, *target: Any, **_: Any) -> None:
                targets.append(target)
                folder = f"{few.piece.folder}/{name}-{uuid4().hex}"
                rows.write.parquet(few.piece.files.url(folder))
                by_spark.extend(few.piece._read(few.piece.files.parquet(folder), rows.columns))

            for piece in (few.piece, _by_spark(few.piece, few.piece.folds_folder)):
                with patch.object(few_records, "write_rows", take):
                    write(FewRecords(few.tables, piece, few.many), written_at)
                with patch.object(many_records, "append", take_of_spark):
                    getattr(ManyRecords(spark, few.tables, piece), name)(written_at)
                note(name, _rows(here), _rows(by_spark))
                assert len(set(targets)) == 1
            write(few, written_at)

        return both

    def both_differing(few: FewRecords) -> Any:
        wrong = differing(few)
        assert (wrong is None) == (ManyRecords(spark, few.tables, few.piece).differing() is None)
        return wrong

    names = ("write_delete_to", "write_events", "write_entries")
    doubled = {"stage": both_stage, "fold": both_fold, "differing": both_differing}
    with patch.multiple(FewRecords, **doubled, **{name: both_write(name) for name in names}):
        yield alike


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
