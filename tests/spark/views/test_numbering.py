"""Numbers given in Spark, and by this process, equal those of counting event by event, for any layout of files and any steps of the
build.

Many random journals, one persistence_id each, are staged at once and compared with the rules.
"""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import GREGORIAN_TICKS, lowest
from tagmill.journal.flaws import Reason
from tagmill.runs.storage import RunFiles
from tagmill.views import numbering, run_numbering
from tagmill.views.few_rows import numbering as few_rows
from tagmill.views.few_rows.positions import Position
from tagmill.views.numbered import Line
from tests.support.numbering import Event, Stand, build

START = 17_952_444_000_000_000
TAGS = ("a", "b", "ü / '1'")
EVENTS = pa.schema(
    {
        "persistence_id": pa.string(), "partition_nr": pa.int64(), "sequence_nr": pa.int64(), "timestamp": pa.string(),
        "ticks": pa.int64(), "tags": pa.list_(pa.string()), "flaw": pa.string(), "event": pa.binary(), "event_manifest": pa.string(),
        "ser_id": pa.int32(), "ser_manifest": pa.string(), "writer_uuid": pa.string(),
    }
)  # fmt: skip
STARTING_POINTS = (
    "persistence_id string, sequence_nr bigint, partition_nr bigint, from_nr bigint, scanned bigint, "
    "adopted boolean, "
    "progress array<struct<tag:string,number:bigint,sequence_nr:bigint,offset:string>>"
)


def journal(random: Random) -> list[Event]:
    """Return a random journal with at most two flaws."""
    events = [
        Event(number, tuple(sorted(random.sample(TAGS, random.choice([0, 0, 1, 1, 2, 3])))))
        for number in range(1, random.choice([1, 2, 7, 8, 9, 40]) + 1)
    ]
    for _ in range(random.choice([0, 0, 0, 1, 2])):
        victim = random.choice(events)
        kind = random.choice(["gone", "twice", "flaw", "young"])
        if kind == "gone" and len({event.sequence_nr for event in events}) > 1:
            events = [event for event in events if event.sequence_nr != victim.sequence_nr]
        elif kind == "twice":
            events.append(Event(victim.sequence_nr, victim.tags, writer=1))
        elif kind in ("flaw", "young"):
            flaw = Reason.NO_EVENT if kind == "flaw" else Reason.YOUNG
            events = [Event(e.sequence_nr, e.tags, flaw.value) if e is victim else e for e in events]
    return sorted(events, key=lambda event: (event.sequence_nr, event.writer))


def stand(random: Random, events: list[Event]) -> Stand:
    """Return the stand after a build of the first events, perhaps of none; some events may be deleted."""
    highest = events[-1].sequence_nr
    begun = build(Stand(), [event for event in events if event.sequence_nr <= random.randint(0, highest)])[1]
    begun.deleted_to = random.choice([0, 0, random.randint(0, highest)])
    return begun


def staged(
    files: RunFiles, rows: list[dict[str, Any]], random: Random, *, row_group: int, in_order: bool
) -> list[str]:
    """Write the rows to three files of small row groups and return their names.

    `in_order`: a persistence_id's rows are in order, and together unless their partitions differ; otherwise
    all rows are shuffled.
    """
    if in_order:
        rows = sorted(rows, key=lambda row: hash((row["persistence_id"], row["partition_nr"])))
    else:
        random.shuffle(rows)
    names = []
    for index, part in enumerate((rows[: len(rows) // 3], [], rows[len(rows) // 3 :])):
        names.append(f"events/{index}.parquet")
        with files.create(names[-1]) as sink:
            pq.write_table(pa.Table.from_pylist(part, EVENTS), sink, row_group_size=row_group)
    return names


def numbered(
    spark: SparkSession, root: Path, cases: dict[str, tuple[Stand, list[Event]]], seed: int, **layout: Any
) -> dict[str, Any]:
    """Number the cases in Spark.

    Return numbers by (tag, sequence_nr), upto, reason and progress record of each persistence_id.
    """
    rows, known = [], []
    payload = {"event": b"e", "event_manifest": "", "ser_id": 4, "ser_manifest": "", "writer_uuid": "w"}
    for name, (begun, events) in cases.items():
        start = max(begun.sequence_nr, begun.deleted_to)
        for event in events:
            if event.sequence_nr > start:
                ticks = START + 10 * event.sequence_nr + event.writer
                rows.append(
                    {
                        "persistence_id": name,
                        "partition_nr": event.sequence_nr // 10,
                        "sequence_nr": event.sequence_nr,
                        "timestamp": str(lowest(ticks)),
                        "ticks": ticks if event.flaw is None else None,
                        "tags": list(event.tags) or None,
                        "flaw": event.flaw,
                        **payload,
                    }
                )
        progress = [(tag, number, nr, "") for tag, (number, nr) in sorted(begun.numbers.items())]
        known.append((name, begun.sequence_nr, 0, start, None, False, progress))
    files = RunFiles(str(root))
    names, starting_points = (
        staged(files, rows, Random(seed), **layout),
        _starting_points(spark, known).cache(),
    )
    run_numbering.find_runs(files, names, "runs")
    runs = spark.read.parquet(files.url("runs"))
    ends = numbering.numberable_upto(runs, starting_points).cache()
    numbering.run_start_numbers(runs, ends, starting_points).repartition("file").write.partitionBy(
        "file"
    ).parquet(files.url("starts"))
    sums = run_numbering.number_rows(files, names, "", BucketSize.HOUR, meta=False, first_ticks=START + 50)
    found: dict[str, Any] = {
        name: {"numbers": {}, "upto": None, "reason": None, "progress": None} for name in cases
    }
    told = run_numbering.Sums()
    for row in (row for batch in files.record_batches("rows", 1000) for row in batch.to_pylist()):
        key, ticks = (row["tag_name"], row["sequence_nr"]), UUID(row["timestamp"]).time - GREGORIAN_TICKS
        assert key not in found[row["persistence_id"]]["numbers"]
        assert {name: row[name] for name in payload} == payload
        assert row["timebucket"] == BucketSize.HOUR.start(ticks)
        found[row["persistence_id"]]["numbers"][key] = row["tag_pid_sequence_nr"]
        told.add(
            run_numbering.Sums(Counter([row["tag_name"]]), {row["tag_name"]: ticks}, int(ticks < START + 50))
        )
    assert sums == told
    for row in ends.collect():
        found[row.persistence_id] |= {"upto": row.upto, "reason": row.reason}
    reached = spark.read.parquet(files.url("reached"))
    for row in numbering.records(reached, ends, starting_points).collect():
        lines = {line.tag: (line.number, line.sequence_nr) for line in row.progress}
        found[row.persistence_id]["progress"] = (row.sequence_nr, row.partition_nr, lines)
    must_equal_those_of_few_rows(files, known, runs, ends, numbering.records(reached, ends, starting_points))
    return found


def must_equal_those_of_few_rows(
    files: RunFiles, known: list[tuple[Any, ...]], runs: Any, ends: Any, records: Any
) -> None:
    """Apply the rules in this process, too: ends, starts and records equal those of Spark."""
    positions = {
        name: Position(
            name, sequence_nr, 0, True, start, None, [Line(*line) for line in progress], [], 0, None
        )
        for name, sequence_nr, _, start, _, _, progress in known
    }
    lines = [row for batch in files.record_batches("runs", 1000) for row in batch.to_pylist()]
    here = few_rows.ends(lines, {name: one.from_nr for name, one in positions.items()})
    assert sorted(here) == sorted(map(tuple, ends.collect()))
    starts = [
        (file, line["run"], line["upto"], line["tag"], line["start"])
        for file, of_file in few_rows.start_numbers(lines, here, positions).items()
        for line in of_file
    ]
    by_spark = numbering.run_start_numbers(runs, ends, _starting_points(runs.sparkSession, known)).collect()
    assert sorted(starts, key=repr) == sorted(map(tuple, by_spark), key=repr)
    reached = [row for batch in files.record_batches("reached", 1000) for row in batch.to_pylist()]
    made = {
        row["persistence_id"]: row | {"new": set(row["new"])}
        for row in few_rows.records(reached, here, positions)
    }
    assert made == {
        row.persistence_id: row.asDict(recursive=True) | {"new": set(row.new)} for row in records.collect()
    }


def _starting_points(spark: SparkSession, known: list[tuple[Any, ...]]) -> Any:
    return spark.createDataFrame(known, STARTING_POINTS)


@pytest.mark.parametrize(
    ("seed", "layout"),
    [
        (1, {"row_group": 100_000, "in_order": True}),
        (2, {"row_group": 7, "in_order": True}),
        (3, {"row_group": 50, "in_order": False}),
    ],
    ids=["as Cassandra gives them", "in small row groups", "in no order"],
)
def test_runs_give_the_numbers_that_counting_gives(spark, tmp_path, seed, layout):
    random = Random(seed)
    cases = {}
    for index in range(120):
        events = journal(random)
        cases[f"p-{index}"] = (stand(random, events), events)
    found = numbered(spark, tmp_path, cases, seed, **layout)
    reasons = set()
    for name, (begun, events) in cases.items():
        numbers, after, reason = build(begun, events)
        start = max(begun.sequence_nr, begun.deleted_to)
        assert found[name]["numbers"] == numbers, name
        if any(event.sequence_nr > start for event in events):
            assert (found[name]["upto"], found[name]["reason"]) == (after.sequence_nr, reason), name
        if after.sequence_nr > start:
            assert found[name]["progress"] == (after.sequence_nr, after.sequence_nr // 10, after.numbers), (
                name
            )
        else:
            assert found[name]["progress"] is None
        reasons.add(reason)
    assert reasons == {None, "hole", "two_writers", "no_event", "young"}


@given(st.integers(0, 2**32), st.lists(st.integers(0, 60), max_size=4))
def test_build_in_steps_equals_build_at_once(seed, stops):
    """Builds in steps, over a journal that grows, give what one build at the end gives."""
    events = journal(Random(seed))
    in_one, at_once, _ = build(Stand(), events)
    begun, in_steps = Stand(), {}
    for stop in [*sorted(stops), events[-1].sequence_nr]:
        numbers, begun, _ = build(begun, [event for event in events if event.sequence_nr <= stop])
        assert not set(numbers) & set(in_steps)
        in_steps |= numbers
    assert (in_steps, begun) == (in_one, at_once)


@given(st.integers(0, 2**32))
def test_build_numbers_each_tag_from_one_gapless(seed):
    """Numbers of each tag of a persistence_id start at 1 and have no gap."""
    numbers, _, _ = build(Stand(), journal(Random(seed)))
    for tag in TAGS:
        found = [
            number
            for (name, _), number in sorted(numbers.items(), key=lambda item: item[0][1])
            if name == tag
        ]
        assert found == list(range(1, len(found) + 1))
