"""What Airflow does after each way in which a step or a job can end."""

import json
import time
import traceback
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

pytest.importorskip("airflow")

from tagmill import errors
from tagmill.airflow import compat
from tagmill.airflow.compat import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)
from tagmill.airflow.failures import failure_of_job, read_report, small, told_to_airflow

JOB = "seal of run 7 of orders"
RETRIED = AirflowException


@pytest.fixture(autouse=True)
def slept(monkeypatch):
    """Return the seconds that the task slept, which it doesn't."""
    seconds = []
    monkeypatch.setattr(time, "sleep", seconds.append)
    return seconds


def report(exit_code, error_type, error="what happened", **more):
    return {
        "step": "seal",
        "ok": False,
        "exit_code": exit_code,
        "error_type": error_type,
        "error": error,
        **more,
    }


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (report(2, "ConfigurationError"), AirflowFailException),
        (report(2, "BatchDiffers"), AirflowFailException),
        (report(3, "DataQualityStop"), AirflowFailException),
        (report(75, "TransientError"), RETRIED),
        (report(75, "UnknownOutcome"), RETRIED),
        (report(75, "StoreUnavailable"), RETRIED),
        (report(75, "LeaseTaken"), AirflowRescheduleException),
        (report(75, "FenceRaised"), AirflowSkipException),
        (report(1, "KeyError"), RETRIED),
        ({"ok": False}, RETRIED),
        (None, RETRIED),
    ],
)
def test_job_report_decides_fail_retry_or_reschedule(given, expected):
    """Map the report of a job, or its absence, to the exception that makes Airflow fail, retry, reschedule or
    skip.
    """
    assert type(failure_of_job(given, JOB)) is expected


def test_quality_stop_gives_reason_and_page():
    """Quality stops show the reason and, on a line of its own, the link to Data Docs."""
    told = failure_of_job(
        report(3, "DataQualityStop", "12 % of the rows are held", docs="http://airflow/tagmill/docs/x.html"),
        JOB,
    )
    assert str(told) == f"{JOB}: 12 % of the rows are held\nData Docs: http://airflow/tagmill/docs/x.html"


def test_death_without_report_says_retry_safe():
    """Jobs that die without a report fail with the words that trying again is safe."""
    assert "trying again is safe" in str(failure_of_job(None, JOB))


@pytest.mark.parametrize("text", ["", "{", '{"ok": tr', "[]", "\x00\x00"])
def test_half_a_report_counts_as_none(tmp_path, text):
    file = tmp_path / "report.json"
    file.write_text(text)
    assert read_report(file) is None
    assert read_report(tmp_path / "missing.json") is None


def test_a_whole_report_is_read(tmp_path):
    file = tmp_path / "report.json"
    file.write_text(json.dumps(report(2, "ConfigurationError")))
    assert read_report(file) == report(2, "ConfigurationError")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.ConfigurationError("x"), AirflowFailException),
        (errors.DestinationDiffers("x"), AirflowFailException),
        (errors.SealedFileDamaged("x"), AirflowFailException),
        (errors.DataQualityStop("x", "/data/docs/index.html"), AirflowFailException),
        (errors.TransientError("x"), RETRIED),
        (errors.UnknownOutcome("x"), RETRIED),
        (errors.LeaseTaken("x"), AirflowRescheduleException),
        (errors.FenceRaised("x"), AirflowSkipException),
    ],
)
def test_a_steps_error_becomes_what_airflow_understands(error, expected):
    """Map the library's errors to Airflow's exceptions, without a chain of causes in the log."""
    with pytest.raises(AirflowException) as told, told_to_airflow():
        raise error
    assert type(told.value) is expected and "direct cause" not in "".join(
        traceback.format_exception(told.value)
    )


def test_unforeseen_error_passes_unchanged():
    """Unforeseen errors pass unchanged, so that Airflow retries."""
    with pytest.raises(KeyError), told_to_airflow():
        raise KeyError("a bug")


def test_a_taken_lease_comes_back_soon():
    told = failure_of_job(report(75, "LeaseTaken"), JOB)
    assert 0 < (told.reschedule_date - datetime.now(tz=UTC)).total_seconds() <= 60


def test_an_xcom_holds_figures_and_short_texts_only():
    """Keep figures, lengths of lists and texts of at most 500 characters in XCom."""
    shown = small(
        {
            "ok": True,
            "seconds": 1.5,
            "result": {"run": 7, "batches": ["a", "b"], "rows": 5, "plan": {"x": 1}},
            "message": "m" * 9000,
        }
    )
    assert shown == {"ok": True, "seconds": 1.5, "run": 7, "batches": 2, "rows": 5, "message": "m" * 500}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("right to read", AirflowFailException), ("cassandra of a worker", RETRIED), (None, ZeroDivisionError)],
)
def test_foreign_error_ends_task_like_command(name, expected):
    """Steps in Airflow's own process may meet an error that passed its store: it ends the task as it ends a
    command.

    Defects pass unchanged.
    """
    from tests.support.sparkfailures import FAILURES, SparkFailure

    with pytest.raises(expected) as told, told_to_airflow():
        raise SparkFailure(FAILURES[name].text) if name else ZeroDivisionError
    assert type(told.value) is expected


@pytest.mark.parametrize("ignored", [True, False])
def test_task_comes_back_after_pause(monkeypatch, slept, ignored):
    """Where Airflow would start the task at once, it has slept before."""
    monkeypatch.setattr(compat, "IGNORES_PAUSE", ignored)
    error, begun = compat.come_back_after(timedelta(seconds=30)), datetime.now(tz=UTC)
    assert slept == ([30] if ignored else [])
    assert timedelta(seconds=25) < error.reschedule_date - begun < timedelta(seconds=31)


def test_this_airflow_ignores_pause_as_told():
    """Ask the scheduler's own rule whether a task that is no sensor has to wait until its date."""
    from airflow.ti_deps.dep_context import DepContext
    from airflow.ti_deps.deps.ready_to_reschedule import ReadyToRescheduleDep

    task = SimpleNamespace(id="i", state="up_for_reschedule", map_index=-1, task=SimpleNamespace())
    session = SimpleNamespace(scalar=lambda _: datetime.now(tz=UTC) + timedelta(minutes=1))
    statuses = ReadyToRescheduleDep().get_dep_statuses(task, dep_context=DepContext(), session=session)
    assert all(status.passed for status in statuses) is compat.IGNORES_PAUSE
