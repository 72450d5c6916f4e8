"""Report a rebucket: rows, partitions and checksums of both tables by tag, totals, and warnings."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from tagmill.config.tag_views import PipelineSettings
from tagmill.domain.time_buckets import View, first_ticks
from tagmill.journal.view_warnings import early, large_partitions
from tagmill.views.rebucket.table_diff import Survey

Result = dict[str, Any]
NAMED_TAGS = 1000


def figures(survey: Survey, lines: DataFrame) -> Result:
    """Return totals, and one line a tag (the first NAMED_TAGS).

    In: what Rows.survey and Rows.lines return.
    """
    total = lines.agg(
        F.count_if(F.col("rows") > 0).alias("partitions"),
        F.count_if("differs").alias("differing"),
        F.max("rows").alias("largest_rows"),
        F.max("bytes").alias("largest_bytes"),
    ).collect()[0]
    return {
        "tags": tags(survey, lines),
        "rows": survey.rows,
        "bytes": survey.bytes,
        "misplaced": survey.misplaced,
        "twice": survey.twice,
        **{name: value or 0 for name, value in total.asDict().items()},
    }


def tags(survey: Survey, lines: DataFrame) -> list[Result]:
    """Return one line a tag, for the first NAMED_TAGS; the checksums are modulo 2^64, in hexadecimal."""
    before = survey.pairs.groupBy("tag_name").agg(
        F.countDistinct("timebucket").alias("partitions_before"), F.sum("misplaced").alias("misplaced")
    )
    after = lines.groupBy("tag_name").agg(
        *(F.sum(name).alias(name) for name in ("rows", "checksum", "t_rows", "t_checksum")),
        *(F.max(name).alias(f"largest_{name}") for name in ("rows", "bytes")),
        F.count_if(F.col("rows") > 0).alias("partitions"),
        F.count_if("differs").alias("differing"),
    )
    found = after.join(before, "tag_name", "left").orderBy("tag_name").limit(NAMED_TAGS).collect()
    return [
        {
            "tag": line["tag_name"],
            "rows": line["rows"],
            "rows_in_target": line["t_rows"],
            "partitions_before": line["partitions_before"] or 0,
            "partitions": line["partitions"],
            "largest_rows": line["largest_rows"],
            "largest_bytes": line["largest_bytes"],
            "misplaced": line["misplaced"] or 0,
            "checksum": f"{line['checksum'] % 2**64:016x}",
            "checksum_in_target": f"{line['t_checksum'] % 2**64:016x}",
            "verdict": _verdict(line),
        }
        for line in found
    ]


def _verdict(line: Row) -> str:
    if line["differing"]:
        return f"{line['differing']} partitions differ"
    return "equal" if line["checksum"] == line["t_checksum"] else "equal, but for what expired meanwhile"


def warnings(
    survey: Survey, lines: DataFrame, source: View, target: View, pipeline: PipelineSettings
) -> Iterator[str]:
    """Yield the warnings that an audit of the new table would give, and what happens to rows in a wrong
    bucket.
    """
    partitions = lines.select(
        F.col("tag_name").alias("tag"), F.col("bucket").alias("timebucket"), "rows", "bytes"
    )
    yield from large_partitions(partitions, target, pipeline.quality)
    first = lines.where("rows > 0").agg(F.min("bucket")).collect()[0][0]
    if first is not None:
        yield from early(first_ticks(first), pipeline.first_time_bucket, target.size)
    if survey.misplaced:
        twice = f", but for {survey.twice} of which there is another copy" if survey.twice else ""
        yield (
            f"{survey.misplaced} rows lie in a bucket of {source.table} that their time isn't in; they "
            f"go to the right one{twice}"
        )
