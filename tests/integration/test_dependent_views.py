"""Materialized views on a destination.

A view that failed once is never taken for whole, and sums of healthy views never double silently.
"""

from datetime import timedelta
from unittest.mock import patch
from uuid import UUID

import pytest

from tagmill.audit.repair import audit_and_repair
from tagmill.delivery.tag_views import steps
from tagmill.delivery.tag_views.interventions import Interventions
from tagmill.errors import GuardRefused, ViewsUnknown
from tagmill.ledger import schema
from tagmill.ledger.runs import Ledger
from tagmill.runs import checkpoints
from tests.support import faulty_clickhouse
from tests.support.delivery import (
    OWNER,
    as_row,
    clickhouse_rows,
    deliver,
    only,
    shown_first,
    state,
    tagmill,
    verdicts,
)
from tests.support.erasing import erased
from tests.support.errors import raises
from tests.support.events import events, this_hour
from tests.support.topics import made

BEGIN = this_hour() - timedelta(hours=2)
HOUR = {"tags": ["t"], "bucket_size": "Hour", "first_time_bucket": BEGIN.isoformat()}


class Viewed:
    """A delivery whose destination feeds two views: sums per persistence_id, and a copy of the numbers that
    feeds a third view.
    """

    def __init__(self, stack, spark, settings, written):
        self.stack, self.spark, self.settings = stack, spark, settings
        self.name = only(settings)
        self.records = events("a", range(1, 4), BEGIN) + events("b", range(1, 3), BEGIN)
        written.both(self.records)
        schema.apply(settings)
        for statement in (
            "CREATE TABLE {t}_sums (persistence_id String, rows UInt64) ENGINE = SummingMergeTree ORDER "
            "BY persistence_id",
            "CREATE TABLE {t}_copy (persistence_id String, sequence_nr Int64) ENGINE = MergeTree ORDER "
            "BY sequence_nr",
            "CREATE TABLE {t}_last (sequence_nr Int64, ok UInt8) ENGINE = MergeTree ORDER BY sequence_nr",
            "CREATE MATERIALIZED VIEW {t}_v1 TO {t}_sums AS SELECT persistence_id, count() AS rows FROM "
            "{t} GROUP BY persistence_id",
            "CREATE MATERIALIZED VIEW {t}_v2 TO {t}_copy AS SELECT persistence_id, sequence_nr FROM {t}",
        ):
            self.sql(statement)
        self.last_view("0")

    def last_view(self, fails):
        """Create the view on the copy; it fails for rows where the expression is true."""
        self.sql("DROP VIEW IF EXISTS {t}_v3 SYNC")
        self.sql(
            f"CREATE MATERIALIZED VIEW {{t}}_v3 TO {{t}}_last AS SELECT sequence_nr, throwIf({fails}) AS "
            f"ok FROM {{t}}_copy"
        )

    def sql(self, statement):
        client = self.stack.client(settings={"mutations_sync": 2})
        client.command(statement.format(t=self.name))
        client.close()

    def rows(self, query):
        return self.stack.rows(query.format(t=self.name))

    def sums(self):
        """Return the number of rows by persistence_id as the healthy view has added them up."""
        return dict(
            self.rows("SELECT persistence_id, toInt64(sum(rows)) FROM {t}_sums GROUP BY persistence_id")
        )

    def last(self):
        """Return the numbers that came through both views, sorted."""
        return sorted(number for (number,) in self.rows("SELECT sequence_nr FROM {t}_last"))

    def numbers(self):
        return sorted(record["sequence_nr"] for record in self.records)

    def sealed(self):
        """Plan and seal a run."""
        planned = steps.plan(self.settings, self.name, owner=OWNER)
        steps.seal(
            self.settings, self.name, planned["run"], planned["fence"], owner=OWNER, spark=lambda: self.spark
        )

    def push(self):
        """Take the open run over and push it."""
        planned = steps.plan(self.settings, self.name, owner=OWNER)
        return steps.push(self.settings, self.name, planned["run"], planned["fence"], owner=OWNER)

    def interventions(self):
        """Return what people have done to the pipeline."""
        with Ledger(self.settings.cassandra) as ledger:
            return [row.what for row in ledger.interventions(self.name)]

    def batch(self):
        ((batch,),) = self.rows("SELECT DISTINCT toString(batch_id) FROM {t}")
        return batch

    def is_whole(self):
        """Check that ClickHouse has the source's rows, and every view has each once."""
        assert clickhouse_rows(self.settings, self.name) == sorted(map(as_row, self.records))
        assert verdicts(self.settings, self.name) == {"t": "exactly once"}
        assert self.last() == self.numbers()
        assert self.sums() == {"a": 3, "b": 2}


@pytest.fixture
def viewed(stack, spark, journal, settings):
    written = journal()
    return Viewed(stack, spark, settings(written.keyspace, **HOUR), written)


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    """Yield a function that makes a topic's pipeline: make(**keys)."""
    yield from made(stack, kafka, spark, tmp_path)


def test_batch_of_failed_view_waits_for_a_decision(viewed, settings):
    """Let a view of a view fail: each push names all three views until a person completes the view and
    accepts the batch.
    """
    viewed.last_view("sequence_nr = 3")
    viewed.sealed()
    for _ in range(2):
        with raises(ViewsUnknown, pipeline=viewed.name, run=1) as error:
            viewed.push()
        text = str(error.value)
        assert (
            all(f"default.{viewed.name}_{view}" in text for view in ("v1", "v2", "v3")) and "\n" not in text
        )
        assert "ended with an error" in text and f"tagmill batches accept {viewed.batch()} --run 1" in text
    assert viewed.last() == [] and viewed.sums() == {"a": 3, "b": 2}
    code, _, refused = tagmill(settings.file(viewed.name), "run", "deliver", "--pipeline", viewed.name)
    assert code == 2 and "views depend on the table" in " ".join(refused.split())
    viewed.last_view("0")
    viewed.sql("INSERT INTO {t}_last SELECT sequence_nr, 0 FROM {t}")
    accepted = (
        "batches",
        "accept",
        viewed.batch(),
        "--run",
        "1",
        "--pipeline",
        viewed.name,
        "--why",
        "completed",
        "--yes",
    )
    assert shown_first(settings.file(viewed.name), *accepted)[0] == 0
    deliver(viewed.settings, viewed.name, viewed.spark)
    viewed.is_whole()
    code, _, refused = shown_first(settings.file(viewed.name), *accepted)
    assert code == 2 and "waits for no decision" in " ".join(refused.split())


def test_batch_is_sent_again_despite_views(viewed, settings):
    """Refuse to send a batch again that a healthy view would count twice; --despite-views sends it to all
    views.
    """
    viewed.last_view("sequence_nr = 3")
    viewed.sealed()
    with pytest.raises(ViewsUnknown):
        viewed.push()
    viewed.last_view("0")
    again = (
        "batches",
        "resend",
        viewed.batch(),
        "--run",
        "1",
        "--pipeline",
        viewed.name,
        "--why",
        "the view is new",
        "--yes",
    )
    code, _, refused = shown_first(settings.file(viewed.name), *again)
    assert code == 2 and f"default.{viewed.name}_v1" in refused and "--despite-views" in refused
    viewed.sql("TRUNCATE TABLE {t}_sums")
    assert shown_first(settings.file(viewed.name), *again, "--despite-views")[0] == 0
    deliver(viewed.settings, viewed.name, viewed.spark)
    viewed.is_whole()
    assert any("despite the views" in what for what in viewed.interventions())


def test_give_up_asks_where_views_have_rows(viewed, settings):
    """Give up a run without rows in ClickHouse; of one whose rows the views have only with --despite-views."""
    give_up = ("run", "give-up", "--pipeline", viewed.name, "--why", "a test", "--yes")
    viewed.sealed()
    assert shown_first(settings.file(viewed.name), *give_up)[0] == 0
    viewed.last_view("sequence_nr = 3")
    viewed.sealed()
    with pytest.raises(ViewsUnknown):
        viewed.push()
    viewed.last_view("0")
    before = clickhouse_rows(viewed.settings, viewed.name)
    code, _, refused = shown_first(settings.file(viewed.name), *give_up)
    refused = " ".join(refused.split())
    assert code == 2 and f"run 2 of pipeline {viewed.name} is not given up" in refused
    assert f"default.{viewed.name}_v1" in refused and "--despite-views" in refused
    assert state(viewed.settings, viewed.name, 2) == "SEALED"
    assert clickhouse_rows(viewed.settings, viewed.name) == before != []
    assert shown_first(settings.file(viewed.name), *give_up, "--despite-views")[0] == 0
    assert clickhouse_rows(viewed.settings, viewed.name) == [] and viewed.sums() == {"a": 3, "b": 2}
    viewed.sql("TRUNCATE TABLE {t}_sums")
    deliver(viewed.settings, viewed.name, viewed.spark)
    viewed.is_whole()
    assert sum("run give-up despite the views" in what for what in viewed.interventions()) == 1


class Crashed(BaseException):
    """A crash that no handler catches."""


@pytest.mark.parametrize(
    "instant",
    [
        pytest.param("push.before_insert", marks=pytest.mark.long),
        "push.before_noted",
        "push.after_insert",
        pytest.param("push.after_batch", marks=pytest.mark.long),
    ],
)
def test_killed_push_asks_only_without_an_answer(viewed, instant):
    """Kill a push at each instant: the next one asks only if the insert was answered but the answer was not
    recorded.
    """

    def reached(name):
        if name == instant:
            raise Crashed

    viewed.sealed()
    with patch.object(checkpoints, "reached", reached), pytest.raises(Crashed):
        viewed.push()
    if instant == "push.before_noted":
        with raises(ViewsUnknown, pipeline=viewed.name, run=1, batch=viewed.batch()):
            viewed.push()
        Interventions(viewed.settings, viewed.name, OWNER, "tester", "they have it").accept(
            UUID(viewed.batch()), 1
        )
    deliver(viewed.settings, viewed.name, viewed.spark)
    viewed.is_whole()


@pytest.mark.parametrize("kind", [pytest.param("error_after", marks=pytest.mark.long), "drop_after"])
def test_lost_answer_of_insert_asks_for_the_views(viewed, kind):
    """Lose the insert's answer: the push asks, also if the client itself repeats the request, which then
    writes nothing.
    """
    viewed.sealed()
    faulty_clickhouse.order(viewed.stack.clickhouse.port, kind, match=f"INSERT INTO `{viewed.name}` ")
    with pytest.raises(ViewsUnknown):
        viewed.push()
    Interventions(viewed.settings, viewed.name, OWNER, "tester", "they have it").accept(
        UUID(viewed.batch()), 1
    )
    deliver(viewed.settings, viewed.name, viewed.spark)
    viewed.is_whole()


def test_view_made_during_a_push_is_guarded(viewed):
    """Make the first view when a push has found none, and lose the insert's answer: the view may lack the batch."""
    for view in ("v1", "v2", "v3"):
        viewed.sql(f"DROP VIEW {{t}}_{view} SYNC")
    viewed.sealed()
    faulty_clickhouse.order(viewed.stack.clickhouse.port, "drop_after", match=f"INSERT INTO `{viewed.name}` ")

    def reached(name):
        if name == "push.before_insert":
            viewed.sql(
                "CREATE MATERIALIZED VIEW {t}_new TO {t}_copy AS SELECT persistence_id, sequence_nr FROM {t}"
            )

    with (
        patch.object(checkpoints, "reached", reached),
        raises(ViewsUnknown, pipeline=viewed.name, run=1) as error,
    ):
        viewed.push()
    assert f"default.{viewed.name}_new" in str(error.value) and viewed.batch() in str(error.value)


def test_batches_with_healthy_views_are_left_alone(viewed):
    """Refuse resend, withdrawal, repair and erasure while views depend on the table, and name in a repair
    what it left.
    """
    deliver(viewed.settings, viewed.name, viewed.spark)
    viewed.is_whole()
    by_hand = Interventions(viewed.settings, viewed.name, OWNER, "tester", "a test")
    for what in (by_hand.resend, by_hand.withdraw):
        with raises(GuardRefused, pipeline=viewed.name, run=1, batch=viewed.batch()):
            what(UUID(viewed.batch()), 1)
    with raises(GuardRefused, pipeline=viewed.name):
        erased(viewed.settings, ["a"])
    assert any(
        "stays in the materialized views" in text
        for text in erased(viewed.settings, ["a"], delete=False)["warnings"]
    )
    viewed.is_whole()
    viewed.sql("ALTER TABLE {t} DELETE WHERE persistence_id = 'b'")
    options = {"spark": viewed.spark, "owner": OWNER, "who": "tester", "why": "a test"}
    report = audit_and_repair(viewed.settings, viewed.name, **options)
    (done,) = report.repairs
    assert not report.agrees and not done.resent and "--despite-views" in done.left[0].why
    assert viewed.sums() == {"a": 3, "b": 2} and len(clickhouse_rows(viewed.settings, viewed.name)) == 3
    viewed.sql("TRUNCATE TABLE {t}_sums")
    viewed.sql("TRUNCATE TABLE {t}_last")
    report = audit_and_repair(viewed.settings, viewed.name, despite_views=True, **options)
    (done,) = report.repairs
    assert report.agrees and len(done.resent) == 1
    viewed.is_whole()


def test_topic_batch_of_failed_view_waits(shop):
    """Treat a topic's batch alike: no run takes it for whole after its view failed, until a person accepts
    it.
    """
    one = shop()
    for product in range(1, 4):
        one.send(product)
    client = one.stack.client()
    client.command(
        f"CREATE TABLE {one.name}_last (offset Int64, ok UInt8) ENGINE = MergeTree ORDER BY offset"
    )
    view = (
        f"CREATE MATERIALIZED VIEW {one.name}_v TO {one.name}_last AS SELECT offset, throwIf(offset = "
        f"1) AS ok FROM {one.name}"
    )
    client.command(view)
    for _ in range(2):
        with raises(ViewsUnknown, pipeline=one.name, run=1) as error:
            one.deliver()
    assert one.products() == [1, 2, 3]
    assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 3
    give_up = ("run", "give-up", "--pipeline", one.name, "--why", "a test", "--yes")
    code, _, refused = shown_first(one.file, *give_up)
    assert code == 2 and "--despite-views" in refused and one.products() == [1, 2, 3]
    client.command(f"DROP VIEW {one.name}_v SYNC")
    client.command(view.replace("offset = 1", "0"))
    client.command(f"INSERT INTO {one.name}_last SELECT offset, 0 FROM {one.name}")
    accept = str(error.value).split("then: tagmill ")[1].split(" --why")[0].split()
    assert shown_first(one.file, *accept, "--why", "completed", "--yes")[0] == 0
    one.deliver()
    one.send(4)
    one.deliver()
    assert one.products() == [1, 2, 3, 4] and one.deliver() == []
    assert sorted(one.stack.rows(f"SELECT offset FROM {one.name}_last")) == [(0,), (1,), (2,), (3,)]
    assert tagmill(one.file, "check", "--pipeline", one.name)[0] == 0
    client.close()
