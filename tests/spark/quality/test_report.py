"""Quality reports on small frames: their counts, the rows that they name, and the passes over the rows that
they cost.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tagmill.config.tag_views import QualitySettings
from tagmill.domain.time_buckets import BucketSize
from tagmill.quality import gate
from tagmill.quality.model import OffendingRow, SchemaColumn
from tagmill.quality.report import damaged_rows, read_reports, tag_report
from tagmill.quality.suspects import COLUMNS, Suspects

JUDGED = (
    "tag string, persistence_id string, tag_pid_sequence_nr bigint, sequence_nr bigint, ticks bigint, "
    "timebucket bigint, "
    "bad_key boolean, event_missing boolean, ttl_seconds int, file string"
)
SEVEN = 1_795_244_400_000  # 2026-11-21T07:00Z: the start of an hour, not of a day
MIDNIGHT = SEVEN - 7 * 3_600_000
MINUTE = 60_000 * 10_000  # ticks


def row(number: int, ticks: int | None, timebucket: int = SEVEN, **changes: Any) -> tuple[Any, ...]:
    values: dict[str, Any] = {
        "tag": "order",
        "persistence_id": "o-1",
        "tag_pid_sequence_nr": number,
        "sequence_nr": number,
        "ticks": ticks,
        "timebucket": timebucket,
        "bad_key": False,
        "event_missing": False,
        "ttl_seconds": None,
        "file": "f-1",
    }
    return tuple((values | changes).values())


def judged(spark: SparkSession, rows: Sequence[tuple[Any, ...]]) -> DataFrame:
    return spark.createDataFrame(list(rows), JUDGED)


def hours(bucket: int, count: int = 60) -> list[tuple[Any, ...]]:
    """Return rows one minute apart, from the bucket's start on and all in that bucket."""
    return [row(n + 1, bucket * 10_000 + n * MINUTE, bucket) for n in range(count)]


def test_one_line_a_tag_with_every_count(spark: SparkSession) -> None:
    """Report one line per tag with all counts, first and last ticks and the smallest TTL."""
    rows = [
        row(1, SEVEN * 10_000),
        row(2, SEVEN * 10_000 + 3_600_000 * 10_000, ttl_seconds=50),  # the first tick of the next hour
        row(3, SEVEN * 10_000 - 1, ttl_seconds=20),  # the last tick of the hour before
        row(4, SEVEN * 10_000 + 3_600_000 * 10_000 - 1, event_missing=True),
        row(0, SEVEN * 10_000, bad_key=True, persistence_id=None),
        row(5, None),  # A broken offset has no time to compare.
        row(1, SEVEN * 10_000, SEVEN + 1, tag="billing", persistence_id="o-2"),
    ]
    report = tag_report(judged(spark, rows), BucketSize.HOUR.milliseconds)
    billing, order = sorted(report.collect(), key=lambda line: line.tag)
    assert order.asDict() == {
        "tag": "order",
        "rows": 6,
        "null_keys": 1,
        "null_events": 1,
        "timebucket_misaligned": 0,
        "wrong_bucket": 2,
        "fits_day": 0,
        "fits_hour": 3,
        "fits_minute": 2,
        "first_ticks": SEVEN * 10_000 - 1,
        "last_ticks": SEVEN * 10_000 + 3_600_000 * 10_000,
        "smallest_ttl_seconds": 20,
    }
    assert (billing.tag, billing.rows, billing.timebucket_misaligned, billing.wrong_bucket) == (
        "billing",
        1,
        1,
        1,
    )


def test_hour_data_judged_as_day_is_misaligned(spark: SparkSession) -> None:
    (report,) = tag_report(judged(spark, hours(SEVEN)), BucketSize.DAY.milliseconds).collect()
    assert (report.timebucket_misaligned, report.wrong_bucket) == (60, 60)
    assert (report.fits_day, report.fits_hour, report.fits_minute) == (0, 60, 1)


def test_report_day_data_as_hour_finds_rows_outside(spark: SparkSession) -> None:
    """Judged as Hour, data in day buckets is aligned, but all rows after the first hour lie outside of their
    bucket.
    """
    day = [row(n + 1, MIDNIGHT * 10_000 + n * 60 * MINUTE, MIDNIGHT) for n in range(24)]
    (report,) = tag_report(judged(spark, day), BucketSize.HOUR.milliseconds).collect()
    assert (report.timebucket_misaligned, report.wrong_bucket) == (0, 23)
    assert (report.fits_day, report.fits_hour, report.fits_minute) == (24, 1, 1)


def test_report_minute_data_as_hour_is_misaligned(spark: SparkSession) -> None:
    """Judged as Hour, minute buckets are misaligned unless they start on a full hour."""
    minutes = [row(n + 1, (SEVEN + n * 60_000) * 10_000 + 5, SEVEN + n * 60_000) for n in range(60)]
    (report,) = tag_report(judged(spark, minutes), BucketSize.HOUR.milliseconds).collect()
    assert (report.timebucket_misaligned, report.fits_minute, report.fits_hour) == (59, 60, 1)


def test_damaged_rows_name_file_up_to_limit(spark: SparkSession) -> None:
    """Rows with a damaged key or a wrong bucket are named with their file, at most as many as the limit."""
    rows = [
        *hours(SEVEN, 5),
        row(0, SEVEN * 10_000, bad_key=True, persistence_id=None, file="f-2"),
        row(9, SEVEN * 10_000 - 1),
    ]
    found = [
        OffendingRow(**line.asDict())
        for line in damaged_rows(judged(spark, rows), BucketSize.HOUR.milliseconds, 3).collect()
    ]
    assert found == [
        OffendingRow("null_key", "read", "order", None, 0, 0, SEVEN * 10_000, SEVEN, "f-2"),
        OffendingRow("wrong_bucket", "read", "order", "o-1", 9, 9, SEVEN * 10_000 - 1, SEVEN, "f-1"),
    ]
    assert (
        damaged_rows(judged(spark, rows), BucketSize.DAY.milliseconds, 3)
        .where("reason = 'misaligned_bucket'")
        .count()
        == 3
    )


def test_read_reports_clean_run_reads_rows_once(spark: SparkSession, tmp_path: Path) -> None:
    """Make all reports of a run without suspects in one pass over its rows."""
    judged(spark, hours(SEVEN)).write.parquet(str(tmp_path / "keys"))
    reads = spark.sparkContext.accumulator(0)
    schema = spark.read.parquet(str(tmp_path / "keys")).schema

    def counted(rows: Any) -> Any:
        for one in rows:
            reads.add(1)
            yield one

    keys = spark.createDataFrame(
        spark.read.parquet(str(tmp_path / "keys")).rdd.mapPartitions(counted), schema
    )
    reports = read_reports(keys, Suspects(20), [SchemaColumn("event", "blob", "blob")], BucketSize.HOUR, 20)
    assert reads.value == 60
    assert (reports.rows, reports.held, reports.offending) == (60, 0, ())


@pytest.mark.parametrize("size", [BucketSize.DAY, BucketSize.MINUTE])
def test_gate_other_bucket_size_stops_naming_rows(
    spark: SparkSession, tmp_path: Path, size: BucketSize
) -> None:
    """Hour data configured as Day or Minute stops the run; the failure names a row and the size that fits."""
    reports = read_reports(judged(spark, hours(SEVEN)), Suspects(20), [], size, 20)
    limits = QualitySettings(min_rows_for_share=60)
    verdict = gate.judge(reports, limits, docs_dir=str(tmp_path), run_name="run-00000001")
    assert (verdict.passed, verdict.severity) == (False, "stop")
    assert "'o-1' number" in verdict.failures[0]
    assert 'set bucket_size = "Hour"' in verdict.failures[0]
    assert "o-1" in Path(verdict.docs_page).read_text()


def test_read_reports_shared_row_is_named_once(spark: SparkSession) -> None:
    """Rows that the tag report and the suspects both find are named once."""
    rows = judged(spark, [row(1, SEVEN * 10_000 - 1)])
    row_again = ("order", "o-1", 1, 1, SEVEN * 10_000 - 1, SEVEN, "deliver", "wrong_bucket")
    found = Suspects(20)
    found.add(pa.Table.from_pylist([dict(zip(COLUMNS, row_again, strict=True))]))
    reports = read_reports(rows, found, [], BucketSize.HOUR, 20)
    assert [(named.reason, named.action, named.file) for named in reports.offending] == [
        ("wrong_bucket", "read", "f-1")
    ]
    assert reports.dispositions[0].rows == 1
