"""What the operation `journal clean` asks of the library, and how Airflow learns of refusals."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

pytest.importorskip("airflow")

from tagmill.airflow import journal_clean
from tagmill.airflow.compat import AirflowFailException, ParamValidationError
from tagmill.config.settings import AirflowSettings
from tests.dags.test_integrity import bag

REPORT = {
    "pipeline": "orders", "dry_run": True, "persistence_ids": 3, "events": 20, "view_rows": 0, "snapshots": 1, "refused": 0, "unknown": 1,
    "refusals": [], "unknown_ids": ["nobody"], "warnings": [], "message": "pipeline orders: …",
}  # fmt: skip
REFUSAL = {
    "persistence_id": "p",
    "tag": "t",
    "reason": "held",
    "text": "persistence id 'p', tag 't': …; --force-undelivered …",
}


class Run:
    """Part of a DagRun that a step reads."""

    dag_id, run_id, run_type = "d", "r", "manual"


@pytest.fixture
def dag(config):
    loaded = bag()
    assert loaded.import_errors == {}
    return loaded.dags["maintenance_orders"]


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Patch the library's clean and return what it was asked for. It answers with `asked["answer"]`."""
    from tagmill.maintenance.journal_cleanup import clean as module

    found = {"answer": REPORT}

    def clean(settings, pipeline, persistence_ids, wanted, *, owner, delete, tell):
        found.update(pipeline=pipeline, ids=list(persistence_ids), wanted=wanted, owner=owner, delete=delete)
        return found["answer"]

    monkeypatch.setattr(module, "clean", clean)
    section = SimpleNamespace(airflow=AirflowSettings(input_dir=tmp_path))
    monkeypatch.setattr(journal_clean.connections, "load_settings", lambda: section)
    return found


def chosen(dag, **params):
    """Return the context of a run with these params."""
    dag.params.update(params)
    return dag.params.validate(), {"dag_run": Run()}


def test_journal_clean_is_unscheduled_dry_run_by_default(dag, asked):
    """Journal cleanups are started by hand only and are dry runs by default."""
    assert dag.schedule is None
    done = journal_clean.clean("orders", *chosen(dag, to=5, persistence_ids=["p"]))
    assert asked["delete"] is False and asked["ids"] == ["p"] and asked["owner"] == "airflow/d/r"
    assert done == {**REPORT, "refusals": 0, "unknown_ids": 1, "warnings": 0}


def test_journal_clean_passes_params_to_library(dag, asked, tmp_path):
    """Params and the ids of the file, odd characters included, reach the library."""
    file = tmp_path / "ids"
    file.write_text('p-2\n\nit\'s "odd" \n')
    params = {
        "persistence_ids": ["p-1"],
        "persistence_ids_file": str(file),
        "delete": "before_snapshot",
        "keep": 2,
        "keep_newer_than": "2026-03-01T00:00:00Z",
        "views": True,
        "force_unread": True,
        "dry_run": False,
    }
    journal_clean.clean("orders", *chosen(dag, **params))
    wanted = asked["wanted"]
    assert asked["delete"] is True and asked["ids"] == ["p-1", "p-2", 'it\'s "odd" ']
    assert (wanted.what.value, wanted.to, wanted.keep, wanted.views, wanted.never_again) == (
        "before_snapshot",
        None,
        2,
        True,
        False,
    )
    assert (
        wanted.keep_newer_than == datetime(2026, 3, 1, tzinfo=UTC)
        and wanted.force_unread
        and not wanted.force_undelivered
    )


@pytest.mark.parametrize(
    "params",
    [
        {"delete": "everything"},
        {"to": 0},
        {"keep": 0},
        {"persistence_ids": "p"},
        {"persistence_ids": [""]},
        {"keep_newer_than": "2026-03-01"},
        {"dry_run": "no"},
    ],
)
def test_wrong_params_are_refused_before_a_run_exists(dag, params):
    with pytest.raises(ParamValidationError):
        chosen(dag, **params)


def test_journal_clean_contradicting_params_fail(dag, asked):
    """Contradicting params fail before the library is asked."""
    with pytest.raises(AirflowFailException, match="never-again is for deleting all"):
        journal_clean.clean("orders", *chosen(dag, to=5, never_again=True, persistence_ids=["p"]))
    assert "ids" not in asked


def test_journal_clean_refused_id_fails_task(dag, asked):
    """Refused persistence_ids fail the task for good, with the first refusal in the message."""
    asked["answer"] = {**REPORT, "refused": 1, "refusals": [REFUSAL]}
    with pytest.raises(
        AirflowFailException, match="The first refused: persistence id 'p'.*--force-undelivered"
    ):
        journal_clean.clean("orders", *chosen(dag, to=5, persistence_ids=["p"]))
