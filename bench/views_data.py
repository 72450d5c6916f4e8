"""Run one step of bench/views in a process of its own: python -m bench.views_data STEP CONFIG ARGUMENT...

create KEYSPACE | append PART... | append_old PART... | empty | lose | damage | count | ready FOLDER | write
KEYSPACE FOLDER tuned|plain | drop KEYSPACE... A PART is "PERSISTENCE_IDS FIRST LAST OF [NAME]", see
bench.data.messages.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from bench import data
from bench.connector import BATCHES, CASSANDRA, session, table
from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.ledger.schema import create_journal

VIEW_KEY = ["tag_name", "timebucket", "timestamp", "persistence_id", "tag_pid_sequence_nr"]


def create(settings: Settings, keyspace: str) -> None:
    """Create an empty journal, after dropping an existing one of this name."""
    drop(settings, keyspace)
    with Cassandra(settings.cassandra) as cassandra:
        create_journal(cassandra, keyspace)


def append(settings: Settings, *parts: str) -> None:
    """Write messages and the names of their persistence ids."""
    _append(settings, parts, lambda rows: rows)


def append_old(settings: Settings, *parts: str) -> None:
    """Write messages as plugins before 0.80 did, with the tags in tag1 to tag3, and the names of their
    persistence ids.
    """
    with Cassandra(settings.cassandra) as cassandra:
        cassandra.execute(
            f"ALTER TABLE {settings.pipeline('bench').keyspace}.messages ADD (tag1 text, tag2 text, tag3 "
            "text)"
        )
    _append(settings, parts, _with_old_tags)


def _with_old_tags(rows: DataFrame) -> DataFrame:
    return rows.withColumns({f"tag{number}": F.get("tags", F.lit(number - 1)) for number in (1, 2, 3)}).drop(
        "tags"
    )


def _append(settings: Settings, parts: Sequence[str], layout: Callable[[DataFrame], DataFrame]) -> None:
    keyspace = settings.pipeline("bench").keyspace
    spark = session(settings)
    for part in parts:
        count, first, last, of, *name = part.split()
        rows = data.messages(
            spark, int(count), int(first), int(last), of=int(of), name=name[0] if name else "p-"
        )
        data.append(layout(rows), keyspace, "messages")
        data.append(
            rows.where(F.col("sequence_nr") == int(first)).select("persistence_id"),
            keyspace,
            "all_persistence_ids",
        )


def empty(settings: Settings) -> None:
    """Empty the view, the plugin's progress and Tagmill's own, as they were before the first build."""
    keyspace, ledger = settings.pipeline("bench").keyspace, settings.cassandra.ledger_keyspace
    with Cassandra(settings.cassandra) as cassandra:
        for name in (
            f"{keyspace}.tag_views",
            f"{keyspace}.tag_write_progress",
            f"{ledger}.view_progress",
            f"{ledger}.view_builds",
        ):
            cassandra.execute(f"TRUNCATE {name}")


def lose(settings: Settings) -> None:
    """Delete all rows of the view and the plugin's progress."""
    keyspace = settings.pipeline("bench").keyspace
    with Cassandra(settings.cassandra) as cassandra:
        for name in ("tag_views", "tag_write_progress", "tag_scanning"):
            cassandra.execute(f"TRUNCATE {keyspace}.{name}")


def damage(settings: Settings) -> None:
    """Delete one row of the view in a hundred, and leave the plugin's progress unchanged."""
    keyspace = settings.pipeline("bench").keyspace
    rows = table(session(settings), keyspace, "tag_views").select(*VIEW_KEY)
    gone = rows.where(
        F.pmod(F.xxhash64("tag_name", "persistence_id", "tag_pid_sequence_nr"), F.lit(100)) == 0
    )
    where = " AND ".join(f"{name} = ?" for name in VIEW_KEY)
    with Cassandra(settings.cassandra) as cassandra:
        keys = ((*row[:2], UUID(row[2]), *row[3:]) for row in gone.toLocalIterator())
        cassandra.write_many(f"DELETE FROM {keyspace}.tag_views WHERE {where}", keys)


def count(settings: Settings) -> None:
    """Print how many rows the view has."""
    print(table(session(settings), settings.pipeline("bench").keyspace, "tag_views").count())


def ready(settings: Settings, folder: str) -> None:
    """Write the view's rows to Parquet files, in the order of its partitions; raise RuntimeError if a
    numbering is wrong.
    """
    spark = session(settings)
    view = table(spark, settings.pipeline("bench").keyspace, "tag_views")
    wrong = view.groupBy("tag_name", "persistence_id").agg(
        F.count("*").alias("rows"),
        F.max("tag_pid_sequence_nr").alias("last"),
        F.countDistinct("tag_pid_sequence_nr").alias("numbers"),
    )
    if bad := wrong.where("rows <> last or rows <> numbers").take(1):
        raise RuntimeError(f"numbered wrong: {bad[0]}")
    columns = [name for name in view.columns if not name.startswith("meta")]
    view.select(*columns).repartition(8, "tag_name", "timebucket").sortWithinPartitions(*VIEW_KEY).write.mode(
        "overwrite"
    ).parquet(folder)


def write(settings: Settings, keyspace: str, folder: str, how: str) -> None:
    """Write the ready-made rows with the connector: with a build's settings (`tuned`) or its default
    settings.
    """
    rows = session(settings).read.parquet(folder)
    options = {"keyspace": keyspace, "table": "tag_views", **(BATCHES if how == "tuned" else {})}
    rows.write.format(CASSANDRA).options(**options).mode("append").save()


def drop(settings: Settings, *keyspaces: str) -> None:
    """Drop the keyspaces of these journals if they exist."""
    with Cassandra(settings.cassandra) as cassandra:
        for keyspace in keyspaces:
            cassandra.execute(f"DROP KEYSPACE IF EXISTS {keyspace}")


if __name__ == "__main__":
    globals()[sys.argv[1]](Settings.load(Path(sys.argv[2])), *sys.argv[3:])
