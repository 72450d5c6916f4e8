"""Define the columns of events that are read from messages or from tag_views."""

from collections.abc import Collection, Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tagmill.journal.frames import META
from tagmill.spark.columns import offset_ticks

PAYLOAD = ("writer_uuid", "ser_id", "ser_manifest", "event_manifest", "event", *META)
META_TYPES = {"meta_ser_id": "int", "meta_ser_manifest": "string", "meta": "binary"}
MOMENT = {
    "offset": "timestamp as offset",
    "event_time": "timestamp_micros((ticks - pmod(ticks, 10)) div 10) as event_time",
}


def as_events(
    rows: DataFrame, table_columns: Collection[str], columns: Sequence[str], computed: Mapping[str, str]
) -> DataFrame:
    """Return a table's rows under the column names of events; `computed`: columns that are computed by SQL
    expressions.

    Out: `columns`. `offset` is the TimeUUID as text, `event_time` its moment, rounded down to microseconds;
    `event` and `meta` are opaque bytes. Columns of metadata are null where the table (`table_columns`) has none.
    """
    absent = {
        name: f"cast(null as {kind}) as {name}"
        for name, kind in META_TYPES.items()
        if name not in table_columns
    }
    expressions = {**MOMENT, **absent, **computed}
    named = rows.withColumn("ticks", offset_ticks(F.col("timestamp")))
    return named.selectExpr(*(expressions.get(name, name) for name in columns))
