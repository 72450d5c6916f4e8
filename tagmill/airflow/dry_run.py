"""Decides if a run of a DAG may change something: by the configuration's schedule and the person's param, not
by the kind of run alone.
"""

import logging
from datetime import UTC, datetime, timedelta

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
    if getattr(dag_run.run_type, "value", dag_run.run_type) != "scheduled":
        return bool(context["params"]["dry_run"])
    if schedule is None:
        log.warning("%s only reports: the configuration has no schedule for it any longer", dag_run.run_id)
        return True
    late = (dag_run.start_date or datetime.now(tz=UTC)) - dag_run.run_after
    if late > ON_TIME:
        log.warning(
            "%s only reports: it was due %s earlier, as after a pause. The next scheduled run changes; "
            "to do it now, trigger "
            "the DAG with dry_run off",
            dag_run.run_id,
            timedelta(seconds=round(late.total_seconds())),
        )
        return True
    return False
