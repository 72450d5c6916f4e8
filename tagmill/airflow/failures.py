"""Translates an error of a step, or the report of a job, to Airflow: fail at once, try again, or come back
later.

| error | exit code | Airflow |
|---|---|---|
| wrong input or configuration, a batch that differs | 2 | fails at once |
| data quality | 3 | fails at once, the text names the page |
| the lease is another run's | 75 | the task comes back after a pause; no attempt is used up |
| the run was taken over | 75 | the task is skipped: the process that took the run finishes it |
| transient, unknown outcome | 75 | retried |
| anything else, and a death without a report | | retried |
"""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from tagmill.airflow.compat import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
    come_back_after,
)
from tagmill.errors import DataQualityStop, FenceRaised, LeaseTaken, TagmillError
from tagmill.spark.errors import explain

log = logging.getLogger(__name__)
TERMINAL = frozenset({2, 3})
LEASE_PAUSE = timedelta(seconds=30)


@contextmanager
def told_to_airflow() -> Iterator[None]:
    """Translate the errors of a step that runs in this process to Airflow's exceptions."""
    try:
        yield
    except TagmillError as error:
        docs = error.docs_page if isinstance(error, DataQualityStop) else None
        # not a chain of errors: the log ends with this sentence
        raise failure(type(error).__name__, error.exit_code, str(error), docs) from None
    except AirflowException:
        raise
    except Exception as error:
        told = explain(error, "Cassandra")
        if told is None:
            raise
        raise failure(type(told).__name__, told.exit_code, str(told)) from None


def failure(kind: str, exit_code: int, message: str, docs: str | None = None) -> AirflowException:
    """Return the exception to raise for an error; `kind` is the name of its class, `docs` the page that shows
    why.
    """
    text = f"{message}\nData Docs: {docs}" if docs else message
    if kind == LeaseTaken.__name__:
        log.info("%s. Comes back in %s s", text, LEASE_PAUSE.seconds)  # Airflow logs no reason
        return come_back_after(LEASE_PAUSE)
    if kind == FenceRaised.__name__:
        return AirflowSkipException(text)
    if exit_code in TERMINAL:
        return AirflowFailException(text)
    return AirflowException(text)


def failure_of_job(report: Mapping[str, Any] | None, job: str) -> AirflowException:
    """Return the exception for a job that did not succeed; `report` is None if the job left none."""
    if report is None:
        return AirflowException(
            f"{job} died without a report: killed, out of memory, or Spark did not start (its own words "
            "are in this log). "
            "Nothing that it did counts before its commit, so trying again is safe"
        )
    message = str(report.get("error") or report.get("message") or "failed without a message")
    kind, exit_code = str(report.get("error_type") or ""), int(report.get("exit_code") or 1)
    return failure(kind, exit_code, f"{job}: {message}", report.get("docs"))


def read_report(file: Path) -> dict[str, Any] | None:
    """Read a job's report; return None if there is none, or only half of one."""
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    return report if isinstance(report, dict) else None


def small(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report as an XCom: figures and short texts only, a list becomes its length."""
    flat = {
        **(report.get("result") or {}),
        **{key: value for key, value in report.items() if key != "result"},
    }
    return {key: _short(value) for key, value in flat.items() if not isinstance(value, Mapping)}


def _short(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return len(value)
    return value[:500] if isinstance(value, str) else value
