"""Refuse a copy or a switch that would be unsafe.

Each function's error says what was found and what to do.
"""

from datetime import datetime, timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tagmill.config.tag_views import PipelineSettings
from tagmill.domain.time_buckets import View
from tagmill.errors import ApplicationAtWork, DataQualityStop, GuardRefused, WorkUnfinished
from tagmill.ledger.cleanups import CleanupLog
from tagmill.ledger.view_builds import Builds, BuildState
from tagmill.runs.workspace import Workspace
from tagmill.views.rebucket.table_diff import Survey, TableDiff

NAMED = 3
# Upper limit of the difference between the clocks of the application and of Tagmill.
SKEW = timedelta(minutes=1)


def must_have_buckets(survey: Survey, rows: TableDiff, pipeline: PipelineSettings) -> None:
    """Raise DataQualityStop when rows have no time, or when the share outside their bucket shows that the
    configured size is wrong.

    The share of fewer rows than quality.min_rows_for_share shows nothing: these rows go to the right bucket.
    """
    source = f"{rows.keyspace}.{rows.source.table}"
    if survey.broken:
        named = "; ".join(
            f"tag {row.tag_name!r}, {row.persistence_id!r}, {row.timestamp}" for row in rows.broken(NAMED)
        )
        raise DataQualityStop(
            f"{source}: the timestamp of {survey.broken} rows is no TimeUUID of this age ({named}): they "
            "are in no bucket. "
            "Nothing was copied; repair or delete them first (tagmill audit names them)"
        )
    limits, size = pipeline.quality, rows.source.size.value
    share = limits.max_wrong_bucket_share_percent
    if survey.rows >= limits.min_rows_for_share and survey.misplaced * 100 > share * survey.rows:
        raise DataQualityStop(
            f"{source}: {survey.misplaced} of {survey.rows} rows are not in the {size} bucket of their time, the "
            f"pipeline says {size}. Nothing was copied; set bucket_size as in the application (or, if it is the "
            "rows that are wrong, quality.max_wrong_bucket_share_percent = 100)"
        )


def must_be_finished(
    workspace: Workspace, journal: str, source: View, pipelines: list[str], untouched: str
) -> None:
    """Raise WorkUnfinished while a run, a cleanup or a build is half done, since each knows the view by its old
    buckets.
    """
    CleanupLog(workspace.cassandra, workspace.ledger_keyspace, journal, source).require_finished(
        workspace.settings, untouched
    )
    for name in pipelines:
        workspace.ledger.require_none_open(name, untouched)
    newest = workspace.journal_store(Builds).newest()
    if newest and newest.state != BuildState.DONE:
        builder = workspace.settings.builder(journal) or workspace.name
        raise WorkUnfinished(
            f"build {newest.build} of journal {journal} is not finished. {untouched}; finish it first: tagmill views "
            f"build --pipeline {builder}",
            pipeline=builder,
        )


def must_not_have_moved(now: DataFrame, before: DataFrame, journal: str) -> None:
    """Raise GuardRefused when the plugin's writers have numbered events since the start.

    In: `now` and `before`, what TableDiff.numbered returned at the end and at the start.
    """
    line = now.join(before, now.columns, "left_anti").first()
    if line is not None:
        raise ApplicationAtWork(
            f"journal {journal}: {line['of']} of {line['persistence_id']!r} moved meanwhile (tag "
            f"{line['tag']!r}, now "
            f"{line['number']}): the application is at work. Nothing was switched, what is copied stays; "
            "stop it in every node, "
            "then run the same command again"
        )


def must_be_ours(strays: DataFrame, rows: TableDiff, begun_at: datetime, way_out: str) -> None:
    """Raise GuardRefused when a stray row may have been written after the target was made: then another
    writer wrote it.

    Copies keep the write time of their source row. Rows that are about to expire are ignored: a copy lives a
    little longer than its source.
    """
    lasting = ~F.col("remaining").between(1, int(SKEW.total_seconds()))
    foreign = strays.where(lasting & (F.col("written") >= int((begun_at - SKEW).timestamp() * 1_000_000)))
    line = foreign.orderBy("tag_name", "persistence_id", "tag_pid_sequence_nr").first()
    if line is not None:
        source, target = rows.source.table, f"{rows.keyspace}.{rows.target.table}"
        raise ApplicationAtWork(
            f"{target} has {foreign.count()} rows that {source} has not, written since it was made: "
            "somebody else writes to it "
            f"(tag {line['tag_name']!r}, {line['persistence_id']!r}, number "
            f"{line['tag_pid_sequence_nr']}). Nothing was removed or "
            f"switched. Let the application write to {source} again, begin anew ({way_out}), and repair "
            "what is missing then "
            "(tagmill repair)"
        )


def must_be_there(lost: DataFrame, rows: TableDiff, pipeline: str) -> None:
    """Raise GuardRefused when the old table has rows that the view in force lacks.

    In: the keys (KEY) of such rows.
    """
    line = lost.orderBy("tag_name", "persistence_id", "tag_pid_sequence_nr").first()
    if line is not None:
        raise GuardRefused(
            f"{rows.keyspace}.{rows.source.table} has {lost.count()} rows that {rows.target.table} has "
            "not, or has with other "
            f"contents (tag {line['tag_name']!r}, {line['persistence_id']!r}, number "
            f"{line['tag_pid_sequence_nr']}). Nothing was "
            "dropped. Does a node of the application still write to the old table? Look: tagmill audit "
            f"--pipeline {pipeline}. If somebody "
            "took them away on purpose (extra_in_view, perhaps): DROP TABLE "
            f"{rows.keyspace}.{rows.source.table}",
            pipeline=pipeline,
        )
