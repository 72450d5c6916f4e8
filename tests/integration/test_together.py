"""Several pipelines in one Spark session: each arrives whole, and one that fails leaves the others alone."""

import json
from datetime import timedelta
from unittest.mock import patch
from uuid import uuid4

import pytest

from local.fixtures import WITHOUT_VIEWS
from tagmill.config.settings import Settings
from tagmill.delivery.tag_views import steps
from tagmill.delivery.together import deliver_together, exit_code, plan_together
from tagmill.delivery.topics import destination_table
from tagmill.errors import StoreUnavailable
from tagmill.ledger import schema
from tests.conftest import toml_value
from tests.support.building import recorded
from tests.support.delivery import OWNER, Unstoppable, as_row, clickhouse_rows, tagmill
from tests.support.events import events, this_hour
from tests.support.kafka import Topic, create

BEGIN = this_hour() - timedelta(hours=2)
CASE = "odd-names"


@pytest.fixture
def shop(stack, kafka, journal, keyspace, settings, spark, tmp_path):
    """Return (configuration, names by role): a view of the application's own, one that Tagmill builds, a topic, and
    a pipeline whose destination is another program's table.
    """
    own, topic = journal(), f"s_{uuid4().hex[:10]}"
    own.view(events("a", range(1, 4), BEGIN, "t"))
    built = settings(keyspace(CASE, WITHOUT_VIEWS), case=CASE, views="tagmill")
    (built_name,) = built.pipelines
    create(kafka.port, topic, 1)
    records = Topic(kafka.port, topic)
    for product in range(5):
        event = {"project": "p", "event_type": "created", "product_id": product}
        records.send(str(product), json.dumps(event).encode(), partition=0)
    records.flush()
    names = {
        "broken": f"broken_{uuid4().hex[:8]}",
        "own": f"own_{uuid4().hex[:8]}",
        "built": built_name,
        "topic": topic,
    }
    views = {
        "keyspace": own.keyspace,
        "tags": ["t"],
        "bucket_size": "Hour",
        "first_time_bucket": BEGIN.isoformat(),
    }
    more = {
        names["broken"]: {**views, "destination": names["broken"]},
        names["own"]: {**views, "destination": names["own"]},
        topic: {
            "kind": "topic",
            "topics": [topic],
            "format": "json",
            "destination": topic,
            "batch_min_rows": 1,
        },
    }
    lines = ["[kafka]", f'bootstrap_servers = ["127.0.0.1:{kafka.port}"]']
    for name, keys in more.items():
        lines += [f"[pipelines.{name}]", *(f"{key} = {toml_value(value)}" for key, value in keys.items())]
    file = tmp_path / "shop.toml"
    file.write_text(settings.file(built_name).read_text() + "\n".join(lines) + "\n")
    configured = Settings.load(file)
    schema.apply(configured)
    destination_table.apply(configured)
    stack.rows(f"DROP TABLE {names['broken']}")
    stack.rows(f"CREATE TABLE {names['broken']} (a Int64) ENGINE = MergeTree ORDER BY a")
    return file, configured, names


def products(stack, name):
    return [
        json.loads(payload)["product_id"]
        for (payload,) in stack.rows(f"SELECT payload FROM {name} ORDER BY offset")
    ]


def test_deliver_all_one_failure_leaves_others(shop, stack, spark, monkeypatch):
    """`run deliver --all` delivers three pipelines of different kinds, says why the fourth failed, and the second
    time finds nothing to do.
    """
    file, configured, names = shop
    monkeypatch.setattr("tagmill.spark.session.session", lambda *_, **__: Unstoppable(spark))
    code, out, err = tagmill(file, "run", "deliver", "--all", "--json")
    assert out, err
    lines = {line["pipeline"]: line for line in json.loads(out)}
    failed = lines.pop(names["broken"])
    assert code == failed["exit_code"] == 2 and names["broken"] in failed["error"], failed
    assert {name: (line["rows"], line["error"]) for name, line in lines.items()} == {
        names["own"]: (3, None),
        names["built"]: (len(recorded(CASE, "tag_views")), None),
        names["topic"]: (5, None),
    }
    assert clickhouse_rows(configured, names["built"]) == sorted(map(as_row, recorded(CASE, "tag_views")))
    assert products(stack, names["topic"]) == [*range(5)]
    code, out, _ = tagmill(file, "run", "deliver", "--all")
    assert code == 2 and out.count("nothing to do") == 3, out


def test_deliver_together_passing_failure_is_tried_again(shop, stack, spark):
    """A pipeline whose first plan finds a store away is delivered behind the others."""
    _, settings, names = shop
    plan, refused = steps.plan, [names["own"]]

    def away(settings, pipeline, **options):
        if pipeline in refused:
            refused.remove(pipeline)
            raise StoreUnavailable("Cassandra did not answer")
        return plan(settings, pipeline, **options)

    wanted = [names["own"], names["topic"]]
    with patch.object(steps, "plan", away):
        outcomes = deliver_together(settings, wanted, owner=OWNER, spark=lambda: spark, tell=lambda _: None)
    assert [(outcome.pipeline, outcome.rows, outcome.error) for outcome in outcomes] == [
        (names["own"], 3, None),
        (names["topic"], 5, None),
    ]
    assert exit_code(outcomes) == 0


def test_plan_together_then_deliver_by_same_owner(shop, spark):
    """A plan tells who has something to do; the delivery that follows goes on with the planned runs. With nothing
    new, no session is asked for.
    """
    _, settings, names = shop
    wanted = [names["own"], names["topic"], names["broken"]]
    planned = plan_together(settings, wanted, owner=OWNER)
    assert planned[names["own"]] is None and planned[names["topic"]] is None
    assert planned[names["broken"]].exit_code == 2
    outcomes = deliver_together(settings, wanted[:2], owner=OWNER, spark=lambda: spark, tell=lambda _: None)
    assert [(outcome.runs, outcome.run) for outcome in outcomes] == [(1, 1), (1, 1)]
    assert [outcome.runs for outcome in plan_together(settings, wanted[:2], owner=OWNER).values()] == [0, 0]
    idle = deliver_together(settings, wanted[:2], owner=OWNER, spark=lambda: pytest.fail("Spark"), tell=print)
    assert [outcome.message.partition(": ")[2] for outcome in idle] == ["nothing to do"] * 2
