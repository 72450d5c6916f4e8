"""Cleanup of one pipeline, as the command line and Airflow call it: deletes what may go and reports what
stays, and why.
"""

from collections.abc import Iterator
from typing import Any

from tagmill.config.settings import Settings
from tagmill.config.tag_views import PipelineSettings
from tagmill.errors import GuardRefused, about_pipeline
from tagmill.ledger.preconditions import check_journal
from tagmill.ledger.same_tables import require_same_tables
from tagmill.maintenance.view_cleanup.retention import Removed, Retention, old_reports
from tagmill.maintenance.view_cleanup.view import Found, ViewCleanup, beside, decided, expiring
from tagmill.runs.clock import agreed_now
from tagmill.runs.progress import Tell
from tagmill.runs.workspace import Workspace, open_workspace, silent

OLDER_THAN_NOT_SET = "cleanup.older_than_days is not set: rows of the view stay"


@about_pipeline
def clean(
    settings: Settings,
    pipeline: str,
    *,
    owner: str,
    delete: bool,
    tell: Tell = silent,
) -> dict[str, Any]:
    """Clean up one pipeline: delete proven view partitions, and runs, audits and job reports past retention;
    without `delete`, only report them.

    Out: dry_run, buckets and rows of the view that go, refused_buckets, runs, batches, audits and reports past
    retention, more, `partitions` (one line each), `refused` (one line a tag and reason), warnings, message.
    Raises GuardRefused for a deletion while cleanup.enabled is false, LeaseTaken while the pipeline, or
    another one that delivers the same rows, is at work.
    """
    if pipeline in settings.streams or pipeline in settings.kafka_journals:
        leases = [pipeline] if delete else []
        with open_workspace(settings, pipeline, owner=owner, leases=leases, tell=tell) as workspace:
            return _of_kafka(workspace, delete)
    chosen = settings.pipeline(pipeline)
    if delete and not chosen.cleanup.enabled:
        raise GuardRefused(
            f"pipelines.{pipeline}.cleanup.enabled is false: nothing was deleted. Look what would be: "
            f"tagmill cleanup --pipeline {pipeline} --dry-run; then set it to true",
            pipeline=pipeline,
        )
    # The leases of all pipelines that deliver the same rows keep a withdrawal out, which needs them in the view.
    leases = sorted([pipeline, *beside(settings, pipeline)]) if delete else []
    with open_workspace(settings, pipeline, owner=owner, leases=leases, tell=tell) as workspace:
        check_journal(workspace.cassandra, settings, pipeline)
        require_same_tables(settings, workspace.cassandra, pipeline, "Nothing was deleted")
        now = agreed_now(settings, workspace.cassandra)
        warnings = [*stated_ttl(chosen), *expiring(workspace)]
        if chosen.cleanup.older_than_days is None:
            warnings.append(OLDER_THAN_NOT_SET)
        found = Found()
        if chosen.cleanup.older_than_days is not None or decided(workspace):
            with workspace.clickhouse() as clickhouse:
                found = ViewCleanup(workspace, clickhouse, now).run(delete=delete)
        tell("retention")
        removed = Retention(workspace, now).run(delete=delete)
    return _result(pipeline, found, removed, warnings, delete)


def _of_kafka(workspace: Workspace, delete: bool) -> dict[str, Any]:
    """Clean up after a topic or a Kafka Journal: only what is past retention, since it has no view.

    A replication keeps no files once it is done: only job reports are left.
    """
    now = agreed_now(workspace.settings, workspace.cassandra)
    if workspace.name in workspace.settings.kafka_journals:
        removed = Removed(reports=old_reports(workspace, now, delete=delete))
    else:
        removed = Retention(workspace, now).run(delete=delete)
    return _result(workspace.name, Found(), removed, [], delete)


def stated_ttl(pipeline: PipelineSettings) -> Iterator[str]:
    """Yield a warning for each setting that exceeds the application's own TTL, so that rows expire before
    Tagmill is done with them.
    """
    ttl, days = pipeline.cleanup.application_ttl_seconds, pipeline.cleanup.older_than_days
    if ttl is None:
        return
    if days is not None and ttl < days * 86_400:
        yield (
            f"application_ttl_seconds ({ttl}) is shorter than older_than_days ({days}): the "
            "application deletes rows first, proven or not"
        )
    if ttl < pipeline.max_hold_age_seconds:
        yield (
            f"application_ttl_seconds ({ttl}) is shorter than max_hold_age_seconds "
            f"({pipeline.max_hold_age_seconds:g}): "
            "rows may expire while they are held"
        )


def _result(
    pipeline: str, survey: Found, removed: Removed, warnings: list[str], delete: bool
) -> dict[str, Any]:
    buckets, rows = len(survey.gone), sum(line["rows"] for line in survey.gone)
    refused = sorted(survey.refused.values(), key=lambda line: (line["tag"], line["reason"]))
    stay = sum(line["buckets"] for line in refused)
    done = "deleted" if delete else "would be deleted"
    return {
        "pipeline": pipeline,
        "dry_run": not delete,
        "buckets": buckets,
        "rows": rows,
        "refused_buckets": stay,
        "runs": removed.runs,
        "batches": removed.batches,
        "audits": removed.audits,
        "reports": removed.reports,
        "more": survey.more or removed.more,
        "partitions": survey.gone,
        "refused": refused,
        "warnings": warnings,
        "message": f"pipeline {pipeline}: {buckets} partitions of the view with {rows} rows {done}, "
        f"{stay} stay; "
        f"{removed.runs} runs, {removed.audits} audits and {removed.reports} job reports past retention {done}",
    }
