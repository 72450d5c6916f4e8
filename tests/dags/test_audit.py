"""When a scheduled audit that missed its moment is skipped."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

pytest.importorskip("airflow")

from tagmill.airflow import steps
from tagmill.airflow.compat import AirflowSkipException
from tagmill.airflow.operators import AuditOperator, JobOperator
from tagmill.ledger import audits, runs

DUE = datetime(2026, 11, 21, tzinfo=UTC)


class Ledger:
    """Ledger without a server, of which only the connection is used."""

    cassandra = None

    def __init__(self, _settings):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.fixture
def audited(monkeypatch):
    """Return audited(run_type, late, waiting, newest): whether the operator starts the job of an audit."""

    def audited(run_type, late, waiting, newest):
        asked = SimpleNamespace(last_done_of=lambda _: dict.fromkeys(newest.tags, newest) if newest else {})
        settings = SimpleNamespace(
            cassandra=SimpleNamespace(ledger_keyspace="ledger"),
            pipeline=lambda _: SimpleNamespace(tags=["order", "bill"]),
        )
        monkeypatch.setattr(audits, "Audits", lambda *_: asked)
        monkeypatch.setattr(runs, "Ledger", Ledger)
        monkeypatch.setattr(steps.connections, "load_settings", lambda: settings)
        monkeypatch.setattr(JobOperator, "execute", lambda *_: {"message": "audited"})
        operator = AuditOperator(task_id="audit", pipeline="orders", application="audit.py")
        run = SimpleNamespace(
            run_type=run_type, dag_id="audit_orders", run_id="r", run_after=DUE, start_date=DUE + late
        )
        task = SimpleNamespace(get_dr_count=lambda dag_id, states: 1 + waiting)
        params = {"tags": ["order"], "full": False, "repair": False}
        try:
            return operator.execute({"dag_run": run, "ti": task, "params": params}) == {"message": "audited"}
        except AirflowSkipException:
            return False

    return audited


def begun(late, *tags):
    """Return an audit that is the newest one of these tags."""
    return SimpleNamespace(audit=3, started_at=DUE + late, tags=tags)


HOUR, NOW = timedelta(hours=1), timedelta(seconds=10)


@pytest.mark.parametrize(
    ("run_type", "late", "waiting", "newest", "starts"),
    [
        pytest.param("scheduled", NOW, 1, begun(HOUR, "order", "bill"), True, id="on time"),
        pytest.param("scheduled", 9 * HOUR, 0, None, True, id="missed, none since"),
        pytest.param("scheduled", 9 * HOUR, 0, begun(-HOUR, "order", "bill"), True, id="missed, one before"),
        pytest.param("scheduled", 9 * HOUR, 0, begun(HOUR, "order", "bill"), False, id="missed, one since"),
        pytest.param("scheduled", 9 * HOUR, 0, begun(HOUR, "order"), True, id="missed, one of a tag since"),
        pytest.param("scheduled", 9 * HOUR, 1, None, False, id="missed, a person's waits"),
        pytest.param("manual", 9 * HOUR, 1, begun(HOUR, "order", "bill"), True, id="by hand"),
    ],
)
def test_missed_audit_is_skipped_for_newer_one(audited, run_type, late, waiting, newest, starts):
    assert audited(run_type, late, waiting, newest) is starts
