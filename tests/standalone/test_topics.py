"""A plain topic in a real Airflow: a backlog is delivered run by run, each event once; without new records no
Spark starts.
"""

import json

import pytest

from tests.support.kafka import Topic

DAG = "deliver_products"


@pytest.mark.long
def test_a_topic_is_delivered_by_its_dag(airflow, stack, kafka):
    topic = Topic(kafka.port, "products")
    for product in (1, 2, 2, 3, 4):
        topic.send("k", json.dumps({"project": "p", "event_type": "e", "product_id": product}).encode())
    topic.send("k", b"{no json")
    topic.flush()
    runs = airflow.first_run(DAG)
    assert list(runs.values()) == ["success"] * 2, {run: airflow.errors(DAG, run) for run in runs}
    found = stack.rows("SELECT payload FROM products")
    assert sorted(json.loads(payload)["product_id"] for (payload,) in found) == [1, 2, 3, 4]
    with airflow.lookout() as seen:
        idle = airflow.api.trigger(DAG)
        airflow.succeed(DAG, idle)
    assert set(airflow.tasks(DAG, idle).values()) == {"skipped"} and not seen.jvms
    shown = airflow.page("/tagmill/", login=True)[1]
    assert "products → default.products" in shown and "dead letters" in shown
    assert "carts → keyspace carts_by_airflow" in shown
