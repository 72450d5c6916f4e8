"""Make the ids of delivered events again under the rule that is configured now, from the payloads that
deduplication keeps.

Slices of shards are read one after the other, and their new ids are written to files, by each attempt to its own;
a slice that an attempt has written is not read again. Then all ids are judged and written, and one conditional
update puts the new rule in force. The ids of the old rule are deleted last. If the process is killed, run the same
command again: it goes on. Everything is written USING TIMESTAMP = the write time of a run of its own, so that rules
may go back and forth.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tagmill import __version__
from tagmill.config.kafka import TopicSettings
from tagmill.config.settings import Settings
from tagmill.delivery.topics.fields import InvalidRecord
from tagmill.delivery.topics.formats import schema_contents
from tagmill.delivery.topics.model import Rekeyed
from tagmill.delivery.topics.record_decoder import RecordDecoder
from tagmill.domain.batches.states import RunState
from tagmill.errors import FenceRaised, GuardRefused, WorkUnfinished, about_pipeline
from tagmill.ledger.dedup import Deduplication, Rules, shards_of
from tagmill.ledger.set_apart import Kind, SetApart
from tagmill.runs import checkpoints
from tagmill.runs.ledger_comparison import require_up_to_date
from tagmill.runs.progress import Tell
from tagmill.runs.storage import SLICES
from tagmill.runs.workspace import Workspace, open_step, silent

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tagmill.spark.cassandra_table import CassandraTable

KIND = "rekey"
SHARDS_AT_ONCE = 64
EXAMPLES = 5
KEPT = pa.schema(
    {
        "old_id": pa.string(),
        "shard": pa.int32(),
        "unique_id": pa.string(),
        "created_ms": pa.int64(),
        "seen_ms": pa.int64(),
        "schema_version": pa.string(),
        "payload": pa.binary(),
        "batch_id": pa.string(),
        "run": pa.int64(),
        "reason": pa.string(),
    }
)


@about_pipeline
def rekey(
    settings: Settings,
    pipeline: str,
    *,
    owner: str,
    who: str,
    spark: Callable[[], SparkSession],
    dry_run: bool = False,
    drop_unreadable: bool = False,
    tell: Tell = silent,
) -> Rekeyed:
    """Make a pipeline's ids again under the configured rule; with `dry_run`, only report what would become of
    them.

    Raises GuardRefused: a run is not finished, or a payload gives no id under the new rule (unless
    `drop_unreadable`: such an event would be delivered again if it came again). FenceRaised: meanwhile, a run
    has delivered events, or another process has changed the rule. StoreUnavailable.
    """
    from tagmill.spark.errors import explained

    settings.topic(pipeline)  # raises before anything is opened
    with (
        open_step(settings, pipeline, owner=owner, wait=True, tell=tell) as workspace,
        explained(workspace.cassandra.where, "The rule in force stays"),
    ):
        done = _Rekeying(workspace, who, spark).run(dry_run, drop_unreadable)
        workspace.give_back()
        return done


class _Rekeying:
    """One attempt to make a pipeline's ids again."""

    def __init__(self, workspace: Workspace, who: str, spark: Callable[[], SparkSession]) -> None:
        self.workspace, self.ledger, self.name = workspace, workspace.ledger, workspace.name
        self.pipeline = workspace.settings.topic(workspace.name)
        self.who, self.spark, self.tell = who, spark, workspace.tell
        self.keyspace, self.files = workspace.ledger_keyspace, workspace.files
        self.rules = workspace.store(Rules)
        self.slices = f"{self.name}/{SLICES}"
        self.attempt = secrets.token_hex(8)

    def run(self, dry_run: bool, drop_unreadable: bool) -> Rekeyed:
        """Delete ids of an earlier rule, then read, judge and write all ids and switch the rule; with
        `dry_run`, stop after judging.
        """
        found = self.rules.current()
        if found is None:
            return Rekeyed(
                pipeline=self.name, old_rule=self.pipeline.rule, new_rule=self.pipeline.rule, dry_run=dry_run
            )
        if found.before and not dry_run:
            self._none_open(found.rule)
            self._forget(
                found.before, self._claimed(self.ledger.free_number(self.name), f"ids of {found.before} go")
            )
        if found.rule == self.pipeline.rule:
            if not dry_run:
                self.files.remove_folder(self.slices)
            return Rekeyed(pipeline=self.name, old_rule=found.rule, new_rule=found.rule, dry_run=dry_run)
        number = self.ledger.free_number(self.name)
        self._none_open(found.rule)
        contents = schema_contents(self.pipeline.schema_files)
        home = self._home(found.rule, contents)
        self._remove_slices(but=home)
        staged = self._delivered(self._staged(home, found.rule, contents))
        done = self._judged(staged, found.rule, dry_run)
        if dry_run:
            return done
        if done.unreadable and not drop_unreadable:
            raise GuardRefused(
                f"pipeline {self.name}: {done.unreadable} of {done.ids} payloads give no id under the "
                "new rule "
                f"({'; '.join(done.examples)}). Nothing was changed. With --drop-unreadable their ids "
                "go: such an event is delivered again "
                "if it comes again",
                pipeline=self.name,
            )
        self._claimed(number, f"dedup rekey {found.rule} to {self.pipeline.rule}")
        self.workspace.require_leases()  # another process may have removed slices before they were listed
        self.tell(f"writing {done.ids - done.unreadable - done.equal} ids")
        self._write(staged, number)
        checkpoints.reached("rekey.written")
        if self.ledger.last_run(self.name) != number:
            raise FenceRaised(
                f"pipeline {self.name} has delivered events meanwhile. The rule in force stays; make the "
                "ids again",
                pipeline=self.name,
            )
        if not self.rules.switch(found.rule, self.pipeline.rule):
            raise FenceRaised(
                f"pipeline {self.name}: somebody else has changed the rule of its ids. Nothing of this "
                "is in force",
                pipeline=self.name,
            )
        checkpoints.reached("rekey.switched")
        self._forget(found.rule, number)
        self.files.remove_folder(self.slices)
        return done

    def _none_open(self, rule: str) -> None:
        """Raise GuardRefused if a run is open: a newer run number would hide it from the process that has to
        finish it.
        """
        if row := self.ledger.open_run(self.name):
            back = "" if rule == self.pipeline.rule else f"put the rule back ({rule}) and "
            raise WorkUnfinished(
                f"run {row.run} of pipeline {self.name} is not finished ({row.state}), and its ids are "
                f"made by {rule}. Nothing was "
                f"changed; {back}finish it: tagmill run deliver --pipeline {self.name}",
                pipeline=self.name,
                run=row.run,
            )

    def _remove_slices(self, but: str) -> None:
        """Remove the slices of earlier attempts, which have copies of all payloads, except those in `but`."""
        for folder in self.files.folders(self.slices):
            if (other := f"{self.slices}/{folder}") != but:
                self.files.remove_folder(other)

    def _staged(self, home: str, rule: str, contents: Mapping[str, bytes]) -> DataFrame:
        """Return the new ids of all shards, from the slices that this or an earlier attempt has written."""
        spark, shards, folders = self.spark(), shards_of(rule), list[str]()
        for begin in range(0, shards, SHARDS_AT_ONCE):
            folder = f"{home}/slice-{begin:07d}"
            attempts = self.files.names(f"{folder}.done")
            if not attempts:
                end = min(begin + SHARDS_AT_ONCE, shards)
                self.tell(f"reading shards {begin} to {end - 1} of {shards}")
                made = rekeyed(self._ids(rule, begin, end), self.pipeline, contents)
                made.write.parquet(self.files.url(f"{folder}-{self.attempt}"))
                self.files.write(f"{folder}.done/{self.attempt}", b"")
                attempts = [self.attempt]
            folders.append(self.files.url(f"{folder}-{attempts[0]}"))
            checkpoints.reached("rekey.slice")
        self.workspace.require_leases()  # another process may have removed slices since
        from pyspark.sql.pandas.types import from_arrow_schema

        return spark.read.schema(from_arrow_schema(KEPT)).parquet(*folders)

    def _delivered(self, staged: DataFrame) -> DataFrame:
        """Return the staged ids without those of batches that were given up: they don't count as delivered,
        and one of them must not win over an id that does.
        """
        from pyspark.sql import functions as F

        given_up = list(self.workspace.store(SetApart).items(Kind.BATCH))
        return staged.where(~F.coalesce("batch_id", F.lit("")).isin(given_up))

    def _ids(self, rule: str, begin: int, end: int) -> DataFrame:
        """Return the ids of the shards from `begin` to below `end` with their payloads."""
        from pyspark.sql import functions as F

        spark = self.spark()
        tasks = min(end - begin, 4 * spark.sparkContext.defaultParallelism)
        shards = spark.range(begin, end, numPartitions=tasks).select(
            F.lit(self.name).alias("pipeline"),
            F.lit(rule).alias("rule"),
            F.col("id").cast("int").alias("shard"),
        )
        kept = ("unique_id", "schema_version", "payload", "batch_id", "run")
        found = self._stored().rows_of(shards, ["pipeline", "rule", "shard"], *kept, "created_at", "seen_at")
        return found.select(
            *kept, F.unix_millis("created_at").alias("created_ms"), F.unix_millis("seen_at").alias("seen_ms")
        )

    def _stored(self) -> CassandraTable:
        from tagmill.spark.cassandra_table import CassandraTable

        return CassandraTable(self.ledger.cassandra, self.keyspace, "deduplication")

    def _judged(self, staged: DataFrame, rule: str, dry_run: bool) -> Rekeyed:
        from pyspark.sql import functions as F

        made = F.col("reason").isNull()
        counts = staged.agg(
            F.count("*").alias("ids"),
            F.count_if(~made).alias("unreadable"),
            F.count_if(made & (F.col("old_id") == F.col("unique_id"))).alias("same"),
        ).first()
        assert counts is not None
        groups = (
            staged.where(made)
            .groupBy("unique_id")
            .agg(F.count("*").alias("n"), F.slice(F.sort_array(F.collect_set("old_id")), 1, 3).alias("of"))
        )
        left = groups.count()
        examples = [
            f"{', '.join(line['of'])} become {line['unique_id']}"
            for line in groups.where("n > 1").orderBy("unique_id").limit(EXAMPLES).collect()
        ] + [
            f"{line['old_id']}: {line['reason']}"
            for line in staged.where(~made).orderBy("old_id").limit(EXAMPLES).collect()
        ]
        readable = counts["ids"] - counts["unreadable"]
        return Rekeyed(
            pipeline=self.name,
            old_rule=rule,
            new_rule=self.pipeline.rule,
            ids=counts["ids"],
            same=counts["same"],
            changed=readable - counts["same"],
            equal=readable - left,
            unreadable=counts["unreadable"],
            examples=examples,
            dry_run=dry_run,
        )

    def _write(self, staged: DataFrame, number: int) -> None:
        """Write the new ids; of those that have become equal, only the one that was delivered last."""
        from pyspark.sql import functions as F

        columns = ["created_ms", "seen_ms", "schema_version", "payload", "batch_id", "run"]
        last = (
            staged.where("reason is null")
            .groupBy("shard", "unique_id")
            .agg(F.max_by(F.struct(*columns), F.struct("seen_ms", "old_id")).alias("last"))
        )
        rows = last.select(
            F.lit(self.name).alias("pipeline"),
            F.lit(self.pipeline.rule).alias("rule"),
            "shard",
            "unique_id",
            F.timestamp_millis("last.created_ms").alias("created_at"),
            F.timestamp_millis("last.seen_ms").alias("seen_at"),
            *(f"last.{name}" for name in columns[2:]),
        )
        written = self.ledger.delivered.write_times.of(self.name, number)
        self._stored().append(rows.sortWithinPartitions("shard", "unique_id"), written, large=True)

    def _forget(self, rule: str, number: int) -> None:
        self.tell(f"deleting the ids of {rule}")
        written = self.ledger.delivered.write_times.of(self.name, number)
        Deduplication(self.ledger.cassandra, self.keyspace, self.name, rule).forget_all(
            shards_of(rule), written
        )
        self.rules.forget(rule)

    def _claimed(self, number: int, reason: str) -> int:
        """Record a run of its own, newer than all runs that wrote ids, and return its number.

        Raises FenceRaised if that is taken, GuardRefused if the ledger is older than ClickHouse.
        """
        require_up_to_date(self.workspace, done="The rule in force stays")
        self.ledger.claim(self.name, number)
        self.ledger.create_run(
            self.name, number, kind=KIND, state=RunState.CLOSED, owner=self.workspace.owner, reason=reason
        )
        self.ledger.record_intervention(self.name, number, self.who, reason, "")
        return number

    def _home(self, rule: str, contents: Mapping[str, bytes]) -> str:
        """Return the folder of the attempts' slices: a different one for each pair of rules, newest delivery, version of
        Tagmill, and whatever else decides which payloads can be read.
        """
        number = self.ledger.last_run(self.name)
        while number and (row := self.ledger.run(self.name, number)) and row.kind == KIND:
            number -= 1
        schemas = {
            version: hashlib.sha256(content).hexdigest() for version, content in sorted(contents.items())
        }
        one = self.pipeline
        limits = [one.max_record_bytes, one.max_record_values, one.max_record_depth]
        read_by = [one.format, one.framed, one.message_type, schemas, one.versions, limits, __version__]
        digest = hashlib.sha256(json.dumps([rule, one.rule, read_by]).encode()).hexdigest()
        return f"{self.slices}/attempts-{digest[:12]}-{number:08d}"


def rekeyed(rows: DataFrame, pipeline: TopicSettings, contents: Mapping[str, bytes]) -> DataFrame:
    """Return each id with the one that the configured rule makes from its payload, or with the reason why it
    makes none (KEPT).
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    from tagmill.spark.arrow_chunks import in_python

    return in_python(
        rows, partial(_rekeyed, pipeline=pipeline, contents=dict(contents)), from_arrow_schema(KEPT)
    )


def _rekeyed(
    batches: Iterable[pa.RecordBatch], pipeline: TopicSettings, contents: Mapping[str, bytes]
) -> Iterator[pa.RecordBatch]:
    reader = RecordDecoder(pipeline, contents)
    for batch in batches:
        yield pa.RecordBatch.from_pylist([_made(reader, row) for row in batch.to_pylist()], KEPT)


def _made(reader: RecordDecoder, row: dict[str, Any]) -> dict[str, Any]:
    made = {**row, "old_id": row["unique_id"], "unique_id": None, "shard": None, "reason": None}
    try:
        one = reader.id_of(row["payload"], row["schema_version"])
        return made | {"shard": one.shard, "unique_id": one.unique_id}
    except InvalidRecord as error:
        return made | {"reason": str(error)[:1000]}
