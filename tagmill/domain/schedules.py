"""Schedules of DAGs: Airflow's presets and cron expressions."""

from croniter import CroniterBadDateError, croniter

# Airflow's presets that are short for a cron expression; croniter does not know all of them.
PRESETS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
}
# Airflow's schedules that are not short for a cron expression.
NOT_CRON = frozenset({"@once", "@continuous"})


def cron_of(schedule: str) -> str:
    """Return the cron expression that a schedule is, or is short for."""
    return PRESETS.get(schedule, schedule)


def require_schedule(schedule: str) -> str:
    """Return the schedule; raises ValueError if it is neither a preset nor a cron expression with a moment to come."""
    if schedule in NOT_CRON:
        return schedule
    try:
        croniter(cron_of(schedule)).get_next()
    except CroniterBadDateError:
        raise ValueError(f"{schedule!r} never comes") from None
    except ValueError as error:
        presets = ", ".join([*PRESETS, *sorted(NOT_CRON)])
        raise ValueError(
            f"{schedule!r} is neither a cron expression ({error}) nor one of {presets}"
        ) from None
    return schedule
