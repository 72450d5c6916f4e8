"""Decides which range of time a DAG run reads again, if any. Pure: no clock, no store.

A run reads from each tag's watermark whatever Airflow's interval says. Only two things read a range again:
the params reread_from and reread_until, and a backfill. Airflow 3's cron timetable gives a backfill's runs
intervals of no length, and logical_date may be null, so an interval is used only if it has a length.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from croniter import croniter

from tagmill.domain.schedules import NOT_CRON, cron_of
from tagmill.errors import ConfigurationError


class DagRun(Protocol):
    """Attributes of Airflow's DagRun that this module reads."""

    run_type: Any
    run_id: str
    logical_date: datetime | None
    data_interval_start: datetime | None
    data_interval_end: datetime | None


def reread_range(params: Mapping[str, Any], dag_run: DagRun, schedule: str | None) -> tuple[str, str] | None:
    """Return the range [from, until) to read again as ISO 8601 texts in UTC, or None for an ordinary run.

    Raises ConfigurationError if only one of the two params is given or one has no time zone, and for an empty
    or unknown range.
    """
    given = {name: params.get(name) for name in ("reread_from", "reread_until")}
    if any(given.values()):
        return _range(*(_moment(name, text) for name, text in given.items()))
    if getattr(dag_run.run_type, "value", dag_run.run_type) == "backfill":
        return _range(*_interval(dag_run, schedule))
    return None


def _moment(name: str, text: str | None) -> datetime:
    if not text:
        raise ConfigurationError(
            f"param {name} is missing: a range to read again has both reread_from and reread_until"
        )
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"param {name}: {text!r} is no ISO 8601 date-time") from None
    if moment.tzinfo is None:
        raise ConfigurationError(f"param {name}: {text!r} has no time zone; write {text}Z for UTC")
    return moment


def _range(start: datetime, end: datetime) -> tuple[str, str]:
    if start >= end:
        raise ConfigurationError(
            f"the range to read again is empty: {start.isoformat()} is not before {end.isoformat()}"
        )
    try:
        return start.astimezone(UTC).isoformat(), end.astimezone(UTC).isoformat()
    except OverflowError:
        raise ConfigurationError(
            f"the range to read again, {start.isoformat()} to {end.isoformat()}, is not in the years 1 "
            "to 9999 of UTC"
        ) from None


def _interval(dag_run: DagRun, schedule: str | None) -> tuple[datetime, datetime]:
    """Return a backfill run's interval; if it has no length, the one from the schedule's tick before it to
    its own tick.
    """
    start, end = dag_run.data_interval_start, dag_run.data_interval_end
    if start and end and start < end:
        return start, end
    tick = end or dag_run.logical_date
    if tick is None or schedule is None or schedule in NOT_CRON:
        raise ConfigurationError(
            f"backfill run {dag_run.run_id}: it has no interval, and the schedule {schedule!r} doesn't "
            "give one; "
            "trigger a run with the params reread_from and reread_until instead"
        )
    previous: datetime = croniter(cron_of(schedule), tick).get_prev(datetime)
    return previous, tick
