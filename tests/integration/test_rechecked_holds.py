"""Holds that plans look at again stay until something helps, and a plan starts no run for those that nothing
helps.
"""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from tagmill.delivery.tag_views import steps
from tagmill.domain.time_buckets import BucketSize
from tagmill.ledger import schema
from tests.support.delivery import OWNER, clickhouse_rows, deliver, delivered_first, holds, only
from tests.support.events import SECOND, event, this_hour

pytestmark = pytest.mark.usefixtures("both_seals")

HOUR = timedelta(hours=1)
BEGIN = this_hour() - 2 * HOUR


@pytest.fixture
def configured(settings):
    """Return configured(journal, **keys), which makes the settings of a pipeline that holds any share."""
    standard = {"tags": ["t"], "bucket_size": "Hour", "quality": {"max_held_share_percent": 100}}
    standard["first_time_bucket"] = f"{BEGIN - timedelta(days=1):%Y-%m-%d}"
    return lambda journal, **more: settings(journal.keyspace, **standard | more)


def held(made):
    """Return how many rows of each persistence_id are held."""
    return {persistence_id: hold.held_rows for (_, persistence_id), hold in holds(made, only(made)).items()}


def delivered(made):
    """Return (persistence_id, number, late) of each row in ClickHouse."""
    return [
        (row.persistence_id, row.tag_pid_sequence_nr, row.late) for row in clickhouse_rows(made, only(made))
    ]


def test_rows_held_before_delivered_ones_stay_held(journal, configured, spark):
    """Hold a row that is hours earlier than the delivered one: the clocks of its writers differ."""
    written = journal()
    made = configured(written, look_back_seconds=0, long_look_back_seconds=0, look_back_windows_seconds=[])
    written.view([event("skewed", 1, BEGIN), event("skewed", 3, BEGIN - 5 * HOUR)])
    delivered_first(made, spark)
    assert held(made) == {"skewed": 1} and delivered(made) == [("skewed", 1, 0)]
    written.view([event("skewed", 2, BEGIN - 6 * HOUR)])
    deliver(made, only(made), spark)
    assert held(made) == {} and {number for _, number, _ in delivered(made)} == {1, 2, 3}


def test_answers_that_fill_nothing_start_no_run(journal, configured, spark):
    """Ask the journal about gaps: an event of it has no payload, two have one number, or no row is left."""
    written = journal()
    made = configured(written, gap_timeout_seconds=0)
    ids = ("no payload", "one number", "rows gone", "deleted")
    written.view(event(persistence_id, number, BEGIN) for persistence_id in ids for number in (1, 4))
    delivered_first(made, spark)
    assert held(made) == dict.fromkeys(ids, 1)
    written.messages(event("no payload", number, BEGIN, event=None, ser_id=None) for number in (2, 3))
    written.messages(
        event("one number", 2, BEGIN + moment * SECOND, writer_uuid="other") for moment in (1, 2)
    )
    written.messages(event("rows gone", number, BEGIN) for number in (2, 3))
    for persistence_id, number in product(("rows gone", "deleted"), (1, 4)):
        written.remove(event(persistence_id, number, BEGIN))
    written.deleted_to("deleted", 3)
    deliver(made, only(made), spark)
    assert deliver(made, only(made), spark) == []
    assert held(made) == {"no payload": 1, "one number": 1, "rows gone": 0, "deleted": 0}
    written.view([event("rows gone", 4, BEGIN)])
    deliver(made, only(made), spark)
    assert [number for name, number, _ in delivered(made) if name == "rows gone"] == [1, 2, 3, 4]


def test_other_bucket_size_reads_buckets_from_their_begin(journal, configured, spark, monkeypatch):
    """Plan with buckets of a minute, then correct their size: no bucket of an hour is left out."""
    written = journal()
    made = configured(written, bucket_size="Minute", look_back_windows_seconds=[])
    name = only(made)
    schema.apply(made)
    with monkeypatch.context() as patched:
        patched.setattr(steps, "agreed_now", lambda *_: BEGIN - HOUR + timedelta(minutes=37))
        assert steps.plan(made, name, owner=OWNER)["run"] is None
    corrected = made.pipeline(name).model_copy(update={"bucket_size": BucketSize.HOUR})
    made = made.model_copy(update={"pipelines": {name: corrected}})
    written.view([event("a", number, BEGIN + (number - 2) * HOUR) for number in (1, 2, 3)])
    written.view([event("a", 4, datetime.now(UTC))])
    deliver(made, name, spark)
    assert delivered(made)[:3] == [("a", number, 0) for number in (1, 2, 3)]
