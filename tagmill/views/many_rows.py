"""Number the new events of a journal with Spark, however many persistence ids it has."""

from collections.abc import Sequence
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tagmill.journal import frames
from tagmill.journal.flaws import Reason
from tagmill.journal.frames import ID
from tagmill.ledger.view_waiting import WaitingRow
from tagmill.runs import checkpoints
from tagmill.runs.storage import RunFiles
from tagmill.spark.materialize import materialize
from tagmill.views import numbering
from tagmill.views.model import Waiting
from tagmill.views.numbered import EXAMPLES, Line, NewEvents, Numbered, Refused, Stopped
from tagmill.views.run_numbering import Sums

ROWS_AT_ONCE = 100_000


def number(new: NewEvents) -> Numbered:
    """Read, check and number new events into files. Raises GuardRefused (NewEvents.check_refused)."""
    attempt, folder, files = new.attempt, new.folder, new.attempt.files
    url = files.url(folder)
    spark = attempt.spark
    ids = frames.persistence_ids(spark, attempt.journal)
    starting_points = materialize(
        frames.build_positions(spark, attempt.journal, ids, adopt=new.adopt), f"{url}/starting-points"
    )
    count, (refused, first_refused) = (
        files.count_rows(f"{folder}/starting-points"),
        _refused(files, starting_points, folder),
    )
    new.check_refused(refused, first_refused)
    some_held = files.largest(f"{folder}/starting-points", "reason") is not None
    held = starting_points.where("reason is not null").select(ID, F.col("from_nr").alias("upto"), "reason")
    reader = attempt.reader(folder, new.until)
    checkpoints.reached("build.reading")
    found = reader.stage(starting_points)
    written_at = new.write_time()
    if not found and not new.adopt:
        stopped, examples = _waiting(held, new.known) if some_held else ([], [])
        return Numbered(count, refused, first_refused, written_at, stopped, examples, 0, 0, Sums())
    attempt.tell("numbering")
    starting_points = starting_points.where("reason is null")
    runs = attempt.runs(folder, reader.files)
    upto = numbering.numberable_upto(runs, starting_points)
    ends = materialize(
        attempt.but_ahead(upto, starting_points, f"{folder}/starting-points", written_at), f"{url}/ends"
    )
    moved, sums = attempt.numbered(folder, reader.files, runs, ends, starting_points)
    materialize(moved, f"{url}/records")
    checkpoints.reached("build.numbered")
    stopped, examples = list[Stopped](), list[Waiting]()
    if some_held or files.largest(f"{folder}/ends", "reason") is not None:
        waiting = ends.select(ID, "upto", "reason")
        stopped, examples = _waiting(waiting.unionByName(held) if some_held else waiting, new.known)
    return Numbered(
        count,
        refused,
        first_refused,
        written_at,
        stopped,
        examples,
        files.count_rows(f"{folder}/records"),
        _count_events(files, f"{folder}/ends"),
        sums,
    )


def _refused(files: RunFiles, starting_points: DataFrame, folder: str) -> tuple[int, Refused | None]:
    """Return how many persistence ids another writer has numbered, and the first of them. `starting_points` were written to
    `folder`.
    """
    if files.largest(f"{folder}/starting-points", "reason") is None:
        return 0, None
    is_refused = F.col("reason") == Reason.ELSEWHERE.value
    first = F.min_by(F.when(is_refused, F.struct("*")), F.when(is_refused, F.col(ID)))
    line = starting_points.agg(F.count_if(is_refused).alias("count"), first.alias("first")).first()
    assert line is not None
    if (row := line["first"]) is None:
        return 0, None
    return line["count"], Refused(row[ID], _lines(row["progress"]), _lines(row["found"]), row["scanned"])


def _lines(progress: Sequence[Any]) -> list[Line]:
    return [Line(*line) for line in progress]


def _count_events(files: RunFiles, ends: str) -> int:
    """Return the number of events up to the ends (a folder) of all persistence ids."""
    parts = files.record_batches(ends, ROWS_AT_ONCE, ["from_nr", "upto"])
    return sum(pc.sum(pc.subtract(part["upto"], part["from_nr"])).as_py() or 0 for part in parts)


def _waiting(ends: DataFrame, known: Sequence[WaitingRow]) -> tuple[list[Stopped], list[Waiting]]:
    """Return what _stopped and _examples return."""
    stopped = _stopped(ends, known)
    return stopped, _examples(ends) if any(one.reason != Reason.ELSEWHERE for one in stopped) else []


def _stopped(ends: DataFrame, known: Sequence[WaitingRow]) -> list[Stopped]:
    """Return how many persistence ids wait for each reason but being too young.

    In: persistence_id, upto (the last event built), reason (null: nothing waits).
    """
    place = F.struct(ID, (F.col("upto") + 1).alias("sequence_nr"))
    is_known = F.lit(False)
    for row in known:
        named = (F.col(ID) == row.persistence_id) & (F.col("upto") + 1 == row.sequence_nr)
        is_known = is_known | ((F.col("reason") == row.reason) & named)
    lines = (
        _waits(ends)
        .groupBy("reason")
        .agg(F.count("*").alias("ids"), F.min(place).alias("first"), F.bool_or(is_known).alias("goes_on"))
        .collect()
    )
    return [
        Stopped(
            line["reason"],
            line["ids"],
            persistence_id=line["first"][ID],
            sequence_nr=line["first"]["sequence_nr"],
            goes_on=line["goes_on"],
        )
        for line in lines
    ]


def _examples(ends: DataFrame) -> list[Waiting]:
    """Return the first persistence ids that wait and are not refused, for another reason than being too young; at most
    EXAMPLES.
    """
    return [
        Waiting(persistence_id=line[ID], sequence_nr=line["upto"] + 1, reason=Reason(line["reason"]))
        for line in _waits(ends)
        .where(F.col("reason") != Reason.ELSEWHERE.value)
        .orderBy("reason", ID)
        .limit(EXAMPLES)
        .collect()
    ]


def _waits(ends: DataFrame) -> DataFrame:
    """Return the persistence ids that wait for another reason than being too young."""
    return ends.where(F.col("reason").isNotNull() & (F.col("reason") != Reason.YOUNG.value))
