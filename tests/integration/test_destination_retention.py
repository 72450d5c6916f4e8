"""Destinations that drop old rows by a TTL or by partition.

Once declared, that is not a difference, and rows within the retention are proven.
"""

import json
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import pytest

from tagmill.audit.repair import audit_and_repair
from tagmill.delivery.tag_views import steps
from tagmill.domain.batches.states import RunState
from tagmill.errors import DestinationDiffers
from tagmill.ledger import schema
from tagmill.ledger.runs import Ledger
from tagmill.maintenance.view_cleanup.retention import Retention
from tagmill.runs import checkpoints
from tagmill.runs.workspace import open_workspace
from tests.support.delivery import (
    OWNER,
    as_row,
    clickhouse_rows,
    deliver,
    only,
    tagmill,
    verdicts,
)
from tests.support.events import event
from tests.support.topics import made

NOW = datetime.now(UTC).replace(microsecond=0)
DAYS = 30
# Ages of the events in days: past the retention, around its end, and within it.
AGES = (75, 74, 45, 31.5, 30.5, 29.5, 28, 3, 2, 0.5)


class Crashed(BaseException):
    """A crash that no handler catches."""


class Dropping:
    """A delivery of old and new events whose destination loses the old ones."""

    def __init__(self, stack, spark, settings, written):
        self.stack, self.spark, self.factory, self.keyspace = stack, spark, settings, written.keyspace
        self.records = [
            event(pid, number, NOW - timedelta(days=age))
            for pid in "ab"
            for number, age in enumerate(AGES, 1)
        ]
        written.both(self.records)
        first = (NOW - timedelta(days=80)).strftime("%Y%m%dT%H:%M")
        self.keys = {"tags": ["t"], "bucket_size": "Hour", "first_time_bucket": first}
        self.settings = settings(written.keyspace, **self.keys)
        self.name = only(self.settings)
        self.lines = schema.apply(self.settings)

    def declare(self, days):
        """Declare the retention in the configuration."""
        self.settings = self.factory(
            self.keyspace, name=self.name, destination_retention_days=days, **self.keys
        )

    def sql(self, statement):
        client = self.stack.client(settings={"mutations_sync": 2})
        client.command(statement.format(t=self.name))
        client.close()

    def ttl(self):
        self.sql(f"ALTER TABLE {{t}} MODIFY TTL toDateTime(event_time) + INTERVAL {DAYS} DAY")

    def said(self, *arguments):
        code, out, error = tagmill(self.factory.file(self.name), *arguments)
        return code, " ".join((out + error).split())

    def audited(self):
        options = {"spark": self.spark, "owner": OWNER, "who": "tester", "why": "a test"}
        return audit_and_repair(self.settings, self.name, **options)

    def is_whole_within_retention(self):
        """Check that ClickHouse has the source's rows within the retention once each, and only rows of the
        source.
        """
        limit = (NOW - timedelta(days=DAYS)).timestamp() * 10_000_000
        rows, source = clickhouse_rows(self.settings, self.name), sorted(map(as_row, self.records))
        assert [row for row in rows if row.event_time >= limit] == [
            row for row in source if row.event_time >= limit
        ]
        assert set(rows) <= set(source) and len(set(rows)) == len(rows)
        assert verdicts(self.settings, self.name) == {"t": "exactly once"}
        code, text = self.said("status", "--json")
        (line,) = json.loads(text)
        assert code == 0 and line["delivered"] == len(source) and line["expired"] == len(source) - len(rows)
        report = self.audited()
        assert report.agrees and not report.repairs


@pytest.fixture
def dropping(stack, spark, journal, settings):
    return Dropping(stack, spark, settings, journal())


def test_ttl_is_said_before_anything_is_read(dropping):
    """Name a TTL that is undeclared or shorter than declared, and the key, in `schema apply`, `status`,
    `check` and the plan.
    """
    dropping.ttl()
    assert any(
        "no destination_retention_days is declared" in line for line in schema.apply(dropping.settings)
    )
    for command in ("status", "check"):
        code, text = dropping.said(command, "--json")
        assert code == 3 and "no destination_retention_days is declared" in text
    with pytest.raises(DestinationDiffers, match=r"TTL toDateTime\(event_time\).*destination_retention_days"):
        steps.plan(dropping.settings, dropping.name, owner=OWNER)
    dropping.declare(90)
    with pytest.raises(
        DestinationDiffers, match="removes rows after 30 days, and destination_retention_days is 90"
    ):
        steps.plan(dropping.settings, dropping.name, owner=OWNER)
    with Ledger(dropping.settings.cassandra) as ledger:
        assert ledger.last_run(dropping.name) == 0


def test_delivery_under_a_ttl_is_whole(dropping):
    """Deliver while a TTL removes rows, also between a killed push and its retry; nothing is sent again
    because of it.
    """
    dropping.ttl()
    dropping.declare(DAYS)

    def reached(name):
        if name == "push.after_insert":
            raise Crashed

    planned = steps.plan(dropping.settings, dropping.name, owner=OWNER)
    steps.seal(
        dropping.settings,
        dropping.name,
        planned["run"],
        planned["fence"],
        owner=OWNER,
        spark=lambda: dropping.spark,
    )
    with patch.object(checkpoints, "reached", reached), pytest.raises(Crashed):
        steps.push(dropping.settings, dropping.name, planned["run"], planned["fence"], owner=OWNER)
    dropping.sql("OPTIMIZE TABLE {t} FINAL")
    deliver(dropping.settings, dropping.name, dropping.spark)
    dropping.sql("OPTIMIZE TABLE {t} FINAL")
    assert len(clickhouse_rows(dropping.settings, dropping.name)) < len(dropping.records)
    dropping.is_whole_within_retention()


def test_dropped_partitions_are_expired_once_declared(dropping, stack):
    """Report dropped partitions until the retention is declared, then count them as expired, also without
    sealed files.

    Another loss is still reported.
    """
    deliver(dropping.settings, dropping.name, dropping.spark)
    for age in (75, 74):
        month = (NOW - timedelta(days=age)).strftime("%Y%m")
        dropping.sql(f"ALTER TABLE {{t}} DROP PARTITION {month}")
    code, text = dropping.said("check", "--json")
    assert code == 3 and "declare destination_retention_days" in text
    dropping.declare(DAYS)
    dropping.is_whole_within_retention()
    with open_workspace(dropping.settings, dropping.name) as workspace:
        workspace.ledger.claim(dropping.name, 2)
        workspace.ledger.create_run(
            dropping.name,
            2,
            kind="intervention",
            state=RunState.CLOSED,
            owner=OWNER,
            reason="so that run 1 may go",
        )
        removed = Retention(workspace, datetime.now(UTC) + timedelta(days=31)).run(delete=True)
    assert removed.runs == 1
    dropping.is_whole_within_retention()
    dropping.sql("ALTER TABLE {t} DELETE WHERE persistence_id = 'a' AND sequence_nr = 9")
    code, text = dropping.said("check", "--json")
    assert code == 3 and "differs" in text


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    yield from made(stack, kafka, spark, tmp_path)


@pytest.mark.long
def test_topic_under_a_ttl_is_whole(shop):
    """Read a topic's records past the retention without requiring them; those within it are in ClickHouse
    once each.
    """
    one = shop(created_at="at", destination_retention_days=DAYS)
    one.stack.client().command(
        f"ALTER TABLE {one.name} MODIFY TTL toDateTime(created_at) + INTERVAL {DAYS} DAY"
    )
    for product, age in enumerate(AGES, 1):
        one.send(product, at=(NOW - timedelta(days=age)).isoformat())
    one.deliver()
    one.stack.client().command(f"OPTIMIZE TABLE {one.name} FINAL")
    assert sorted(set(one.products())) == sorted(one.products())
    assert (
        {number for number, age in enumerate(AGES, 1) if age < DAYS}
        <= set(one.products())
        < set(range(1, len(AGES) + 1))
    )
    for command in ("status", "check"):
        code, out, error = tagmill(one.file, command, "--json")
        (line,) = json.loads(out)
        assert code == 0 and line["level"] == ("proven" if command == "check" else "counted"), (line, error)
        assert line["expired"] == len(AGES) - len(one.products())
