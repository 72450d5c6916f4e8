"""Tasks that run in Airflow's own worker process: plan, push, close, cleanup.

Each calls one function of the library.

What they return goes to XCom: figures and short texts.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Asset, Context

from tagmill.airflow import connections
from tagmill.airflow.compat import DownstreamTasksSkipped
from tagmill.airflow.dry_run import reports_only
from tagmill.airflow.failures import small, told_to_airflow
from tagmill.airflow.reread import reread_range

log = logging.getLogger(__name__)


def owner(context: Context) -> str:
    """Return the name under which the ledger records the work of a DAG run: the same for each attempt of its
    tasks.

    It names the DAG, too: DAGs due at the same moment have runs of the same id, and would take each other's
    lease for their own.
    """
    dag_run = context["dag_run"]
    return f"airflow/{dag_run.dag_id}/{dag_run.run_id}"


def plan(pipeline: str, context: Context) -> dict[str, Any]:
    """Plan a run, or take over an unfinished one.

    If there is nothing to do, all tasks that follow are skipped, so that no JVM starts.

    Out: run, fence, state, slices, few_rows, more, message, and `reread` (two ISO 8601 texts) if a range is read again.
    """
    from tagmill.delivery.tag_views import steps

    with told_to_airflow():
        settings = connections.load_settings()
        reread = reread_range(context["params"], context["dag_run"], settings.pipeline(pipeline).schedule)
        planned = steps.plan(
            settings, pipeline, owner=owner(context), tags=list(context["params"]["tags"]), reread=reread
        )
    log.info("%s", planned["message"])
    result = small(planned) | ({"reread": list(reread)} if reread else {})
    if planned["run"] is not None:
        return result
    context["ti"].xcom_push(key="return_value", value=result)
    raise DownstreamTasksSkipped(tasks=_downstream(context))  # type: ignore[no-untyped-call]


def push(pipeline: str, planned: Mapping[str, Any], context: Context) -> dict[str, Any]:
    """Send the sealed batches to ClickHouse. Out: run, batches, rows, message."""
    from tagmill.delivery.tag_views import steps

    with told_to_airflow():
        settings = connections.load_settings()
        pushed = steps.push(settings, pipeline, planned["run"], planned["fence"], owner=owner(context))
    log.info("%s", pushed["message"])
    return small(pushed)


def close(
    pipeline: str, planned: Mapping[str, Any], pushed: Mapping[str, Any], asset: Asset, context: Context
) -> dict[str, Any]:
    """Move progress and watermarks, release the lease, and tell the asset's consumers how many rows which run
    brought.
    """
    from tagmill.delivery.tag_views import steps

    with told_to_airflow():
        settings = connections.load_settings()
        closed = steps.close(settings, pipeline, planned["run"], planned["fence"], owner=owner(context))
    log.info("%s", closed["message"])
    facts = {
        "pipeline": pipeline,
        "run": planned["run"],
        "rows": pushed["rows"],
        "batches": pushed["batches"],
    }
    context["outlet_events"][asset].extra = facts
    return small(closed)


def cleanup(pipeline: str, schedule: str | None, context: Context) -> dict[str, Any]:
    """Delete partitions of the view that are proven delivered and older than their TTL, and runs past
    retention.

    A run that the schedule starts on time deletes; any other one only says what would go, unless the param
    `dry_run` is switched off. What is not proven stays, with the reason in the task's log. Out: buckets,
    rows, refused_buckets, runs, batches, audits, reports, message.
    """
    from tagmill.maintenance.view_cleanup.clean import clean

    with told_to_airflow():
        settings = connections.load_settings()
        delete = not reports_only(context, schedule) or _deletes_by_old_param(context)
        done = clean(settings, pipeline, owner=owner(context), delete=delete, tell=log.info)
    for line in done["refused"]:
        log.info("tag %(tag)s: %(buckets)s partitions stay (%(oldest)s to %(newest)s): %(text)s", line)
    for warning in done["warnings"]:
        log.warning("%s", warning)
    log.info("%s", done["message"])
    return small(done)


def audit_since_due(pipeline: str, context: Context) -> str | None:
    """Return what audits the pipeline instead of a scheduled run that missed its moment: another run of the DAG
    that waits, or audits of all tags that began since. None: nothing does.
    """
    from tagmill.ledger.audits import Audits
    from tagmill.ledger.runs import Ledger

    dag_run = context["dag_run"]
    if context["ti"].get_dr_count(dag_run.dag_id, states=["queued", "running"]) > 1:
        return "another run of this DAG waits"
    with told_to_airflow():
        settings = connections.load_settings()
        with Ledger(settings.cassandra) as ledger:
            audits = Audits(ledger.cassandra, settings.cassandra.ledger_keyspace, pipeline)
            tags = set(settings.pipeline(pipeline).tags)
            last = audits.last_done_of(tags)
        first = min(last.values(), key=lambda row: row.started_at, default=None)
        if first is None or first.started_at < dag_run.run_after or tags - last.keys():
            return None
    return f"audit {first.audit} began since, {first.started_at.isoformat()}"


def _deletes_by_old_param(context: Context) -> bool:
    """Return True if the param `delete` of the previous release, which a form no longer has, is on."""
    if "delete" in context["params"]:
        log.warning(
            "the param delete is called dry_run now, with the opposite meaning; the next release ignores it"
        )
    return context["params"].get("delete") is True


def _downstream(context: Context) -> Sequence[str]:
    return sorted(task.task_id for task in context["task"].get_flat_relatives(upstream=False))
