"""What a person may ask of `erase_<pipeline>`, and what the library is asked for then."""

from types import SimpleNamespace

import pytest

pytest.importorskip("airflow")

from airflow.sdk.exceptions import AirflowFailException, ParamValidationError

from tagmill.airflow import erase
from tagmill.settings import AirflowSettings
from tests.dags.test_integrity import bag

REPORT = {
    "pipeline": "orders", "journal": "shop", "dry_run": True, "persistence_ids": 2, "unknown": 0, "unknown_ids": [], "erased_before": 0,
    "erasures": [], "counts": {"events": 3}, "warnings": [], "message": "journal shop, …",
}  # fmt: skip


class Run:
    """As much of a DagRun as a step looks at."""

    dag_id, run_id, run_type = "d", "r", "manual"


@pytest.fixture
def dag(config):
    loaded = bag()
    assert loaded.import_errors == {}
    return loaded.dags["erase_orders"]


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """What the library was asked for."""
    from tagmill.erasure import erase as module

    found = {}

    def library(settings, pipeline, persistence_ids, *, owner, who, why, delete, tell):
        found.update(pipeline=pipeline, ids=list(persistence_ids), owner=owner, who=who, why=why, delete=delete)
        return REPORT

    monkeypatch.setattr(module, "erase", library)
    section = SimpleNamespace(airflow=AirflowSettings(input_dir=tmp_path))
    monkeypatch.setattr(erase.connections, "load_settings", lambda: section)
    return found


def chosen(dag, **params):
    """The context of a run with these params."""
    dag.params.update(params)
    return {"dag_run": Run(), "params": dag.params.validate()}


def test_nothing_but_a_person_starts_it_and_then_it_is_a_dry_run_with_no_ids(dag, asked):
    assert dag.schedule is None
    done = erase.erase("orders", chosen(dag))
    assert asked["delete"] is False and asked["ids"] == [] and asked["owner"] == "airflow/d/r"
    assert (done["persistence_ids"], done["erasures"], "counts" in done) == (2, 0, False)


def test_the_params_are_what_the_library_is_asked_for_and_a_reason_is_needed(dag, asked, tmp_path):
    file = tmp_path / "ids"
    file.write_text("p-2\n\np-3\n")
    params = {"persistence_ids": ["p-1"], "persistence_ids_file": str(file), "dry_run": False}
    with pytest.raises(AirflowFailException, match="param why is empty"):
        erase.erase("orders", chosen(dag, **params, why=" "))
    assert asked == {}
    erase.erase("orders", chosen(dag, **params, why="asked for"))
    assert asked["delete"] is True and asked["ids"] == ["p-1", "p-2", "p-3"]
    assert (asked["who"], asked["why"]) == ("DAG run r", "asked for")


@pytest.mark.parametrize("params", [{"persistence_ids": "p"}, {"persistence_ids": [""]}, {"dry_run": "no"}, {"why": 5}])
def test_wrong_params_are_refused_before_a_run_exists(dag, params):
    with pytest.raises(ParamValidationError):
        chosen(dag, **params)
