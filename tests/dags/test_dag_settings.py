"""Keys of [airflow] and [pipelines.NAME.airflow]: owner, tags, pools, limits, callbacks and a function for the rest."""

from datetime import timedelta

import pytest

pytest.importorskip("airflow")

from tests.dags.test_integrity import bag

CONTENT = """
[airflow]
owner = "data"
tags = ["tier-1"]
retries = 2
retry_delay_seconds = 5
spark_pool = "default_pool"
on_failure = ["our_alerts:tell"]
customize = "our_dags:customize"
[pipelines.orders.airflow]
owner = "orders-team"
queue = "large"
clickhouse_pool = "default_pool"
execution_timeout_seconds = 3600
"""
MODULES = {
    "our_alerts": "def tell(context):\n    pass\n",
    "our_dags": "def customize(dag):\n    dag.description = f'{dag.dag_id}, by us'\n",
}


@pytest.fixture
def configured(config, tmp_path, monkeypatch):
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    config.write_text(config.read_text() + CONTENT)
    return config


def test_dags_follow_the_airflow_sections(configured):
    """Keys of a pipeline count for its DAGs, those of [airflow] for the rest; a question is asked once."""
    loaded = bag()
    assert loaded.import_errors == {}
    orders, products = loaded.dags["deliver_orders"], loaded.dags["deliver_products"]
    assert orders.tags == {"deliver", "orders", "tier-1"} and orders.description == "deliver_orders, by us"
    seen = {
        name: (dag.task_dict["push"].owner, dag.task_dict["push"].queue, dag.task_dict["push"].pool)
        for name, dag in (("orders", orders), ("products", products))
    }
    assert seen == {
        "orders": ("orders-team", "large", "default_pool"),
        "products": ("data", "default", "clickhouse"),
    }
    assert [dag.task_dict["seal"].execution_timeout for dag in (orders, products)] == [
        timedelta(hours=1),
        timedelta(hours=6),
    ]
    for dag in loaded.dags.values():
        for task in dag.tasks:
            assert task.pool != "spark" and task.on_failure_callback, task.task_id
            assert (task.retries, task.retry_delay) == (2, timedelta(seconds=5)) or task.task_id == "approve"
    assert loaded.dags["maintenance_orders"].task_dict["approve"].retries == 0


@pytest.mark.parametrize(
    ("key", "path", "said"),
    [
        ("customize", "our_dags:nobody", "airflow.customize: our_dags:nobody can't be imported"),
        ("on_failure", "nowhere:tell", "airflow.on_failure: nowhere:tell can't be imported"),
    ],
    ids=["name", "module"],
)
def test_import_path_to_nothing_is_named(configured, key, path, said):
    old = {"customize": "our_dags:customize", "on_failure": "our_alerts:tell"}[key]
    configured.write_text(configured.read_text().replace(old, path))
    errors = bag().import_errors
    assert errors and all(said in error for error in errors.values())
