"""Refuse a rebuild that would harm a sound view."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tagmill.config.tag_views import PipelineSettings
from tagmill.domain.time_buckets import BucketSize
from tagmill.errors import DataQualityStop
from tagmill.journal.frames import bucket
from tagmill.spark.columns import offset_ticks

# Least number of rows in buckets of another size that shows a wrong bucket size: fewer rows may be there by
# chance.
MIN_MISPLACED = 20


def must_have_buckets(standing: DataFrame, pipeline: PipelineSettings, view: str) -> None:
    """Raise DataQualityStop when the application's bucket size isn't the configured one: the application
    would find no rebuilt row.

    In: `standing`, rows of `view` with timebucket, timestamp. Only rows that are in the right bucket of
    another size count.
    """
    begin = F.col("timebucket")
    size, share = pipeline.bucket_size, pipeline.quality.max_wrong_bucket_share_percent
    others = [other for other in BucketSize if other != size]
    counted = standing.select("timebucket", offset_ticks(F.col("timestamp")).alias("ticks")).agg(
        F.count("*").alias("rows"),
        *(
            F.count_if((begin != bucket(size)) & (begin == bucket(other))).alias(other.value)
            for other in others
        ),
    )
    line = counted.first()
    assert line is not None
    for other in others:
        if line[other.value] >= MIN_MISPLACED and line[other.value] * 100 > share * line["rows"]:
            raise DataQualityStop(
                f"{view}: {line[other.value]} of {line['rows']} rows are in {other.value} buckets, the "
                f"pipeline says {size.value}. Nothing "
                f'was written; set bucket_size = "{other.value}", as in the application (or, if it is '
                "the rows that are wrong, "
                "quality.max_wrong_bucket_share_percent = 100)"
            )
