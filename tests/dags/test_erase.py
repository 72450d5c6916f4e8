"""What the operation `erase` asks of the library."""

from types import SimpleNamespace

import pytest

pytest.importorskip("airflow")

from tagmill.airflow import erase
from tagmill.airflow.compat import ParamValidationError
from tagmill.config.settings import AirflowSettings
from tests.dags.test_integrity import bag

REPORT = {
    "pipeline": "orders", "journal": "shop", "dry_run": True, "persistence_ids": 2, "unknown": 0, "unknown_ids": [], "erased_before": 0,
    "erasures": [], "counts": {"events": 3}, "warnings": [], "message": "journal shop, …",
}  # fmt: skip


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
    """Patch the library's erase and return what it was asked for."""
    from tagmill.maintenance.erasure import erase as module

    found = {}

    def library(settings, pipeline, persistence_ids, *, owner, who, why, delete, tell):
        found.update(
            pipeline=pipeline, ids=list(persistence_ids), owner=owner, who=who, why=why, delete=delete
        )
        return REPORT

    monkeypatch.setattr(module, "erase", library)
    section = SimpleNamespace(airflow=AirflowSettings(input_dir=tmp_path))
    monkeypatch.setattr(erase.connections, "load_settings", lambda: section)
    return found


def chosen(dag, **params):
    """Return the context of a run with these params."""
    dag.params.update(params)
    return dag.params.validate(), {"dag_run": Run()}


def test_erase_is_unscheduled_dry_run_by_default(dag, asked):
    """Erasures are started by hand only; with default params they are dry runs without ids."""
    assert dag.schedule is None
    done = erase.erase("orders", *chosen(dag, operation="erase"))
    assert asked["delete"] is False and asked["ids"] == [] and asked["owner"] == "airflow/d/r"
    assert (done["persistence_ids"], done["erasures"], "counts" in done) == (2, 0, False)


def test_erase_passes_params_to_library(dag, asked, tmp_path):
    """Params and the ids of the file reach the library."""
    file = tmp_path / "ids"
    file.write_text("p-2\n\np-3\n")
    params = {"persistence_ids": ["p-1"], "persistence_ids_file": str(file), "dry_run": False}
    erase.erase("orders", *chosen(dag, **params, why="asked for"))
    assert asked["delete"] is True and asked["ids"] == ["p-1", "p-2", "p-3"]
    assert (asked["who"], asked["why"]) == ("DAG run r", "asked for")


@pytest.mark.parametrize(
    "params", [{"persistence_ids": "p"}, {"persistence_ids": [""]}, {"dry_run": "no"}, {"why": 5}]
)
def test_wrong_params_are_refused_before_a_run_exists(dag, params):
    with pytest.raises(ParamValidationError):
        chosen(dag, **params)
