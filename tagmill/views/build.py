"""Build a view once: number the new events of a journal.

A build is safe to kill or freeze at any instruction (sealed_build.py).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import structlog

from tagmill.config.settings import Settings
from tagmill.config.tag_views import PipelineSettings
from tagmill.domain import clock
from tagmill.domain.timeuuid import from_datetime
from tagmill.errors import GuardRefused, about_pipeline
from tagmill.ledger.view_builds import BuildRow
from tagmill.ledger.view_tables import JournalViews
from tagmill.ledger.view_waiting import WaitingIds, WaitingRow
from tagmill.runs import checkpoints
from tagmill.runs.workspace import open_workspace, silent
from tagmill.spark.materialize import materialize
from tagmill.views.sealed_build import BUILD, Attempt, numbering_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tagmill.runs.progress import Tell
    from tagmill.views.model import Manifest, Waiting

log = structlog.get_logger()
Result = dict[str, Any]
EXAMPLES = 20
ROWS_AT_ONCE = 100_000


@about_pipeline
def build(
    settings: Settings,
    pipeline: str,
    *,
    owner: str,
    spark: SparkSession,
    adopt: bool = False,
    tell: Tell | None = None,
) -> Result:
    """Build the view of a pipeline's journal, for all its tags, up to now less the delay.

    A build that was sealed and not finished is finished first. With `adopt`, existing numbers of an
    application are taken as the start. `tell` is called with a text for each phase.

    The result's `refused` counts persistence ids that another writer has numbered since the last build.
    Nothing was written for those, the others are built; `refusal` is that as an error for a person.

    Raises:
        GuardRefused: an application has numbered, and this is the first build; or the journal's tables were
            created again. Nothing was written.
        FenceRaised: another builder took over. LeaseTaken: the pipeline is at work.
    """
    _must_number(pipeline, settings.pipeline(pipeline))
    with numbering_session(
        settings, pipeline, owner=owner, spark=spark, step=BUILD, adopt=adopt, tell=tell or silent
    ) as (workspace, builds, journal, row):
        checkpoints.reached("build.begun")
        return _Builder(workspace, builds, journal, spark).run(row, adopt)


@about_pipeline
def check(settings: Settings, pipeline: str) -> None:
    """Refuse, before Spark is started, what can't be built; raises GuardRefused, ConfigurationError."""
    from tagmill.journal.frames import JournalSchema

    chosen = settings.pipeline(pipeline)
    _must_number(pipeline, chosen)
    with open_workspace(settings, pipeline) as workspace:
        workspace.journal_store(JournalViews).check(pipeline, chosen.view)
        workspace.journal_store(WaitingIds)
        JournalSchema.load_checked(workspace.cassandra, chosen.journal)


def _must_number(pipeline_name: str, pipeline: PipelineSettings) -> None:
    if pipeline.views != "tagmill":
        raise GuardRefused(
            f"pipeline {pipeline_name}: the application numbers the events of journal {pipeline.keyspace} "
            '(views = "application"). '
            'Nothing was built. If it runs with events-by-tag off, set views = "tagmill"',
            pipeline=pipeline_name,
        )


class _Builder(Attempt):
    """The build of a journal's new events."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.waiting = self.workspace.journal_store(WaitingIds)
        # What the build before has recorded.
        self.known = self.waiting.current()

    def run(self, row: BuildRow, adopt: bool) -> Result:
        """Finish what an earlier attempt left, then build what is new."""
        row, finished = self.finish_left(row)
        manifest, refused, waiting = self._seal(row, adopt)
        self._record(waiting, row)
        if manifest.moved:
            row = self.commit(manifest, row)
            self.write(manifest, row)
        else:
            self.builds.finish(row, manifest.until)
            self.sweep()
        result = self._result(manifest, finished)
        if not refused:
            return {**result, "refused": 0, "refusal": None}
        refusal = self._refusal(refused, result)
        log.warning("persistence ids are refused", journal=manifest.journal, count=refused[0])
        message = f"{result['message']}. {refusal}"
        return {**result, "refused": refused[0], "refusal": refusal, "message": message}

    def _record(self, waiting: list[WaitingRow], row: BuildRow) -> None:
        """Record what waits, in front of the commit: a build that is DONE has always said it.

        The write time is taken before the fence is looked at, so it is earlier than that of any later build.
        """
        newest = max((row_before.written_at for row_before in self.known), default=0)
        written_at = max(self.builds.cassandra.now_microseconds(), newest + 1)
        self.builds.current(row.fence)
        self.waiting.replace(waiting, written_at)

    def _seal(self, row: BuildRow, adopt: bool) -> tuple[Manifest, list[Any], list[WaitingRow]]:
        """Read, check and number new events into files; return the manifest, what _counted says of refused
        persistence ids, and what waits.
        """
        from pyspark.sql import functions as F

        from tagmill.journal import frames
        from tagmill.journal.flaws import Reason
        from tagmill.views import numbering
        from tagmill.views.model import Manifest

        until = from_datetime(
            self.builds.cassandra.now() - timedelta(seconds=self.pipeline.eventual_consistency_delay_seconds)
        )
        folder = self.new_folder()
        url = self.files.url(folder)
        self.tell("looking where each persistence id stands")
        ids = frames.persistence_ids(self.spark, self.journal)
        ledger_keyspace = self.workspace.ledger_keyspace
        stands = materialize(
            frames.build_positions(self.spark, self.journal, ledger_keyspace, ids, adopt=adopt),
            f"{url}/stands",
        )
        count, refused = self._counted(stands, f"{folder}/stands", row, adopt)
        refused_ends = stands.where("refused").select(
            "persistence_id", F.col("from_nr").alias("upto"), F.lit(Reason.ELSEWHERE.value).alias("reason")
        )
        reader = self.reader(folder, until)
        checkpoints.reached("build.reading")
        found = reader.stage(stands, adopt=adopt)
        manifest = Manifest(
            journal=self.journal.keyspace,
            view_table=self.journal.view_table,
            pipeline=self.name,
            build=row.build + 1,
            folder=folder,
            until=until,
            written_at=max(row.written_at + 1, self.builds.cassandra.now_microseconds()),
            persistence_ids=count,
            moved=0,
            events=0,
            rows=0,
            before_first_time_bucket=0,
            late_from={},
            waiting={},
            examples=[],
            ttl_seconds=self.pipeline.cleanup.application_ttl_seconds,
        )
        if not found and not adopt:
            return manifest, refused, self._waiting(refused_ends) if refused else []
        self.tell("numbering")
        stands = stands.where("not refused")
        runs = self.runs(folder, reader.files)
        upto = numbering.numberable_upto(runs, stands)
        ends = materialize(
            self.but_ahead(upto, stands, f"{folder}/stands", manifest.written_at), f"{url}/ends"
        )
        moved, sums = self.numbered(folder, reader.files, runs, ends, stands)
        materialize(moved, f"{url}/records")
        checkpoints.reached("build.numbered")
        stopped = ends.select("persistence_id", "upto", "reason")
        some_stopped = refused or self.files.largest(f"{folder}/ends", "reason") is not None
        rows = (
            self._waiting(stopped.unionByName(refused_ends) if refused else stopped) if some_stopped else []
        )
        waiting = {Reason(row.reason): row.ids for row in rows if row.reason != Reason.ELSEWHERE}
        sealed = manifest.model_copy(
            update={
                "moved": self.files.count_rows(f"{folder}/records"),
                "events": self._count_events(f"{folder}/ends"),
                "rows": sums.rows.total(),
                "before_first_time_bucket": sums.early,
                "late_from": {
                    tag: first for tag, first in sums.earliest.items() if first <= (row.built_to or -1)
                },
                "waiting": waiting,
                "examples": self._examples(ends) if waiting else [],
            }
        )
        return sealed, refused, rows

    def _count_events(self, ends: str) -> int:
        """Return the number of events up to the ends (a folder) of all persistence ids."""
        import pyarrow.compute as pc

        parts = self.files.record_batches(ends, ROWS_AT_ONCE, ["from_nr", "upto"])
        return sum(pc.sum(pc.subtract(part["upto"], part["from_nr"])).as_py() or 0 for part in parts)

    def _waiting(self, ends: DataFrame) -> list[WaitingRow]:
        """Return how many persistence ids wait for each reason but being too young, and one of each.

        In: persistence_id, upto (the last event built), reason (null: nothing waits).
        The one that is known already is named again while it waits in front of the same event.
        """
        from pyspark.sql import functions as F

        place = F.struct("persistence_id", (F.col("upto") + 1).alias("sequence_nr"))
        is_known = F.lit(False)
        for row in self.known:
            named = (F.col("persistence_id") == row.persistence_id) & (F.col("upto") + 1 == row.sequence_nr)
            is_known = is_known | ((F.col("reason") == row.reason) & named)
        lines = (
            _stopped(ends)
            .groupBy("reason")
            .agg(
                F.count("*").alias("ids"),
                F.min(place).alias("first"),
                F.bool_or(is_known).alias("goes_on"),
            )
            .collect()
        )
        known = {row.reason: row for row in self.known}
        now = clock.earliest(self.builds.cassandra.clocks)
        return [
            replace(known[line["reason"]], ids=line["ids"])
            if line["goes_on"]
            else WaitingRow(line["reason"], line["ids"], line["first"][0], line["first"][1], now)
            for line in sorted(lines, key=lambda line: str(line["reason"]))
        ]

    def _examples(self, ends: DataFrame) -> list[Waiting]:
        """Return the first persistence ids that wait for another reason than being too young, at most
        EXAMPLES.
        """
        from tagmill.journal.flaws import Reason
        from tagmill.views.model import Waiting

        return [
            Waiting(
                persistence_id=line["persistence_id"],
                sequence_nr=line["upto"] + 1,
                reason=Reason(line["reason"]),
            )
            for line in _stopped(ends).orderBy("reason", "persistence_id").limit(EXAMPLES).collect()
        ]

    def _counted(self, stands: DataFrame, folder: str, row: BuildRow, adopt: bool) -> tuple[int, list[Any]]:
        """Count the persistence ids, and those that another writer has numbered. `stands` were written to `folder`.

        Returns the first number, and a list of the second one and the first such persistence_id's row; it is
        empty if there are none.
        Raises GuardRefused when they were numbered before Tagmill's first build.
        """
        from pyspark.sql import functions as F

        count = self.files.count_rows(folder)
        if not self.files.largest(folder, "refused"):
            return count, []
        first = F.min_by(
            F.when(F.col("refused"), F.struct("*")), F.when(F.col("refused"), F.col("persistence_id"))
        )
        line = stands.agg(F.count_if("refused").alias("count"), first.alias("first")).first()
        assert line is not None
        if row.build == 0 and not adopt:
            raise GuardRefused(
                f"journal {self.journal.keyspace}: an application has numbered {line['count']} "
                "persistence ids (the first: "
                f"{line['first']['persistence_id']!r}; see tag_write_progress and tag_scanning), and "
                "there is no build of ours. "
                f"Nothing was written. {self._way_out()}"
            )
        return count, [line["count"], line["first"]]

    def _refusal(self, refused: list[Any], result: Result) -> str:
        count, first = refused
        others = f" and {count - 1} others" if count > 1 else ""
        return (
            f"journal {self.journal.keyspace}: persistence_id {first['persistence_id']!r}{others} was "
            "numbered by somebody else: "
            f"tag_write_progress has {_said(first['found'])}, our last build {_said(first['progress'])}; "
            "tag_scanning has "
            f"{first['scanned'] or 'nothing'}. Nothing was written for it, the rest is built: "
            f"{result['rows']} rows "
            f"of {result['moved']} persistence ids. {self._way_out()}"
        )

    def _way_out(self) -> str:
        return (
            "Turn events-by-tag off in the application, then take its numbers as the start: "
            f"tagmill views build --pipeline {self.name} --adopt"
        )

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
            "message": f"pipeline {self.name}: {rows} rows written to "
            f"{manifest.journal}.{manifest.view_table}, "
            f"{waiting} persistence ids wait"
            + (
                f" ({', '.join(f'{count} × {reason.text}' for reason, count in manifest.waiting.items())})"
                if waiting
                else ""
            ),
        }


def _stopped(ends: DataFrame) -> DataFrame:
    """Return the persistence ids that wait for another reason than being too young."""
    from pyspark.sql import functions as F

    from tagmill.journal.flaws import Reason

    return ends.where(F.col("reason").isNotNull() & (F.col("reason") != Reason.YOUNG.value))


def _said(progress: list[Any]) -> str:
    """Return the first three tags of a progress, with their numbers, as text for a message."""
    lines = [f"{line['tag']!r} at {line['number']}" for line in progress[:3]]
    return ", ".join(lines) + (" …" if len(progress) > 3 else "") if lines else "nothing"
