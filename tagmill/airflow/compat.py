"""What differs between Airflow 3.1 and 3.3, and between the providers of their time.

Names that moved come from the provider common.compat, where it has them.
"""

import time
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import Any

from airflow import __version__
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
    ParamValidationError,
)
from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import BaseOperator
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

try:
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowNotFoundException,
        AirflowRescheduleException,
    )
except ImportError:
    from airflow.exceptions import (  # type: ignore[attr-defined]
        AirflowException,
        AirflowNotFoundException,
        AirflowRescheduleException,
    )
try:
    from airflow.sdk.configuration import conf
except ImportError:
    from airflow.configuration import conf
try:
    from airflow.sdk import CronTriggerTimetable, MultipleCronTriggerTimetable
except ImportError:
    from airflow.timetables.trigger import (  # type: ignore[assignment]
        CronTriggerTimetable,
        MultipleCronTriggerTimetable,
    )
try:
    from airflow.sdk.definitions.callback import AsyncCallback
except ImportError:
    from airflow.sdk.definitions.deadline import AsyncCallback  # type: ignore[attr-defined]
try:
    from airflow.sdk.types import TaskInstanceKey
except ImportError:
    from airflow.models.taskinstancekey import TaskInstanceKey  # type: ignore[assignment]

# The factor by which the delay of each retry grows. Until 3.1, Airflow takes only True, which means the same; since
# then True would mean 1.
BACKOFF: float = 2.0 if "float" in str(BaseOperator.__annotations__["retry_exponential_backoff"]) else True
# A retry submits a new job and never takes up an earlier one, which newer providers would do.
EACH_RUN_SUBMITS: dict[str, Any] = (
    {"durable": False} if "durable" in signature(SparkSubmitOperator.__init__).parameters else {}
)
# Until 3.2, a task that asks to come back later comes back at once, unless it is a sensor.
IGNORES_PAUSE = tuple(map(int, __version__.split(".")[:2])) < (3, 2)


def come_back_after(pause: timedelta) -> AirflowRescheduleException:
    """Return the exception that lets a task come back after a pause; where Airflow ignores it, the task sleeps first."""
    at = datetime.now(tz=UTC) + pause
    if IGNORES_PAUSE:
        time.sleep(pause.total_seconds())
    return AirflowRescheduleException(at)  # type: ignore[no-untyped-call]


def approval_limits(answer: timedelta, work: timedelta) -> dict[str, Any]:
    """Return the arguments of an ApprovalOperator: how long it waits for an answer, and how long it may work.

    In older providers the task's time limit is the time for the answer.
    """
    if "response_timeout" in signature(HITLOperator.__init__).parameters:
        return {"response_timeout": answer, "execution_timeout": work}
    return {"execution_timeout": answer}


__all__ = [
    "BACKOFF",
    "EACH_RUN_SUBMITS",
    "IGNORES_PAUSE",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowRescheduleException",
    "AirflowSkipException",
    "AsyncCallback",
    "CronTriggerTimetable",
    "DeadlineAlert",
    "DeadlineReference",
    "DownstreamTasksSkipped",
    "MultipleCronTriggerTimetable",
    "ParamValidationError",
    "TaskInstanceKey",
    "approval_limits",
    "come_back_after",
    "conf",
]
