"""Steps of the ledger's schema: an older ledger is brought forward, and a newer one is not touched."""

import secrets
from functools import partial

import pytest

from tagmill.cassandra.client import Cassandra
from tagmill.errors import LedgerNewer
from tagmill.ledger import schema
from tagmill.ledger.runs import Ledger
from tagmill.ledger.schema_steps import SchemaSteps, known_steps
from tagmill.views.migrate import migrate
from tagmill.views.migration_plan import Plan
from tagmill.views.persistence_ids import rebuild_ids
from tagmill.views.rebuild import rebuild
from tagmill.views.selection import Selection
from tests.support.delivery import OWNER, tagmill
from tests.support.errors import raises

NEWEST = known_steps()[-1].number
# Commands that write, by what they need; those on topics and Kafka Journals end before they ask Kafka.
COMMANDS = (
    "schema apply",
    "run deliver -p {views}",
    "run deliver -p {topic}",
    "run abandon -p {views} --why w --yes",
    "run give-up -p {topic} --why w --yes",
    "holds close -p {views} --tag a --persistence-id p --why w --yes",
    "views rebucket -p {views} --to Minute --yes",
    "cleanup -p {views} --yes",
    "journal clean -p {views} --persistence-id p --to 1 --yes",
    "erase -p {views} --persistence-id p --why w --yes",
    "check -p {views}",
    "dedup expire -p {topic} --yes",
    "deadletters replay -p {topic}",
    "ledger restore -p {views} --why w --yes",
)


@pytest.fixture
def configured(settings, place, stack):
    """Yield Settings with a ledger of this test's own, which has no keyspace yet."""
    name = f"l_{secrets.token_hex(4)}"
    yield settings(
        place,
        tags=["a"],
        bucket_size="Hour",
        first_time_bucket="2026-01-01",
        cleanup={"enabled": True},
        sections={"cassandra": {"ledger_keyspace": name}},
    )
    stack.session.execute(f"DROP KEYSPACE IF EXISTS {name}")


def of_ledger(lines, keyspace):
    return [line for line in lines if f"ledger {keyspace}" in line]


def test_older_ledger_is_brought_forward_by_steps(configured, stack):
    """A ledger without recorded steps keeps its rows and gets what it lacks; all steps are recorded then."""
    keyspace = configured.cassandra.ledger_keyspace
    values = {"ledger": keyspace, "replication": "{'class': 'SimpleStrategy', 'replication_factor': 1}"}
    for step in known_steps():
        if step.number <= 18:
            for statement in schema.statements_of(step.file, values):
                stack.session.execute(statement)
    stack.session.execute(f"INSERT INTO {keyspace}.pipelines (pipeline, last_run) VALUES ('p', 7)")

    lines = of_ledger(schema.apply(configured), keyspace)
    assert lines[:5] == [
        f"step 19 of ledger {keyspace}, with the new table attempts",
        f"step 20 of ledger {keyspace}, with the new table view_waiting",
        f"step 21 of ledger {keyspace}, with the new table schema_steps",
        f"step 22 of ledger {keyspace}, with the new table audit_tags",
        f"step 23 of ledger {keyspace}, with the new table lives",
    ]
    assert lines[5:] == [f"steps 1 to 18 of ledger {keyspace}, which had their tables"]
    with Cassandra(configured.cassandra) as cassandra:
        assert SchemaSteps(cassandra, keyspace).applied() == {step.number for step in known_steps()}
        assert Ledger(configured.cassandra, cassandra).last_run("p") == 7
    assert of_ledger(schema.apply(configured), keyspace) == []

    stack.session.execute(f"DROP TABLE {keyspace}.attempts")
    schema.apply(configured)
    with Cassandra(configured.cassandra) as cassandra:
        assert "attempts" in cassandra.tables(keyspace)


def test_newer_ledger_is_refused_by_writers(configured, settings, stack):
    """Commands that write end with one line that names both versions, and leave the ledger as it is."""
    keyspace = configured.cassandra.ledger_keyspace
    schema.apply(configured)
    stack.session.execute(
        f"INSERT INTO {keyspace}.schema_steps (ledger, step, program) VALUES ('ledger', {NEWEST + 1}, '9.1.0')"
    )
    (views,) = configured.pipelines
    file = settings.file(views)
    file.write_text(
        file.read_text()
        + '[kafka]\nbootstrap_servers = ["127.0.0.1:1"]\n[pipelines.t]\nkind = "topic"\ntopics = ["t"]\n'
        'format = "json"\ndestination = "t"\n'
    )
    refused = f"has schema step {NEWEST + 1}, applied by Tagmill 9.1.0"
    wrong = {}
    for command in COMMANDS:
        code, out, err = tagmill(file, *command.format(views=views, topic="t").split())
        if (code, refused in err, err.count("\n")) != (2, True, 1):
            wrong[command] = (code, out, err)
    assert wrong == {}
    plan = Plan.of([], [], offline=False, drop_old=False, snapshot_keyspace=None, dry_run=False)
    operations = (
        partial(migrate, plan=plan, owner=OWNER),
        partial(rebuild, selection=Selection(), owner=OWNER),
        rebuild_ids,
    )
    for operation in operations:
        with raises(LedgerNewer, pipeline=views):
            operation(configured, views, spark=None, dry_run=False)
    for table in ("leases", "pipelines", "runs", "audits", "erasures", "attempts"):
        assert not list(stack.session.execute(f"SELECT * FROM {keyspace}.{table}")), table
