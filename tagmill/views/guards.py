"""What would make a rebuild harm a view that is sound."""

from collections import Counter
from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tagmill.buckets import BucketSize
from tagmill.delivery.scan import offset_ticks
from tagmill.errors import DataQualityStop
from tagmill.stores.cassandra import Cassandra
from tagmill.timeuuid import ticks
from tagmill.views.tables import Journal, bucket
from tagmill.viewsettings import PipelineSettings

# fewer rows than this say nothing of the bucket size
MIN_MISPLACED = 20
# events that are looked at where there are no rows
SAMPLED = 1000


def must_have_buckets(standing: DataFrame, pipeline: PipelineSettings, view: str) -> None:
    """Raise DataQualityStop when the application's bucket size is another one than the configured: it would find no row any more.

    In: `standing` timebucket, timestamp: rows of `view`. One that is merely out of its bucket is where no bucket size would have it.
    """
    begin = F.col("timebucket")
    size = pipeline.bucket_size
    others = [other for other in BucketSize if other != size]
    counted = standing.select("timebucket", offset_ticks(F.col("timestamp")).alias("ticks")).agg(
        F.count("*").alias("rows"),
        *(F.count_if((begin != bucket(size)) & (begin == bucket(other))).alias(other.value) for other in others),
    )
    line = counted.first()
    assert line is not None
    _must_fit({other: line[other.value] for other in others}, line["rows"], pipeline, f"{view}: {{}} of {{}} rows are")


def must_have_the_writers_buckets(cassandra: Cassandra, journal: Journal, pipeline: PipelineSettings) -> None:
    """The same of a view without rows: the plugin writes beside each event, in messages, the bucket that its time is in.

    A look at the first SAMPLED events. Raises DataQualityStop.

    Source: serializeEvent and writeMessage in the plugin's CassandraJournal; what plugins before 0.80 wrote there is no number.
    """
    view, messages = journal.names.cql(journal.view_table), journal.names.cql(journal.names.messages)
    tables = cassandra.application
    if "timebucket" not in journal.messages or tables.execute(f"SELECT timebucket FROM {view} LIMIT 1"):
        return
    found = Counter[BucketSize]()
    rows = tables.execute(f"SELECT timebucket, timestamp FROM {messages} LIMIT {SAMPLED}")
    for row in rows:
        begin, at = row.timebucket or "", row.timestamp
        if begin.isdecimal() and at and int(begin) != pipeline.bucket_size.start(ticks(at)):
            found.update(size for size in BucketSize if int(begin) == size.start(ticks(at)))
    said = f"{journal.keyspace}.{journal.names.messages}: {{}} of {{}} events were written by an application that has them"
    _must_fit(found, len(rows), pipeline, said)


def _must_fit(found: Mapping[BucketSize, int], rows: int, pipeline: PipelineSettings, said: str) -> None:
    """Refuse when too many of `rows` are in buckets of another size: `found`."""
    for size, count in found.items():
        if count >= MIN_MISPLACED and count * 100 > pipeline.quality.max_wrong_bucket_share_percent * rows:
            raise DataQualityStop(
                f"{said.format(count, rows)} in {size.value} buckets, the pipeline says {pipeline.bucket_size.value}. Nothing "
                f'was written; set bucket_size = "{size.value}", as in the application (or, if it is the rows that are wrong, '
                "quality.max_wrong_bucket_share_percent = 100)"
            )
