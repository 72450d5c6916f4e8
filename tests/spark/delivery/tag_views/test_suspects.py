"""The fast path agrees with the rules: they deliver all rows that it calls clean, and it calls healthy
journals clean.

Many random journals, one persistence_id each, go through Spark in one job and are compared with the rules.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from tagmill.delivery.tag_views import file_summaries, suspects
from tagmill.delivery.tag_views.few_rows.judgement import is_delivered, was_delivered
from tagmill.domain.continuity.lives import is_in_doubt
from tagmill.domain.continuity.model import Action, FirstSeen, Policy, Progress, Reason, Row
from tagmill.domain.continuity.rules import judge
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import lowest
from tagmill.ledger.progress import read_intervals, write_intervals

HOUR = 36_000_000_000
START = 17_952_444_000_000_000
BUCKETS_A_UNIT = 2
ROWS_A_FILE = 120
POLICY = Policy(FirstSeen.REQUIRE_ONE, START + 100 * HOUR, HOUR, 5000)
WINDOWS = {"order": (START + HOUR, START + 3 * HOUR, (START + HOUR) // 10_000)}
KNOWN = (
    "tag string, persistence_id string, known_number bigint, known_sequence_nr bigint, known_ticks "
    "bigint, known_offset string, "
    "known_missing string, known_written bigint"
)


@dataclass
class Case:
    """Persistence_id with its rows, each with its bucket (in hours), and with what was delivered of it
    before.
    """

    name: str
    rows: list[tuple[int, Row]]
    known: Progress | None
    damage: list[str] = field(default_factory=list)


def event(number: int, sequence_nr: int, ticks: int) -> Row:
    return Row(number, sequence_nr, ticks, str(lowest(ticks)), "w-1")


def moved(row: Row, ticks: int) -> Row:
    return replace(row, ticks=ticks, offset=str(lowest(ticks)))


def healthy(random: Random, name: str) -> Case:
    """Return a case with events of some hours.

    Numbers, sequence_nrs and times rise; earlier runs delivered some of the events.
    """
    ticks, sequence_nr, events = START, 0, []
    for number in range(1, random.randint(2, 9)):
        ticks += random.choice([1, 10_000, HOUR // 3, HOUR])
        sequence_nr += random.randint(1, 3)
        events.append(event(number, sequence_nr, ticks))
    done = random.choice([0, 0, random.randint(0, len(events) - 1)])
    known = None
    if done:
        last = events[done - 1]
        known = Progress(last.number, last.sequence_nr, last.ticks, last.offset)
    return Case(name, [((row.ticks - START) // HOUR, row) for row in events[done:]], known)


def _drop(random: Random, case: Case) -> None:
    if len(case.rows) > 1:
        case.rows.pop(random.randrange(len(case.rows)))


def _duplicate(random: Random, case: Case) -> None:
    hour, row = random.choice(case.rows)
    case.rows.append((hour, moved(row, row.ticks + random.randint(1, 50_000))))


def _swap_times(random: Random, case: Case) -> None:
    if len(case.rows) > 1:
        a, b = random.sample(range(len(case.rows)), 2)
        (hour_a, row_a), (hour_b, row_b) = case.rows[a], case.rows[b]
        case.rows[a], case.rows[b] = (hour_b, moved(row_a, row_b.ticks)), (hour_a, moved(row_b, row_a.ticks))


def _change(random: Random, case: Case, **values: Any) -> None:
    at = random.randrange(len(case.rows))
    case.rows[at] = (case.rows[at][0], replace(case.rows[at][1], **values))


def _renumber(random: Random, case: Case) -> None:
    by = random.choice([-2, -1, 1, 2])
    case.rows = [(hour, replace(row, number=row.number + by)) for hour, row in case.rows]


def _two_events(random: Random, case: Case) -> None:
    hour, row = random.choice(case.rows)
    case.rows.append(
        (hour, moved(replace(row, sequence_nr=row.sequence_nr + 1, writer_uuid="w-2"), row.ticks + 1))
    )


def _other_progress(random: Random, case: Case) -> None:
    number = random.randint(1, 8)
    ticks = START + random.randint(0, 3) * HOUR
    case.known = Progress(number, random.randint(1, 20), ticks, str(lowest(ticks)))


def _missing_below(_: Random, case: Case) -> None:
    """Let number 1 be missing below progress, which alone makes no case a suspect."""
    if case.known:
        case.known = replace(case.known, missing=((1, 1),))


def _other_bucket(random: Random, case: Case) -> None:
    at = random.randrange(len(case.rows))
    case.rows[at] = (max(0, case.rows[at][0] + random.choice([-1, 1])), case.rows[at][1])


DAMAGE = {
    "drop": _drop,
    "duplicate": _duplicate,
    "swap times": _swap_times,
    "null event": lambda random, case: _change(random, case, event_missing=True),
    "broken offset": lambda random, case: _change(random, case, offset_broken=True),
    "no sequence_nr": lambda random, case: _change(random, case, sequence_nr=0),
    "sequence_nr": lambda random, case: _change(random, case, sequence_nr=random.randint(1, 20)),
    "number": lambda random, case: _change(random, case, number=random.randint(-1, 9)),
    "renumber": _renumber,
    "two events": _two_events,
    "progress": _other_progress,
    "missing below": _missing_below,
    "other bucket": _other_bucket,
}


def cases(seed: int) -> list[Case]:
    random = Random(seed)
    found = [healthy(random, f"healthy-{i}") for i in range(150)]
    for i in range(600):
        case = healthy(random, f"damaged-{i}")
        for _ in range(random.choice([1, 1, 2])):
            case.damage.append(random.choice(list(DAMAGE)))
            DAMAGE[case.damage[-1]](random, case)
        found.append(case)
    return found


def as_staged(journals: list[Case]) -> dict[str, list[dict[str, Any]]]:
    """Return rows as the scan stages them, by file.

    A unit holds some buckets in Cassandra's order and is cut into files by rows.
    """
    rows = [(hour, row.ticks, case.name, row) for case in journals for hour, row in case.rows]
    rows.sort(key=lambda item: (item[0] // BUCKETS_A_UNIT, item[0], item[1], item[2], item[3].number))
    files: dict[str, list[dict[str, Any]]] = {}
    counts: dict[int, int] = {}
    for hour, _, name, row in rows:
        unit = hour // BUCKETS_A_UNIT
        place = counts[unit] = counts.get(unit, -1) + 1
        files.setdefault(f"part-{unit:05d}-c{place // ROWS_A_FILE:03d}.parquet", []).append(
            {
                "unit": unit,
                "tag": "order",
                "persistence_id": name,
                "offset": row.offset,
                "event_missing": row.event_missing,
                "offset_broken": row.offset_broken,
                "tag_pid_sequence_nr": row.number,
                "sequence_nr": row.sequence_nr,
                "event_time": row.ticks,
                "timebucket": (START + hour * HOUR) // 10_000,
                "size": len(name),
                "row_checksum": 2**62 + row.ticks,
            }
        )
    return files


def tables(journals: list[Case]) -> dict[str, pa.Table]:
    """Return the rows of each staged file."""
    return {name: pa.Table.from_pylist(rows) for name, rows in as_staged(journals).items()}


def summaries(spark: SparkSession, root: Path, journals: list[Case]) -> DataFrame:
    """Return the summaries of the files that the journals' rows are in."""
    of_files = [file_summaries.summary(rows, name, WINDOWS) for name, rows in tables(journals).items()]
    pq.write_table(pa.Table.from_batches(of_files), root / "summaries.parquet")
    return spark.read.parquet(str(root / "summaries.parquet"))


@pytest.fixture(scope="module")
def journals() -> dict[str, Case]:
    return {
        case.name: case
        for seed in (1, 2)
        for case in (replace(c, name=f"{c.name}-{seed}") for c in cases(seed))
    }


@pytest.fixture(scope="module")
def clean(
    spark: SparkSession, journals: dict[str, Case], tmp_path_factory: pytest.TempPathFactory
) -> set[str]:
    """Return the persistence_ids that the fast path calls clean."""
    by_file = summaries(spark, tmp_path_factory.mktemp("all"), list(journals.values()))
    known = spark.createDataFrame(
        [
            ("order", name, k.number, k.sequence_nr, k.ticks, k.offset, write_intervals(k.missing), 1)
            for name, case in journals.items()
            if (k := case.known)
        ],
        KNOWN,
    )
    runs = suspects.run_summaries(by_file).join(known, list(suspects.KEY), "left")
    judged = runs.select("persistence_id", suspects.is_clean(written_to=1).alias("clean")).collect()
    assert {row.persistence_id for row in judged} == set(journals)
    assert all(row.clean is not None for row in judged)  # A null would be neither clean nor a suspect.
    return {row.persistence_id for row in judged if row.clean}


def test_clean_rows_are_delivered_as_next(journals: dict[str, Case], clean: set[str]) -> None:
    """Rows of a persistence_id that the fast path calls clean are all delivered by the rules, each as the
    next number.
    """
    for name in clean:
        judgement = judge(journals[name].known, [row for _, row in journals[name].rows], POLICY)
        assert {(d.action, d.reason) for d in judgement.decisions} == {(Action.DELIVER, Reason.NEXT)}, (
            journals[name]
        )


def test_healthy_journals_are_clean(journals: dict[str, Case], clean: set[str]) -> None:
    assert {name for name in journals if name.startswith("healthy")} <= clean


def test_each_damage_makes_some_journal_a_suspect(journals: dict[str, Case], clean: set[str]) -> None:
    found = {case.damage[0] for name, case in journals.items() if len(case.damage) == 1 and name not in clean}
    assert found >= set(DAMAGE) - {"other bucket", "missing below"}


def test_numbers_missing_below_progress_stay_clean(journals: dict[str, Case], clean: set[str]) -> None:
    """Numbers that are missing below progress do not make a persistence_id a suspect."""
    alone = {name for name, case in journals.items() if case.damage == ["missing below"]}
    assert alone
    assert alone <= clean


def test_clean_rows_are_staged_in_rules_order(journals: dict[str, Case], clean: set[str]) -> None:
    """Files hold the rows of a clean persistence_id in the order in which the rules deliver them."""
    in_files: dict[str, list[int]] = {}
    for rows in as_staged(list(journals.values())).values():
        for row in rows:
            in_files.setdefault(row["persistence_id"], []).append(row["tag_pid_sequence_nr"])
    assert all(in_files[name] == sorted(in_files[name]) for name in clean)


def test_summary_of_clean_journal_equals_rules_progress(
    spark: SparkSession, journals: dict[str, Case], clean: set[str], tmp_path: Path
) -> None:
    """Summaries of clean journals end with the progress that the rules reach."""
    ends = {
        row.persistence_id: row
        for row in summaries(spark, tmp_path, [journals[name] for name in clean]).orderBy("high").collect()
    }
    assert set(ends) == clean
    for name, end in ends.items():
        progress = judge(journals[name].known, [row for _, row in journals[name].rows], POLICY).progress
        before = journals[name].known
        missing = before.missing if before else ()
        assert progress == Progress(end.high, end.high_sequence_nr, end.high_ticks, end.high_offset, missing)


def test_totals_of_files_equal_their_rows(journals: dict[str, Case]) -> None:
    """File totals (rows, size, checksum, first and last ticks, rows in the window) equal those of the file's
    rows.
    """
    after, until, bucket = WINDOWS["order"]
    totals = [
        file_summaries.total_of(
            file_summaries.summary(rows, name, WINDOWS), rows, new_units={0, 1}, size=BucketSize.HOUR
        )
        for name, rows in tables(list(journals.values())).items()
    ]
    expected = [
        file_summaries.FileTotal(
            unit=rows[0]["unit"],
            file=file,
            tag="order",
            is_new=rows[0]["unit"] in {0, 1},
            rows=len(rows),
            size=sum(row["size"] for row in rows),
            checksum=sum(row["row_checksum"] for row in rows) % 2**64,
            first_ticks=min(row["event_time"] for row in rows),
            last_ticks=max(row["event_time"] for row in rows),
            window_rows=sum(
                after < row["event_time"] <= until and row["timebucket"] >= bucket for row in rows
            ),
        )
        for file, rows in as_staged(list(journals.values())).items()
    ]
    assert [replace(total, checksum=total.checksum % 2**64, hours=()) for total in totals] == expected


KEY_ROWS = (
    "tag_pid_sequence_nr bigint, sequence_nr bigint, event_time bigint, offset string, known_number "
    "bigint, known_sequence_nr bigint, "
    "known_ticks bigint, known_offset string, known_missing string, known_life_from bigint"
)


def key_rows(rows: list[Row], known: Progress | None) -> list[tuple[Any, ...]]:
    """Return key rows with progress, in the columns of KEY_ROWS."""
    of_progress: tuple[Any, ...] = (None, None, None, None, None, 0)
    if known:
        of_progress = (known.number, known.sequence_nr, known.ticks, known.offset)
        of_progress += (write_intervals(known.missing), known.life_from)
    return [(row.number, row.sequence_nr, row.ticks, row.offset, *of_progress) for row in rows]


def test_rows_of_earlier_life_are_settled(spark: SparkSession) -> None:
    """Rows from before the present life are delivered and not in doubt, for Spark's columns and for the rules."""
    known = Progress(2, 20, START + 9, str(lowest(START + 9)), ((1, 1),), START + 5)
    rows = [event(n, 10 * n, START + ticks) for n in range(1, 5) for ticks in (4, 5, 10)]
    settled, ever, doubt = suspects.is_delivered(), suspects.was_delivered(), suspects.is_in_doubt()
    frame = spark.createDataFrame(key_rows(rows, known), KEY_ROWS).select(settled, ever, doubt)
    told = [tuple(line) for line in frame.collect()]
    assert told == [
        (
            is_delivered(row.number, row.sequence_nr, row.ticks, row.offset, known),
            was_delivered(row, known),
            is_in_doubt(known, row),
        )
        for row in rows
    ]
    assert told[::3] == [(True, True, False)] * 4
    first_life, past = replace(known, life_from=0), event(3, 30, -1)
    frame = spark.createDataFrame(key_rows([past], first_life), KEY_ROWS).select(settled, ever)
    assert [tuple(line) for line in frame.collect()] == [(False, False)]


def test_is_delivered_column_agrees_with_rules(spark: SparkSession) -> None:
    """Rows that Spark's column calls delivered are those that the rules drop.

    Without progress it calls no row delivered.
    """
    known = Progress(4, 40, START, str(lowest(START)))
    rows = [event(n, s, START - 4 + n) for n in range(1, 7) for s in (10, 40, 41, 90)]
    frame = spark.createDataFrame(key_rows(rows, known) + key_rows(rows, None), KEY_ROWS)
    told = [row.delivered for row in frame.select(suspects.is_delivered().alias("delivered")).collect()]
    dropped = [judge(known, [row], POLICY).decisions[0].action == Action.DROP for row in rows]
    assert told == dropped + [False] * len(rows)
    assert sum(dropped) == 8


def test_in_doubt_column_agrees_with_rule(spark: SparkSession) -> None:
    """Spark's column and the rule agree on which rows of delivered numbers may belong to another life."""
    known = Progress(4, 40, START, str(lowest(START)))
    rows = [event(n, 10 * n, START + ticks) for n in range(1, 7) for ticks in (-1, 0, 1)]
    without_time = Progress(4, 40, 0, "")
    frame = spark.createDataFrame(
        key_rows(rows, known) + key_rows(rows, without_time) + key_rows(rows, None), KEY_ROWS
    )
    told = [row.doubt for row in frame.select(suspects.is_in_doubt().alias("doubt")).collect()]
    wanted = [is_in_doubt(known, row) for row in rows]
    assert told == wanted + [False] * 2 * len(rows)
    assert sum(wanted) == 5


def test_is_delivered_leaves_missing_numbers_to_rules(spark: SparkSession) -> None:
    """Numbers within or below what is missing, and number 0, are not called delivered, so that the rules
    judge them. Those below were delivered nevertheless.
    """
    numbers = [
        (3, 30, 4, 40, "3-3"),
        (1, 10, 4, 40, "2-2"),
        (4, 40, 4, 40, "1-1"),
        (4, 40, 4, 40, "1-1,3-3"),
        (0, 0, 4, 40, ""),
        (11, 12, 30, 40, "2-9,12-20"),
        (31, 12, 30, 40, "2-9,12-20"),
    ]
    frame = spark.createDataFrame(
        [
            (number, nr, 0, "o", known, known_nr, 0, "o", missing, 0)
            for number, nr, known, known_nr, missing in numbers
        ],
        KEY_ROWS,
    )
    told = frame.select(
        suspects.is_delivered().alias("next"), suspects.was_delivered().alias("ever")
    ).collect()
    assert [row.next for row in told] == [False, False, True, True, False, False, False]
    assert [row.ever for row in told] == [False, True, True, True, False, True, False]
    for (number, nr, known, known_nr, missing), line in zip(numbers, told, strict=True):
        progress = Progress(known, known_nr, 0, "o", read_intervals(missing))
        assert was_delivered(Row(number, nr, 0, "o", ""), progress) is line.ever
        assert is_delivered(number, nr, 0, "o", progress) is line.next
