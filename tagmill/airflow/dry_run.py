"""Decides if a run of a DAG may change something, or is needed at all: by the configuration's schedule and the
person's param, not by the kind of run alone.
"""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Context

log = logging.getLogger(__name__)
# A scheduled run that begins later than this makes up for a missed one, as after a pause.
ON_TIME = timedelta(minutes=5)


def reports_only(context: Context, schedule: str | None) -> bool:
    """Return True if this run only says what it would change.

    A run that the schedule starts on time makes changes; for any other run its param `dry_run` decides.

    Args:
        context: of the task.
        schedule: the DAG's schedule in the configuration, which switches unattended changes on; None: it has
            none.
    """
    dag_run = context["dag_run"]
    if not _is_scheduled(dag_run):
        return bool(context["params"]["dry_run"])
    if schedule is None:
        log.warning("%s only reports: the configuration has no schedule for it any longer", dag_run.run_id)
        return True
    if late := missed_by(dag_run):
        log.warning(
            "%s only reports: it was due %s earlier, as after a pause. The next scheduled run changes; "
            "to do it now, trigger "
            "the DAG with dry_run off",
            dag_run.run_id,
            late,
        )
        return True
    return False


def missed_by(dag_run: Any) -> timedelta | None:
    """Return by how many seconds a scheduled run missed its moment; None: it is on time, or not scheduled."""
    if not _is_scheduled(dag_run):
        return None
    late = (dag_run.start_date or datetime.now(tz=UTC)) - dag_run.run_after
    return timedelta(seconds=round(late.total_seconds())) if late > ON_TIME else None


def _is_scheduled(dag_run: Any) -> bool:
    return bool(getattr(dag_run.run_type, "value", dag_run.run_type) == "scheduled")
