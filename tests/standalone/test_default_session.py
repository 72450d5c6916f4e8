"""Each job in Spark's own configuration, as users run it: adaptive execution and code generation on.

bin/run (test_run.py) builds views and delivers views and a topic in that configuration, too.
"""

import json

import pytest

from local.fixtures import WITHOUT_VIEWS
from tagmill.kafka_journal.replicate import replicate
from tagmill.ledger import schema
from tagmill.views.rebuild import rebuild
from tagmill.views.selection import Selection
from tests.conftest import SettingsFactory
from tests.support.auditing import audited
from tests.support.building import VIEWS, built, recorded, rows
from tests.support.delivery import OWNER, as_row, clickhouse_rows, deliver, only
from tests.support.rebucketing import in_buckets, rebucketed, same_rows
from tests.support.topics import made

# No settings of Spark, in place of those that other tests set for few rows.
CONF: dict[str, str] = {}


@pytest.fixture(scope="module")
def session(stack, tmp_path_factory):
    """Start a session without the options that other tests set for few rows."""
    from tagmill.spark.session import session

    folder = tmp_path_factory.mktemp("default")
    configured = SettingsFactory(stack, folder)(
        "none",
        tags=["t"],
        bucket_size="Hour",
        first_time_bucket="2026-01-01",
        sections={"spark": {"conf": CONF}},
    )
    running = session(configured, name="tagmill-default-session")
    assert running.conf.get("spark.sql.adaptive.enabled") == "true"
    assert running.conf.get("spark.sql.codegen.wholeStage") == "true"
    yield running
    running.stop()


@pytest.mark.long
def test_view_jobs_in_default_session(stack, keyspace, settings, session):
    """Build, deliver, audit, rebuild and rebucket a journal of the plugin: rows equal those that it wrote."""
    case = "odd-names"
    journal = keyspace(case, WITHOUT_VIEWS)
    configured = settings(journal, case=case, views="tagmill", small_run_rows=0)
    name, expected = only(configured), recorded(case, "tag_views")
    built(configured, session)
    for table in VIEWS:
        assert rows(stack, journal, table) == recorded(case, table), table

    assert sum(run["rows"] for run in deliver(configured, name, session)) == len(expected)
    assert clickhouse_rows(configured, name) == sorted(map(as_row, expected))
    report = audited(configured, session)
    assert (report.findings, report.view, report.clickhouse) == ({}, len(expected), len(expected))

    stack.session.execute(f"TRUNCATE {journal}.tag_views")
    rebuild(configured, name, Selection(), owner=OWNER, spark=session)
    assert rows(stack, journal, "tag_views") == expected

    rebucketed(configured, session, "Day")
    same_rows(stack, journal, "tag_views_day", in_buckets(expected, "Day"))


@pytest.fixture
def shop(stack, kafka, session, tmp_path):
    """Yield shop(), which makes a topic and its pipeline in the default session."""
    yield from made(stack, kafka, session, tmp_path)


@pytest.mark.long
def test_topic_jobs_in_default_session(shop):
    """Deliver a topic, some events of it twice: each arrives once, in Kafka's order."""
    topic = shop(small_run_rows=0)
    for product in (*range(200), *range(50)):
        topic.send(product)
    topic.deliver()
    assert topic.products() == list(range(200))


def test_replication_in_default_session(kafka_journal, session):
    """Replicate appends and a deletion of a Kafka Journal: the rows that remain are there."""
    journal = kafka_journal()
    topic = journal.topic()
    for number in range(1, 41):
        topic.append("cart", [(number, {"n": number})])
    topic.delete("cart", 10)
    topic.flush()
    configured = journal.settings(CONF)
    schema.apply(configured)
    replicate(configured, journal.name, owner=OWNER, spark=lambda: session)
    assert [json.loads(row["payload_txt"])["n"] for row in journal.rows()] == list(range(11, 41))
