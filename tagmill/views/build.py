"""One build: read what is new, fix the numbers in files, commit, write. Safe to kill at any instruction, and to freeze.

The commit is one conditional update in view_builds. Before it nothing is written into the journal's keyspace; after it nothing is
computed again: whoever goes on writes the same rows, with the same timestamp, from the same files (docs/decisions/0010).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import structlog

from tagmill import checkpoints
from tagmill.delivery.runfiles import read_document, write_document
from tagmill.errors import GuardRefused, TagmillError
from tagmill.settings import PipelineSettings, Settings
from tagmill.stores.builds import BuildRow, Builds, BuildState
from tagmill.stores.files import RunFiles
from tagmill.timeuuid import from_datetime

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from tagmill.views.counting import Sums
    from tagmill.views.model import Manifest, Tell, Waiting

log = structlog.get_logger()
Result = dict[str, Any]
EXAMPLES = 20


def build(
    settings: Settings, pipeline: str, *, owner: str, spark: SparkSession, adopt: bool = False, tell: Tell | None = None
) -> Result:
    """Build the view of a pipeline's journal, for all its tags, up to now less the delay.

    A build that was sealed and not finished is finished first. With `adopt`, numbers of an application that are there already are
    taken as the start. `tell` hears what is being done.

    Raises:
        GuardRefused: somebody else has numbered persistence ids; nothing was written for those, the others are built.
        FenceRaised: another builder took over. LeaseTaken: the pipeline is at work.
    """
    from tagmill.delivery.sparkerrors import explained
    from tagmill.delivery.steps import leased
    from tagmill.views.reading import Journal

    chosen = settings.pipeline(pipeline)
    _must_number(pipeline, chosen)
    with leased(settings, pipeline, owner, wait=chosen.lease_wait_seconds) as (ledger, lease):
        builds = Builds(ledger.cassandra, settings.cassandra.ledger_keyspace, chosen.keyspace)
        journal = Journal.look(ledger.cassandra, chosen.keyspace)
        row = builds.take_over(owner, chosen.bucket_size.value)
        checkpoints.reached("build.begun")
        with _wide_joins(spark), _fenced(builds, row), explained(ledger.cassandra.where):
            result = _Builder(settings, pipeline, builds, journal, spark, tell or (lambda _: None)).run(row, adopt)
        lease.give_back()
        return result


def check(settings: Settings, pipeline: str) -> None:
    """Refuse, before Spark is started, what can't be built; raises GuardRefused, ConfigurationError."""
    from tagmill.stores.ledger import Ledger
    from tagmill.views.reading import Journal

    chosen = settings.pipeline(pipeline)
    _must_number(pipeline, chosen)
    with Ledger(settings.cassandra) as ledger:
        Journal.look(ledger.cassandra, chosen.keyspace)


def _must_number(pipeline: str, chosen: PipelineSettings) -> None:
    if chosen.views != "tagmill":
        raise GuardRefused(
            f'pipeline {pipeline}: the application numbers the events of journal {chosen.keyspace} (views = "application"). '
            'Nothing was built. If it runs with events-by-tag off, set views = "tagmill"'
        )


class _Builder:
    """Builds one journal with one Spark session."""

    def __init__(self, settings: Settings, pipeline: str, builds: Builds, journal: Any, spark: SparkSession, tell: Tell) -> None:
        self.settings = settings
        self.name = pipeline
        self.pipeline = settings.pipeline(pipeline)
        self.builds = builds
        self.journal = journal
        self.spark = spark
        self.tell = tell
        self.files = RunFiles(settings.storage.root)
        self.home = f"{pipeline}/views"

    def run(self, row: BuildRow, adopt: bool) -> Result:
        """Finish what was left, then build what is new."""
        finished = None
        if row.state == BuildState.SEALED:
            finished = self._read(row)
            self.tell(f"finishing build {row.build}")
            self._write(finished, row)
            row = self.builds.current(row.fence)
        self._sweep()
        manifest, refused = self._seal(row, adopt)
        if manifest.moved:
            checkpoints.reached("build.before_commit")
            row = self._commit(manifest, row)
            checkpoints.reached("build.after_commit")
            self._write(manifest, row)
        else:
            self.builds.finish(row, manifest.until)
            self._sweep()
        if refused:
            raise self._refusal(refused, self._result(manifest, finished))
        return self._result(manifest, finished)

    # -- before the commit

    def _seal(self, row: BuildRow, adopt: bool) -> tuple[Manifest, list[Any]]:
        """Read, judge and number into files; the manifest, and the first of those that somebody else numbered."""
        from pyspark.sql import functions as F

        from tagmill.views import reading
        from tagmill.views.model import Manifest, Reason

        until = from_datetime(datetime.now(UTC) - timedelta(seconds=self.pipeline.eventual_consistency_delay_seconds))
        folder = f"{self.home}/attempt-{uuid4().hex[:12]}"
        url = self.files.url(folder)
        self.tell("looking where each persistence id stands")
        ids = reading.persistence_ids(self.spark, self.journal)
        ledger_keyspace = self.settings.cassandra.ledger_keyspace
        stands = self._fixed(reading.stands(self.spark, self.journal, ledger_keyspace, ids, adopt=adopt), f"{url}/stands")
        count, refused = self._counted(stands, row, adopt)
        reader = reading.Reader(self.spark, self.journal, f"{url}/events", until, self.tell)
        checkpoints.reached("build.reading")
        found = reader.stage(stands, adopt=adopt)
        manifest = Manifest(
            journal=self.journal.keyspace, pipeline=self.name, build=row.build + 1, folder=folder, until=until,
            written_at=max(row.written_at + 1, time.time_ns() // 1000), persistence_ids=count, moved=0, events=0, rows=0,
            before_first_time_bucket=0, late_from={}, waiting={}, examples=[],
        )  # fmt: skip
        if not found and not adopt:
            return manifest, refused
        self.tell("numbering")
        ends, records, sums = self._numbered(folder, stands.where("not refused"), row)
        checkpoints.reached("build.numbered")
        stops = (
            ends.groupBy("reason")
            .agg(F.count("*").alias("ids"), F.sum(F.col("upto") - F.col("from_nr")).alias("events"))
            .collect()
        )
        waiting = {Reason(line["reason"]): line["ids"] for line in stops if line["reason"] not in (None, Reason.YOUNG.value)}
        return manifest.model_copy(
            update={
                "moved": records.count(),
                "events": sum(line["events"] for line in stops),
                "rows": sums.rows,
                "before_first_time_bucket": sums.early,
                "late_from": sums.late_from,
                "waiting": waiting,
                "examples": self._examples(ends) if waiting else [],
            }
        ), refused

    def _examples(self, ends: DataFrame) -> list[Waiting]:
        """The first persistence ids that wait."""
        from pyspark.sql import functions as F

        from tagmill.views.model import Reason, Waiting

        waits = ends.where(F.col("reason").isNotNull() & (F.col("reason") != Reason.YOUNG.value))
        return [
            Waiting(persistence_id=line["persistence_id"], sequence_nr=line["upto"] + 1, reason=Reason(line["reason"]))
            for line in waits.orderBy("reason", "persistence_id").limit(EXAMPLES).collect()
        ]

    def _numbered(self, folder: str, stands: DataFrame, row: BuildRow) -> tuple[DataFrame, DataFrame, Sums]:
        """Number what is staged below `folder`: see numbering.ends and records, and counting.Sums."""
        from tagmill.views import counting, numbering

        events = f"{folder}/events"
        staged = [file for name in self.files.folders(events) for file in self.files.parquet(f"{events}/{name}")]
        counting.find_runs(self.files, staged, f"{folder}/runs")
        runs = self._of_files(f"{folder}/runs", counting.RUNS)
        url = self.files.url(folder)
        ends = self._fixed(numbering.ends(runs, stands), f"{url}/ends")
        numbering.starts(runs, ends, stands).repartition("file").write.partitionBy("file").parquet(f"{url}/starts")
        first_ticks, built_to = from_datetime(self.pipeline.first_time_bucket), row.built_to or -1
        sums = counting.number_rows(
            self.files,
            staged,
            folder,
            self.pipeline.bucket_size,
            meta=self.journal.meta,
            first_ticks=first_ticks,
            built_to=built_to,
        )
        reached = self._of_files(f"{folder}/reached", counting.REACHED)
        return ends, self._fixed(numbering.records(reached, ends, stands), f"{url}/records"), sums

    def _of_files(self, folder: str, columns: pa.Schema) -> DataFrame:
        """What counting wrote; nothing was staged: no rows."""
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(columns)
        if not self.files.names(folder):
            return self.spark.createDataFrame([], schema)
        return self.spark.read.schema(schema).parquet(self.files.url(folder))

    def _fixed(self, rows: DataFrame, url: str) -> DataFrame:
        """The same rows whenever they are read again."""
        rows.write.mode("overwrite").parquet(url)
        return self.spark.read.schema(rows.schema).parquet(url)

    def _counted(self, stands: DataFrame, row: BuildRow, adopt: bool) -> tuple[int, list[Any]]:
        """How many persistence ids there are; how many of them somebody else has numbered, and the first of those.

        Raises GuardRefused when they were numbered before there was a build of ours.
        """
        from pyspark.sql import functions as F

        first = F.min_by(F.when(F.col("refused"), F.struct("*")), F.when(F.col("refused"), F.col("persistence_id")))
        line = stands.agg(F.count("*").alias("all"), F.count_if("refused").alias("count"), first.alias("first")).first()
        assert line is not None
        if line["count"] and row.build == 0 and not adopt:
            raise GuardRefused(
                f"journal {self.journal.keyspace}: an application has numbered {line['count']} persistence ids (the first: "
                f"{line['first']['persistence_id']!r}; see tag_write_progress and tag_scanning), and there is no build of ours. "
                f"Nothing was written. {self._way_out()}"
            )
        return line["all"], [line["count"], line["first"]] if line["count"] else []

    def _refusal(self, refused: list[Any], result: Result) -> GuardRefused:
        count, first = refused
        others = f" and {count - 1} others" if count > 1 else ""
        return GuardRefused(
            f"journal {self.journal.keyspace}: persistence_id {first['persistence_id']!r}{others} was numbered by somebody else: "
            f"tag_write_progress has {_said(first['found'])}, our last build {_said(first['progress'])}; tag_scanning has "
            f"{first['scanned'] or 'nothing'}. Nothing was written for it, the rest is built: {result['rows']} rows "
            f"of {result['moved']} persistence ids. {self._way_out()}"
        )

    def _way_out(self) -> str:
        return (
            "Turn events-by-tag off in the application, then take its numbers as the start: "
            f"tagmill views build --pipeline {self.name} --adopt"
        )

    def _commit(self, manifest: Manifest, row: BuildRow) -> BuildRow:
        file = f"{manifest.folder}/manifest.json"
        sha256 = write_document(self.files, file, manifest)
        return self.builds.seal(row, file, sha256, manifest.written_at)

    # -- after the commit

    def _read(self, row: BuildRow) -> Manifest:
        from tagmill.views.model import Manifest

        file, of = str(row.manifest_file), f"build {row.build}, journal {row.journal}"
        return read_document(self.files, Manifest, file, row.manifest_sha256, of=of)

    def _write(self, manifest: Manifest, row: BuildRow) -> None:
        from tagmill.views import writing

        writing.write(self.spark, manifest, self.settings.cassandra.ledger_keyspace, self.files.url(manifest.folder), self.tell)
        self.builds.add_late(manifest.build, manifest.late_from)
        checkpoints.reached("build.before_end")
        self.builds.finish(row, manifest.until)
        self._sweep()

    def _sweep(self) -> None:
        """Remove the files of builds that are done or never were committed: their builders can't commit any more."""
        for folder in self.files.folders(self.home):
            self.files.remove_folder(f"{self.home}/{folder}")

    def _result(self, manifest: Manifest, finished: Manifest | None) -> Result:
        rows, moved = manifest.rows + (finished.rows if finished else 0), manifest.moved
        waiting = sum(manifest.waiting.values())
        for reason, count in manifest.waiting.items():
            log.warning("persistence ids wait", journal=manifest.journal, reason=reason.text, count=count)
        return {
            "journal": manifest.journal,
            "build": manifest.build if moved else manifest.build - 1,
            "persistence_ids": manifest.persistence_ids,
            "moved": moved + (finished.moved if finished else 0),
            "events": manifest.events + (finished.events if finished else 0),
            "rows": rows,
            "before_first_time_bucket": manifest.before_first_time_bucket,
            "waiting": waiting,
            "reasons": {reason.value: count for reason, count in manifest.waiting.items()},
            "examples": [
                {
                    "persistence_id": e.persistence_id,
                    "sequence_nr": e.sequence_nr,
                    "reason": e.reason.value,
                    "what": e.reason.text,
                }
                for e in manifest.examples
            ],
            "message": f"pipeline {self.name}: {rows} rows written to {manifest.journal}.tag_views, {waiting} persistence ids wait"
            + (f" ({', '.join(f'{count} × {reason.text}' for reason, count in manifest.waiting.items())})" if waiting else ""),
        }


@contextmanager
def _fenced(builds: Builds, row: BuildRow) -> Iterator[None]:
    """Whoever took over may have removed this builder's files: then that is the error, not the file that is missing."""
    try:
        yield
    except TagmillError:
        raise
    except Exception:
        builds.current(row.fence)
        raise


@contextmanager
def _wide_joins(spark: SparkSession) -> Iterator[None]:
    """Rows that lie together by some of the join's keys are not shuffled again."""
    key = "spark.sql.requireAllClusterKeysForCoPartition"
    before = spark.conf.get(key, "true")
    spark.conf.set(key, "false")
    try:
        yield
    finally:
        spark.conf.set(key, str(before))


def _said(progress: list[Any]) -> str:
    """Progress in a message: the first few tags."""
    lines = [f"{line['tag']!r} at {line['number']}" for line in progress[:3]]
    return ", ".join(lines) + (" …" if len(progress) > 3 else "") if lines else "nothing"
