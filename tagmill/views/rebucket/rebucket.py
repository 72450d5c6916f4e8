"""Rebucket the view of one journal, for the command line and Airflow.

Each step may be killed at any instruction and run again.

No step relies on what a killed one left. Sums show what differs between the two tables, and that is copied.
When nothing differs while the application is stopped, one conditional update makes the new table the view in
force. The old table stays until it is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from tagmill.config.settings import Settings
from tagmill.domain import identifiers
from tagmill.domain.time_buckets import BucketSize, View
from tagmill.errors import DataQualityStop, FenceRaised, GuardRefused, about_pipeline
from tagmill.ledger.erasures import Erasures
from tagmill.ledger.journal_tables import JournalTableIds
from tagmill.ledger.same_tables import require_same_tables
from tagmill.ledger.view_builds import Builds
from tagmill.ledger.view_tables import JournalViews, ViewTableState
from tagmill.runs import checkpoints
from tagmill.runs.workspace import Workspace, open_workspace, silent
from tagmill.views.rebucket import advice
from tagmill.views.rebucket.situation import Situation, look, require_configured_view
from tagmill.views.rebucket.tables import ViewTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tagmill.runs.progress import Tell
    from tagmill.views.rebucket.table_diff import Survey, TableDiff

Result = dict[str, Any]
# Passes of comparing and copying before a switch gives up. Usually one is enough, or two after a kill or a
# deletion.
ROUNDS = 3
NAMED = 20


@about_pipeline
def rebucket(
    settings: Settings,
    pipeline: str,
    *,
    to: BucketSize,
    owner: str,
    spark: SparkSession,
    table: str | None = None,
    offline: bool = False,
    drop_old: bool = False,
    dry_run: bool = True,
    tell: Tell | None = None,
) -> Result:
    """Copy the view of a pipeline's journal into a table with buckets of the size `to`: all its tags, for all
    pipelines on it.

    With `dry_run`, the default, it only counts. Without `offline` it copies while the application writes;
    with it (the application stopped) it copies what was written since, verifies, and switches. `drop_old`
    drops the old table after a switch. `table`: the new table's name.

    Out: step ("counted", "copied", "switched" or "dropped"), dry_run, source and target, tags (one line
    each), totals, lines (the configuration, once switched), warnings, message. Raises GuardRefused,
    DataQualityStop when the tables don't agree, FenceRaised, LeaseTaken.
    """
    from tagmill.spark.errors import explained

    leases = _leases(settings, pipeline, alone=not dry_run and (offline or drop_old))
    with open_workspace(settings, pipeline, owner=owner, leases=leases, tell=tell or silent) as workspace:
        _require_journal(workspace)
        work = _Rebucket(workspace, to, table, spark)
        with explained(workspace.cassandra.where, "Rows that were copied stay"), work.files():
            if work.situation.is_switched:
                return work.drop(dry_run=dry_run) if drop_old else work.already(dry_run=dry_run)
            if drop_old:
                raise GuardRefused(
                    f"journal {work.journal}: its view is in {work.source}, there was no switch to "
                    f"{to.value}. Nothing was dropped"
                )
            if dry_run:
                return work.count()
            return work.switch() if offline else work.copy()


@about_pipeline
def check(settings: Settings, pipeline: str, to: BucketSize, table: str | None = None) -> None:
    """Refuse, before Spark is started, a rebucket that can't be done; raises GuardRefused,
    ConfigurationError.
    """
    with open_workspace(settings, pipeline) as workspace:
        look(settings, pipeline, *_tables(workspace), to, table)


@about_pipeline
def abandon(settings: Settings, pipeline: str, *, owner: str, dry_run: bool = True) -> Result:
    """Give up a rebucket that is under way and drop the table that it was filling; with `dry_run`, the
    default, only say so.

    Raises GuardRefused when no rebucket is under way.
    """
    leases = _leases(settings, pipeline, alone=not dry_run)
    with open_workspace(settings, pipeline, owner=owner, leases=leases) as workspace:
        _require_journal(workspace)
        views, tables = _tables(workspace)
        standing, target = _under_way(views, views.standing())
        if not dry_run:
            standing, target = _under_way(views, views.take_over(owner, standing.view))
            # The table is dropped before the record: after a kill in between, the rebucket is still known and
            # copies again.
            if target.table in tables.there():
                _drop(workspace, tables, views, standing, target.table)
                workspace.journal_store(JournalTableIds).forget(target.table)
            views.give_up(standing)
        done = "would be dropped" if dry_run else "is dropped"
        return {
            "step": "abandoned",
            "dry_run": dry_run,
            "pipeline": pipeline,
            "journal": views.journal,
            "tags": [],
            "warnings": [],
            "lines": [],
            "message": f"journal {views.journal}: {target} {done}; its view stays in {standing.view}",
        }


def _under_way(views: JournalViews, standing: ViewTableState | None) -> tuple[ViewTableState, View]:
    """Return the state and the view that is being filled; raises GuardRefused if there is none."""
    if standing is None or standing.filling is None:
        raise GuardRefused(f"journal {views.journal}: no rebucket is under way. Nothing was dropped")
    return standing, standing.filling


def _drop(
    workspace: Workspace, tables: ViewTables, views: JournalViews, standing: ViewTableState, table: str
) -> None:
    """Drop a table, unless another process has been at work since: the table may be the view in force by then.

    Raises LeaseTaken, FenceRaised. A process that freezes between the look and the DROP behind it still drops.
    """
    checkpoints.reached("rebucket.before_drop")
    workspace.require_leases()
    views.current(standing)
    tables.drop(table)


def _tables(workspace: Workspace) -> tuple[JournalViews, ViewTables]:
    views = workspace.journal_store(JournalViews)
    return views, ViewTables(workspace.cassandra, views.journal)


def _leases(settings: Settings, pipeline: str, *, alone: bool) -> list[str]:
    """Return the lease of the journal's rebuckets; with `alone`, those of all its pipelines, too."""
    keyspace = settings.pipeline(pipeline).keyspace
    return [f"{keyspace}/rebucket", *(settings.on_journal(keyspace) if alone else [])]


def _require_journal(workspace: Workspace) -> None:
    """Raise GuardRefused if an erasure is not finished, or the journal's tables were created again."""
    workspace.journal_store(Erasures).check(workspace.name)
    settings, untouched = workspace.settings, "Nothing was copied or dropped"
    require_same_tables(settings, workspace.cassandra, workspace.name, untouched)


class _Rebucket:
    """One rebucket: one journal, one target, one Spark session."""

    def __init__(self, workspace: Workspace, to: BucketSize, table: str | None, spark: SparkSession) -> None:
        from tagmill.views.rebucket.table_diff import TableDiff

        self.workspace, self.settings, self.ledger = workspace, workspace.settings, workspace.ledger
        self.name, self.owner, self.tell = workspace.name, workspace.owner, workspace.tell
        self.spark = spark
        self.pipeline = workspace.pipeline
        self.journal = self.pipeline.keyspace
        self.views, self.tables = _tables(workspace)
        self.situation: Situation = look(workspace.settings, self.name, self.views, self.tables, to, table)
        self.source, self.target = self.situation.source, self.situation.target
        self.store = workspace.files
        self.folder = f"{self.name}/rebucket/{uuid4().hex[:12]}"
        self.rows: TableDiff = TableDiff(
            spark, self.tables, self.source, self.target, self.store.url(self.folder)
        )

    @contextmanager
    def files(self) -> Iterator[None]:
        """Remove the pipeline's intermediate files of rebuckets: those that killed ones left on entry, its own on
        exit.
        """
        self.store.remove_folder(f"{self.name}/rebucket")
        try:
            yield
        finally:
            self.store.remove_folder(self.folder)

    # -- the steps

    def count(self) -> Result:
        """Count the view's rows and report the partitions that the target would have, without changing
        anything.
        """
        begun = self.situation.is_begun and self.target.table in self.tables.there()
        survey = self._surveyed()
        lines = self.rows.lines(survey, with_target=begun)
        done = self._result("counted", survey, lines)
        done["bytes_on_disk"] = survey.bytes * self.tables.replicas()
        largest = f"the largest of {done['largest_rows']} rows and {done['largest_bytes'] >> 20} MiB"
        state = f"{done['differing']} of them differ yet" if begun else "None is there yet"
        done["message"] = (
            f"journal {self.journal}: {survey.rows} rows of {self.source} would be {done['partitions']} "
            f"partitions of {self.target}, "
            f"{largest}; about {done['bytes_on_disk'] >> 20} MiB on the cluster's disks before "
            f"compression. {state}. Nothing was changed"
        )
        return done

    def copy(self) -> Result:
        """Create the target and copy into it what differs, once, while the application may write."""
        self._begin()
        survey = self._surveyed()
        lines = self._compared(survey)
        self._copy(survey, lines)
        done = self._result("copied", survey, lines) | {"copied_rows": self._differing(lines)}
        done["message"] = (
            f"journal {self.journal}: {done['copied_rows']} rows of {self.source} copied into "
            f"{self.target}, {done['differing']} of "
            f"{done['partitions']} partitions. Stop the application, then: tagmill views rebucket "
            f"--pipeline {self.name} "
            f"--to {self.target.size.value} --offline --yes"
        )
        return done

    def switch(self) -> Result:
        """Copy what still differs while the application is stopped, verify, and make the target the view in
        force.
        """
        from tagmill.views.rebucket import guards

        pipelines = self.settings.on_journal(self.journal)
        guards.must_be_finished(self.workspace, self.journal, self.source, pipelines, "Nothing was copied")
        fence = self._stop_builders()
        standing = self._begin()
        self.tell("looking where the plugin's writers are")
        before = self.rows.fixed(self.rows.numbered())
        survey, lines, copied, removed = self._agreed(standing)
        guards.must_not_have_moved(self.rows.numbered(), before, self.journal)
        checkpoints.reached("rebucket.verified")
        # If this process slept, others have worked with the source since: what they wrote is not in the target.
        self.workspace.require_leases()
        self._builds().current(fence)
        untouched = "Nothing was switched, what is copied stays"
        guards.must_be_finished(self.workspace, self.journal, self.source, pipelines, untouched)
        self.views.switch(standing)
        checkpoints.reached("rebucket.switched")
        self._tell_builders()
        done = self._result("switched", survey, lines) | {
            "copied_rows": copied,
            "removed": removed,
            "lines": self._lines(),
        }
        done["message"] = (
            f"journal {self.journal}: {self.target} has every row of {self.source} "
            f"({survey.rows - survey.twice} rows, "
            f"{done['partitions']} partitions, verified) and is the view in force. Change the "
            "configurations before anything starts again"
        )
        return done

    def already(self, *, dry_run: bool) -> Result:
        """Return the configuration lines again after a switch; unless `dry_run`, set the builds to the new
        bucket size, too.
        """
        if not dry_run:
            self._tell_builders()
        message = (
            f"journal {self.journal}: {self.target} is the view in force already; the "
            "configurations have to say so"
        )
        return self._named("switched") | {
            "dry_run": dry_run,
            "tags": [],
            "warnings": [],
            "lines": self._lines(),
            "message": message,
        }

    def drop(self, *, dry_run: bool) -> Result:
        """Drop the table that the view was in, if the one in force has every row of it."""
        from tagmill.views.rebucket.report import tags

        require_configured_view(self.settings, self.views, self.target)
        result = self._named("dropped") | {"dry_run": dry_run, "tags": [], "warnings": [], "lines": []}
        standing = None if dry_run else self.views.take_over(self.owner, self.target)
        if self.source.table in self.tables.there():
            survey, lines, taken = self._still_agrees()
            result["tags"] = tags(survey, lines)
            if taken:
                result["warnings"] = [
                    f"{taken} rows of {self.source.table} were deleted with their events, or replaced, "
                    f"in {self.target.table} since"
                ]
        if standing is not None:
            _drop(self.workspace, self.tables, self.views, standing, self.source.table)
            self._forget(self.source.table)
            self.views.dropped(standing, self.source.table)
        done = "would be dropped" if dry_run else "is dropped"
        result["message"] = f"journal {self.journal}: {self.source} {done}; {self.target} has every row of it"
        return result

    # -- parts of the steps

    def _begin(self) -> ViewTableState:
        """Take the rebucket over from any earlier attempt, and create the target table if it is missing."""
        standing = self.views.take_over(self.owner, self.source)
        if standing.filling not in (None, self.target):  # begun by another process since the look
            raise FenceRaised(
                f"journal {self.journal}: a rebucket into {standing.filling} has begun meanwhile. Nothing was "
                "copied; run the same command again"
            )
        if standing.filling is None:
            standing = self.views.begin(standing, self.target)
        checkpoints.reached("rebucket.begun")
        if self.target.table not in self.tables.there():  # one of that name may have been dropped by hand
            self._forget(self.target.table)
        self.tables.create(self.source.table, self.target.table)
        return standing

    def _forget(self, table: str) -> None:
        keyspace = self.settings.cassandra.ledger_keyspace
        JournalTableIds(self.ledger.cassandra, keyspace, self.journal).forget(table)

    def _surveyed(self) -> Survey:
        from tagmill.views.rebucket import guards

        self.tell(f"reading {self.source.table}")
        survey = self.rows.survey()
        guards.must_have_buckets(survey, self.rows, self.pipeline)
        return survey

    def _compared(self, survey: Survey) -> DataFrame:
        self.tell(f"comparing {self.source.table} and {self.target.table}")
        return self.rows.lines(survey, with_target=True)

    def _copy(self, survey: Survey, lines: DataFrame) -> None:
        if lines.where("differs and rows > 0").take(1):
            self.tell(f"copying into {self.target.table}")
            self.rows.copy(survey, lines)
        checkpoints.reached("rebucket.copied")

    def _agreed(self, standing: ViewTableState) -> tuple[Survey, DataFrame, int, list[str]]:
        """Compare, remove what only the target has and copy what differs, until only rows that expired in
        between differ.

        Returns the last survey and lines, how many rows were copied, and texts that name removed rows. Raises
        DataQualityStop when the tables still differ after ROUNDS passes.
        """
        from pyspark.sql.functions import lit

        copied, removed = 0, list[str]()
        for again in range(ROUNDS):
            survey = self._surveyed()
            lines = self._compared(survey)
            if not lines.where("differs").take(1):
                return survey, lines, copied, removed
            removed += self._remove_strays(survey, lines, standing)
            if again and not self.rows.lost(survey, lines).take(1):
                return survey, lines.withColumn("differs", lit(False)), copied, removed
            copied += self._differing(lines)
            self._copy(survey, lines)
        line = lines.where("differs").orderBy("tag_name", "bucket").collect()[0]
        raise DataQualityStop(
            f"journal {self.journal}: after {ROUNDS} passes {self.target} still differs from "
            f"{self.source}, first at tag "
            f"{line['tag_name']!r}, timebucket {line['bucket']} ({line['rows']} rows, {line['t_rows']} "
            "there). Nothing was switched, the "
            f"view stays in {self.source}. Does anybody write? Else begin anew: {self._way_out()}"
        )

    def _remove_strays(self, survey: Survey, lines: DataFrame, standing: ViewTableState) -> list[str]:
        """Remove copied rows from the target that the source no longer has; return texts that name the first
        NAMED.
        """
        from tagmill.views.rebucket import guards

        strays = self.rows.strays(survey, lines)
        begun_at = standing.tables[self.target.table].begun_at
        if begun_at is None or not strays.take(1):
            return []
        foreign = self.rows.foreign(strays, survey, lines, self._deleted())
        guards.must_be_ours(foreign, self.rows, begun_at, self._way_out())
        self.tell(f"removing rows that {self.source.table} has no longer")
        self.ledger.cassandra.write_many(
            f"DELETE FROM {identifiers.cql_table(self.journal, self.target.table)} USING TIMESTAMP ?"
            " WHERE tag_name = ? AND timebucket = ? AND timestamp = ? AND persistence_id = ? AND "
            "tag_pid_sequence_nr = ?",
            _deletions(strays),
        )
        named = strays.orderBy("tag_name", "persistence_id", "tag_pid_sequence_nr").limit(NAMED).collect()
        return [
            f"tag {r['tag_name']!r}, {r['persistence_id']!r}, number {r['tag_pid_sequence_nr']}"
            for r in named
        ]

    def _still_agrees(self) -> tuple[Survey, DataFrame, int]:
        """Raise GuardRefused when the old table has a row that the view in force lacks and that was not
        removed on purpose.

        Returns the survey, the lines, and how many rows were removed on purpose, not counting those that
        cleanups have deleted.
        """
        from tagmill.views.rebucket import guards

        survey = self._surveyed()
        lines = self._compared(survey)
        lost = self.rows.lost(survey, lines, self.rows.cleaned(self.target))
        if not lost.take(1):
            return survey, lines, 0
        guards.must_be_there(self.rows.missed(lost, self._deleted()), self.rows, self.name)
        return survey, lines, lost.count()

    def _deleted(self) -> DataFrame:
        metadata = self.pipeline.journal.metadata
        return self.rows.deleted(metadata if metadata in self.tables.there() else None)

    def _builds(self) -> Builds:
        return Builds(self.ledger.cassandra, self.settings.cassandra.ledger_keyspace, self.journal)

    def _stop_builders(self) -> int:
        """Raise the fence of the journal's builds, so that a frozen builder can no longer commit; return it."""
        builds = self._builds()
        newest = builds.newest()
        return builds.take_over(self.owner, newest.bucket_size if newest else self.source.size.value).fence

    def _tell_builders(self) -> None:
        """Set the journal's builds to the target's bucket size, if Tagmill builds its view."""
        builds = self._builds()
        newest = builds.newest()
        if newest is not None and newest.bucket_size != self.target.size.value:
            builds.rebucketed(builds.take_over(self.owner, newest.bucket_size), self.target.size.value)

    # -- results and messages

    def _way_out(self) -> str:
        return f"tagmill views rebucket --pipeline {self.name} --to {self.target.size.value} --abandon"

    def _lines(self) -> list[str]:
        return advice.switched(self.target, self.settings.on_journal(self.journal))

    def _differing(self, lines: DataFrame) -> int:
        return int(lines.selectExpr("coalesce(sum(if(differs, rows, 0)), 0) AS rows").collect()[0]["rows"])

    def _named(self, step: str) -> Result:
        return {
            "step": step,
            "pipeline": self.name,
            "journal": self.journal,
            "dry_run": step == "counted",
            "source": {"table": self.source.table, "bucket_size": self.source.size.value},
            "target": {"table": self.target.table, "bucket_size": self.target.size.value},
        }

    def _result(self, step: str, survey: Survey, lines: DataFrame) -> Result:
        from tagmill.views.rebucket import report

        warnings = list(report.warnings(survey, lines, self.source, self.target, self.pipeline))
        return {**self._named(step), **report.figures(survey, lines), "warnings": warnings, "lines": []}


def _deletions(strays: DataFrame) -> Iterator[tuple[Any, ...]]:
    """Yield the values of the DELETE; its timestamp is the row's write time, so a row that is written again
    later stays.
    """
    for r in strays.toLocalIterator():
        yield (
            r["written"],
            r["tag_name"],
            r["timebucket"],
            UUID(r["timestamp"]),
            r["persistence_id"],
            r["tag_pid_sequence_nr"],
        )
