"""Wrong clocks are refused before anything is written, and what one has left behind is brought back by the
next run.
"""

from datetime import UTC, datetime, timedelta

import pytest

from tagmill.config.settings import Settings
from tagmill.delivery.tag_views import steps
from tagmill.delivery.tag_views.future_watermarks import brought_back
from tagmill.delivery.tag_views.verification import tag_table
from tagmill.domain import clock
from tagmill.domain.timeuuid import from_datetime
from tagmill.errors import ClockDiffers
from tagmill.ledger import schema
from tagmill.ledger.lease import Lease
from tagmill.ledger.progress import Watermark
from tagmill.ledger.runs import Ledger
from tagmill.maintenance.view_cleanup.clean import clean
from tagmill.runs.workspace import open_workspace
from tests.support.delivery import (
    OWNER,
    as_row,
    clickhouse_rows,
    deliver,
    finish,
    manifests,
    only,
    tagmill,
    verdicts,
)
from tests.support.events import SECOND, events, this_hour

BEGIN = this_hour() - timedelta(hours=3)
DAYS = timedelta(days=2)


def configured(settings, keyspace: str) -> Settings:
    made: Settings = settings(
        keyspace,
        tags=["t"],
        bucket_size="Hour",
        first_time_bucket=BEGIN.isoformat(),
        cleanup={"enabled": True},
    )
    schema.apply(made)
    return made


def local_clock_ahead(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    monkeypatch.setattr(clock, "local", lambda: datetime.now(UTC) + by)


def plan_believing(monkeypatch: pytest.MonkeyPatch, configured: Settings, by: timedelta) -> dict:
    """Plan a run as an earlier release did, which trusted its own clock."""
    with monkeypatch.context() as patched:
        patched.setattr(steps, "agreed_now", lambda *_: datetime.now(UTC) + by)
        return steps.plan(configured, only(configured), owner=OWNER)


def deliver_two_days_ahead(monkeypatch: pytest.MonkeyPatch, configured: Settings, written, spark) -> None:
    """Deliver events in a run whose clock is two days ahead."""
    written.view(events("a", range(1, 9), BEGIN))
    finish(configured, only(configured), spark, plan_believing(monkeypatch, configured, DAYS))


def test_wrong_clock_is_refused_before_any_write(journal, settings, monkeypatch):
    written = journal()
    made = configured(settings, written.keyspace)
    name = only(made)
    written.view(events("a", range(1, 6), BEGIN))
    for by, said in ((DAYS, "ahead of"), (-DAYS, "behind")):
        local_clock_ahead(monkeypatch, by)
        status, _, error = tagmill(settings.file(name), "run", "deliver", "--pipeline", name)
        assert status == 2
        assert f"172800 s {said} Cassandra at" in error
        assert "Nothing was written" in error
        assert len(error.splitlines()) == 1
        with pytest.raises(ClockDiffers):
            clean(made, name, owner=OWNER, delete=True)
    with Ledger(made.cassandra) as ledger:
        assert ledger.last_run(name) == 0
        assert not ledger.delivered.watermarks(name)
        assert Lease(ledger.cassandra, ledger.ledger_keyspace, name, OWNER, 30).holder() is None


def test_small_clock_difference_plans_by_the_servers_time(journal, settings, spark, monkeypatch):
    """Run despite a difference within the limit; the watermark is not later than the servers' time."""
    written = journal()
    made = configured(settings, written.keyspace)
    written.view(events("a", range(1, 6), BEGIN))
    local_clock_ahead(monkeypatch, 50 * SECOND)
    deliver(made, only(made), spark)
    with Ledger(made.cassandra) as ledger:
        assert ledger.delivered.watermarks(only(made))["t"].ticks <= from_datetime(datetime.now(UTC))
    assert clickhouse_rows(made, only(made)) == sorted(as_row(row) for row in written.rows())


def test_watermark_ahead_is_brought_back(journal, settings, spark, monkeypatch):
    """Deliver rows that arrived meanwhile, also those older than what the last run under the wrong clock
    delivered.
    """
    written = journal()
    made = configured(settings, written.keyspace)
    name = only(made)
    deliver_two_days_ahead(monkeypatch, made, written, spark)
    written.view(
        [
            *events("a", range(9, 12), datetime.now(UTC) - 30 * SECOND),
            *events("b", range(1, 4), BEGIN + 3 * SECOND),
        ]
    )
    (line,) = tag_table(made, name, count_view=False)
    assert "its watermark is 172" in line["verdict"]
    assert "the next run brings it back" in line["verdict"].lower()
    deliver(made, name, spark)
    assert clickhouse_rows(made, name) == sorted(as_row(row) for row in written.rows())
    assert manifests(made, name)[-1].tags["t"].back_from is not None
    with Ledger(made.cassandra) as ledger:
        assert ledger.delivered.watermarks(name)["t"].ticks <= from_datetime(datetime.now(UTC))
    written.view(events("a", range(12, 14), datetime.now(UTC) - 16 * SECOND))
    deliver(made, name, spark)
    assert clickhouse_rows(made, name) == sorted(as_row(row) for row in written.rows())
    assert verdicts(made, name) == {"t": "exactly once"}


def test_watermark_ahead_without_manifests_begins_again(journal, settings):
    """Begin again at first_time_bucket if retention has removed the manifests; a start_from in the future is
    not a wrong clock.
    """
    soon = datetime.now(UTC) + DAYS
    made = settings(
        journal().keyspace,
        tags=["t", "u"],
        bucket_size="Hour",
        first_time_bucket=BEGIN.isoformat(),
        start_from={"u": soon.isoformat()},
    )
    schema.apply(made)
    with open_workspace(made, only(made)) as workspace:
        for tag in ("t", "u"):
            ticks = from_datetime(soon) - 1
            workspace.ledger.delivered.write_watermark(
                only(made), Watermark(tag, ticks, 1, ticks, 0, None, 0, 0)
            )
        back = brought_back(workspace, datetime.now(UTC))
    assert {tag: mark.ticks for tag, mark in back.items()} == {"t": from_datetime(BEGIN) - 1}


def test_brought_back_run_killed_before_close_delivers_once(journal, settings, spark, monkeypatch):
    written = journal()
    made = configured(settings, written.keyspace)
    name = only(made)
    deliver_two_days_ahead(monkeypatch, made, written, spark)
    written.view(events("b", range(1, 4), BEGIN + 3 * SECOND))
    planned = steps.plan(made, name, owner=OWNER)
    steps.seal(made, name, planned["run"], planned["fence"], owner=OWNER, spark=lambda: spark)
    # Another process takes the run over and finishes it.
    finish(made, name, spark, steps.plan(made, name, owner=OWNER))
    deliver(made, name, spark)
    assert clickhouse_rows(made, name) == sorted(as_row(row) for row in written.rows())
