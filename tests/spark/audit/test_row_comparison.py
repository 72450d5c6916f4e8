"""Findings of the audit's comparison, case by case, from handmade rows of journal, view and ClickHouse."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tagmill.audit.row_comparison import compared
from tagmill.audit.staging import Scope
from tagmill.domain.time_buckets import BucketSize

HOUR = BucketSize.HOUR.ticks
NOW = 17_952_444_000_000_000
BUCKET = NOW // 10_000
JOURNAL = (
    "persistence_id string, partition_nr bigint, sequence_nr bigint, offset string, ticks bigint, bucket "
    "bigint, writer_uuid string, "
    "tags array<string>, tag_count int, event_hash bigint, flaw string"
)
VIEW = (
    "tag string, persistence_id string, sequence_nr bigint, number bigint, offset string, ticks bigint, "
    "bucket bigint, timebucket bigint, "
    "writer_uuid string, size int, event_hash bigint, row_hash bigint, broken boolean"
)
STORED = (
    "tag string, persistence_id string, sequence_nr bigint, number bigint, ticks bigint, offset string, "
    "writer_uuid string, "
    "batch_id string, bucket bigint, event_hash bigint, row_hash bigint"
)
SCOPE = Scope(
    "p", ("t",), BucketSize.HOUR, {"t": 0}, {"t": NOW + HOUR - 100}, NOW + HOUR - 1, {"t": NOW + HOUR - 50}
)

# Ticks between what is due and the watermark: a row may have been delivered or may still be pending.
LATE = NOW + HOUR - 60


def event(hash_: int = 1, ticks: int = NOW, flaw: str | None = None) -> tuple[Any, ...]:
    """Return a row of the journal."""
    return ("j", 0, f"o-{hash_}", ticks, hash_, flaw)


def row(hash_: int = 1, number: int = 1, ticks: int = NOW, timebucket: int = BUCKET) -> tuple[Any, ...]:
    """Return a row of the view."""
    return ("v", number, f"o-{hash_}", ticks, hash_, timebucket)


def stored(hash_: int = 1, number: int = 1, ticks: int = NOW) -> tuple[Any, ...]:
    """Return a row of ClickHouse's table."""
    return ("c", number, f"o-{hash_}", ticks, hash_, "b-1")


# Rows of one event in each store -> kinds of findings. `deleted` and `held` describe its persistence_id,
# `cleaned` and `expired` its bucket.
CASES: dict[str, tuple[list[Any], list[str]]] = {
    "all agree": ([event(), row(), stored()], []),
    "pending": ([event(ticks=NOW + HOUR - 50), row(ticks=NOW + HOUR - 50)], []),
    "late": ([event(ticks=LATE), row(ticks=LATE)], []),
    "late and delivered": ([event(ticks=LATE), row(ticks=LATE), stored(ticks=LATE)], []),
    "late and delivered otherwise": (
        [event(ticks=LATE), row(ticks=LATE), stored(2, ticks=LATE)],
        ["differs_in_clickhouse"],
    ),
    "late and twice": (
        [event(ticks=LATE), row(ticks=LATE), stored(ticks=LATE), stored(ticks=LATE)],
        ["duplicated_in_clickhouse"],
    ),
    "not in the view": ([event(), stored()], ["missing_in_view"]),
    "nowhere but in the journal": ([event()], ["missing_in_clickhouse", "missing_in_view"]),
    "not in ClickHouse": ([event(), row()], ["missing_in_clickhouse"]),
    "held": ([event(), row(), "held"], ["held"]),
    "unknown to the journal": ([row(), stored()], ["extra_in_view"]),
    "deleted in the journal": ([row(), stored(), "deleted"], []),
    "deleted in the journal and not delivered": ([row(), "deleted"], ["missing_in_clickhouse"]),
    "deleted everywhere but in ClickHouse": ([stored(), "deleted"], []),
    "deleted everywhere and twice in ClickHouse": (
        [stored(), stored(), "deleted"],
        ["duplicated_in_clickhouse"],
    ),
    "deleted, not cleaned, twice in ClickHouse": (
        [row(), stored(), stored(), "deleted"],
        ["duplicated_in_clickhouse"],
    ),
    "only in ClickHouse": ([stored()], ["extra_in_clickhouse"]),
    "twice in the view": ([event(), row(), row(number=17), stored()], ["duplicated_in_view"]),
    "twice in the view at another time": ([event(), row(), row(2), stored()], ["duplicated_in_view"]),
    "in another bucket too": (
        [event(), row(), row(timebucket=BUCKET - 3_600_000), stored()],
        ["duplicated_in_view"],
    ),
    "another payload in the view": (
        [event(), row(2), stored(2)],
        ["differs_in_clickhouse", "differs_in_view"],
    ),
    "another payload in ClickHouse": ([event(), row(), stored(2)], ["differs_in_clickhouse"]),
    "another number in ClickHouse": ([event(), row(), stored(number=2)], ["differs_in_clickhouse"]),
    "twice in ClickHouse": ([event(), row(), stored(), stored()], ["duplicated_in_clickhouse"]),
    "twice in ClickHouse and another time": (
        [event(), row(), stored(), stored(2)],
        ["duplicated_in_clickhouse"],
    ),
    "two writers, one in the view": ([event(), event(2), row(), stored()], []),
    "cleaned": ([event(), stored(), "cleaned"], []),
    "expired": ([event(), stored(), "expired"], []),
    "expired and not delivered": ([event(), "expired"], ["missing_in_clickhouse", "missing_in_view"]),
    "expired and not gone": ([event(), row(2), stored(), "expired"], ["differs_in_view"]),
    "cleaned and lost": ([event(), "cleaned"], ["missing_in_clickhouse"]),
    "cannot be read and is not in the view": ([event(flaw="no_event")], ["unreadable"]),
    "cannot be read and was migrated": ([event(flaw="before_0_10"), row(2), stored(2)], []),
    "cannot be read, migrated and not delivered": (
        [event(flaw="before_0_10"), row(2)],
        ["missing_in_clickhouse"],
    ),
    "the view is right where ClickHouse lost it": (
        [event(), row(), row(2)],
        ["duplicated_in_view", "missing_in_clickhouse"],
    ),
}


@pytest.fixture(scope="module")
def kinds(spark: SparkSession) -> Iterator[dict[str, list[str]]]:
    """Yield the kinds of findings by case.

    All cases go through one Spark job, each as its own persistence_id.
    """
    journal, view, clickhouse, deleted, held = [], [], [], [], []
    for name, (rows, _) in CASES.items():
        own = BUCKET - 3_600_000 * (1 if "cleaned" in rows else 2 if "expired" in rows else 0)
        for part in rows:
            if part == "deleted":
                deleted.append((name, 1))
            elif part == "held":
                held.append(("t", name))
            elif part not in ("cleaned", "expired"):
                party, number, offset, ticks, hash_, last = part
                ticks -= BUCKET * 10_000 - own * 10_000
                if party == "j":
                    journal.append((name, number, 1, offset, ticks, own, "w", ["t"], 1, hash_, last))
                elif party == "v":
                    view.append(
                        (
                            "t",
                            name,
                            1,
                            number,
                            offset,
                            ticks,
                            own,
                            last,
                            "w",
                            10,
                            hash_,
                            hash_ * 10 + number,
                            False,
                        )
                    )
                else:
                    clickhouse.append(
                        ("t", name, 1, number, ticks, offset, "w", last, own, hash_, hash_ * 10 + number)
                    )
    found = compared(
        spark.createDataFrame(journal, JOURNAL),
        spark.createDataFrame(view, VIEW),
        spark.createDataFrame(clickhouse, STORED),
        spark.createDataFrame(deleted, "persistence_id string, deleted_to bigint"),
        spark.createDataFrame(held, "tag string, persistence_id string"),
        {BucketSize.HOUR: spark.createDataFrame([("t", BUCKET - 3_600_000)], "tag string, start bigint")},
        spark.createDataFrame(
            [("t", BUCKET - 3_600_000 * hours) for hours in range(3)], "tag string, bucket bigint"
        ),
        replace(SCOPE, expired_in_view=NOW - HOUR),
    ).collect()
    by_case: dict[str, list[str]] = {name: [] for name in CASES}
    for line in found:
        assert line["detail"] and line["writer_uuid"] == "w", line
        by_case[line["persistence_id"]].append(line["kind"])
    yield {name: sorted(kinds) for name, kinds in by_case.items()}


@pytest.mark.parametrize("case", CASES)
def test_each_damage_has_its_kind(case: str, kinds: dict[str, list[str]]) -> None:
    assert kinds[case] == CASES[case][1]
