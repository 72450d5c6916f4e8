"""Builds refuse or postpone some events with a clear message; the rest is built, and nothing is lost."""

import json
import re
from contextlib import nullcontext
from datetime import timedelta

import pytest

from local.fixtures import WITHOUT_VIEWS
from spark_jobs import operation as job
from tagmill.cassandra.client import Cassandra
from tagmill.errors import ConfigurationError, ViewDiffers
from tagmill.ledger import schema
from tagmill.ledger.view_waiting import WaitingIds
from tagmill.views.rebuild import rebuild
from tagmill.views.selection import Selection
from tests.support.auditing import audited, findings
from tests.support.building import built, recorded, rows
from tests.support.delivery import OWNER, as_row, clickhouse_rows, deliver, only, tagmill
from tests.support.errors import raises
from tests.support.events import event, events, offset_at, this_hour

pytestmark = pytest.mark.usefixtures("both_builds")

BEGIN = this_hour() - timedelta(hours=3)
HOUR = {"bucket_size": "Hour", "first_time_bucket": "2026-01-01", "tags": ["t"], "views": "tagmill"}


def numbers(stack, journal):
    """Return (persistence_id, number, sequence_nr) of each row of the view."""
    return sorted(
        (row["persistence_id"], row["tag_pid_sequence_nr"], row["sequence_nr"])
        for row in rows(stack, journal, "tag_views")
    )


def three(persistence_id):
    """Return the view's three numbers of a healthy persistence_id."""
    return [(persistence_id, number, number) for number in (1, 2, 3)]


def waits(result):
    """Return (persistence_id, sequence_nr, reason) of each persistence_id that waits."""
    return [(line["persistence_id"], line["sequence_nr"], line["reason"]) for line in result["examples"]]


def test_build_gap_waits_until_filled(stack, journal, settings, spark):
    written = journal()
    written.messages(
        events("whole", (1, 2, 3), BEGIN)
        + events("holed", (1, 2, 4, 5), BEGIN)
        + events("headless", (2, 3), BEGIN)
    )
    configured = settings(written.keyspace, **HOUR)
    result = built(configured, spark)
    assert waits(result) == [("headless", 1, "hole"), ("holed", 3, "hole")]
    assert numbers(stack, written.keyspace) == [("holed", 1, 1), ("holed", 2, 2), *three("whole")]
    written.messages(events("holed", (3,), BEGIN))
    written.deleted_to("headless", 1)
    result = built(configured, spark)
    assert (result["waiting"], result["rows"]) == (0, 5)
    assert numbers(stack, written.keyspace) == sorted(
        [("headless", 1, 2), ("headless", 2, 3), *[("holed", n, n) for n in range(1, 6)], *three("whole")]
    )


GAP = "a sequence_nr is missing and was not deleted"


def test_waiting_ids_are_named_until_built(stack, journal, settings, spark):
    """Let persistence ids wait over several builds: `status` and `check` name them until their events come.

    The gap of `afar` begins behind a build and is longer than what a build looks ahead.
    """
    written = journal()
    records = {"afar": range(1, 8), "empty": (1, 2), "holed": range(1, 6), "whole": range(1, 4)}
    of = {name: events(name, numbers, BEGIN) for name, numbers in records.items()}
    written.messages([*of["whole"], *of["afar"][:2], *of["holed"][:2], *of["holed"][3:]])
    written.messages([{**of["empty"][0], "event": None}, of["empty"][1]])
    configured = settings(written.keyspace, **HOUR)
    name, file = only(configured), settings.file(only(configured))

    def said(command):
        code, told, _ = tagmill(file, command, "--json")
        return code, [line["verdict"] for line in json.loads(told)]

    def since():
        with Cassandra(configured.cassandra) as cassandra:
            waiting = WaitingIds(cassandra, "tagmill_test", written.keyspace).current()
        return {row.reason: row.since for row in waiting}

    def delivered():
        deliver(configured, name, spark)
        return [row._replace(late=0) for row in clickhouse_rows(configured, name)]

    assert waits(built(configured, spark)) == [("holed", 3, "hole"), ("empty", 1, "no_event")]
    first = since()
    written.messages(of["afar"][5:])
    result = built(configured, spark)
    assert waits(result) == [("afar", 3, "hole"), ("holed", 3, "hole"), ("empty", 1, "no_event")]
    assert since() == first
    rest = [*of["whole"], *of["afar"][:2], *of["holed"][:2]]
    assert delivered() == sorted(map(as_row, rest))
    code, (verdict,) = said("status")
    assert code == 0 and said("check")[0] == 3
    assert verdict.startswith(
        "2 persistence ids wait in views build, 'holed' in front of sequence_nr 3 since "
    )
    assert f"({GAP}); 1 persistence id waits in views build, 'empty' in front of sequence_nr 1 " in verdict
    stack.session.execute(
        "UPDATE tagmill_test.view_waiting SET since = '2026-01-02' WHERE journal = %s AND reason = 'hole'",
        (written.keyspace,),
    )
    assert built(configured, spark)["waiting"] == 3
    code, (verdict,) = said("status")
    assert code == 3 and f"since 2026-01-02 00:00:00 ({GAP}): longer than max_hold_age_seconds" in verdict
    written.messages([of["empty"][0], of["holed"][2], *of["afar"][2:5]])
    assert built(configured, spark)["waiting"] == 0
    code, (verdict,) = said("status")
    assert code == 0 and "views build" not in verdict
    everything = [record for records_of in of.values() for record in records_of]
    assert delivered() == sorted(map(as_row, everything))
    code, (verdict,) = said("status")
    assert code == 0 and verdict.startswith("counts agree; exactly once when checked ")
    code, (verdict,) = said("check")
    assert code == 0 and verdict.startswith("exactly once, checked at ")


def test_two_writers_of_one_sequence_nr_are_named(stack, keyspace, settings, spark):
    """Build the plugin's own split-brain journal: the undisputed events come, and the other persistence ids
    come whole.
    """
    journal = keyspace("split-brain", WITHOUT_VIEWS)
    result = built(settings(journal, case="split-brain", views="tagmill"), spark)
    assert waits(result) == [("o-000001", 13, "two_writers")]
    expected = [
        row
        for row in recorded("split-brain", "tag_views")
        if row["persistence_id"] != "o-000001" or row["sequence_nr"] < 13
    ]
    assert rows(stack, journal, "tag_views") == expected


def test_build_numbers_tags_of_old_columns(stack, keyspace, settings, spark):
    journal = keyspace("legacy-tags", WITHOUT_VIEWS)
    result = built(settings(journal, case="legacy-tags", views="tagmill"), spark)
    assert result["rows"] == 3 * 410 and result["waiting"] == 0
    assert rows(stack, journal, "tag_views") == recorded("legacy-tags", "expected_tag_views")


def test_build_unreadable_events_wait(stack, journal, settings, spark):
    """Let events in the column `message` and events without a payload wait."""
    written = journal()
    stack.session.execute(f"ALTER TABLE {written.keyspace}.messages ADD message blob")
    written.messages(
        events("ancient", (1, 2), BEGIN, event=None, ser_id=None) + events("empty", (1,), BEGIN, event=None)
    )
    written.messages(events("fine", (1, 2, 3), BEGIN) + [event("untagged", 1, BEGIN, event=None, tags=set())])
    stack.session.execute(
        f"UPDATE {written.keyspace}.messages SET message = 0x01 WHERE persistence_id = 'ancient' AND "
        "partition_nr = 0"
        f" AND sequence_nr = 1 AND timestamp = {events('ancient', (1,), BEGIN)[0]['timestamp']}"
    )
    result = built(settings(written.keyspace, **HOUR), spark)
    assert waits(result) == [("ancient", 1, "before_0_10"), ("empty", 1, "no_event")]
    assert numbers(stack, written.keyspace) == three("fine")


def test_event_larger_than_one_write_waits(stack, journal, settings, spark):
    """Lower the limit behind the application's back: the id waits, the rest is built; raised again, it
    comes.
    """
    written = journal()
    large = event("large", 2, BEGIN + timedelta(seconds=2), event=b"x" * 150_000)
    records = [*events("large", (1, 3), BEGIN), large, *events("fine", (1, 2, 3), BEGIN)]
    written.messages(records)
    configured = settings(written.keyspace, **HOUR)
    lowered = configured.cassandra.model_copy(update={"max_write_bytes": 128 * 1024})
    result = built(configured.model_copy(update={"cassandra": lowered}), spark)
    assert waits(result) == [("large", 2, "too_large")]
    assert numbers(stack, written.keyspace) == [*three("fine"), ("large", 1, 1)]
    assert built(configured, spark)["waiting"] == 0
    assert numbers(stack, written.keyspace) == [*three("fine"), *three("large")]
    built_events = {
        (row["persistence_id"], row["sequence_nr"]): bytes(row["event"])
        for row in rows(stack, written.keyspace, "tag_views")
    }
    assert built_events == {
        (row["persistence_id"], row["sequence_nr"]): bytes(row["event"]) for row in records
    }


def test_build_odd_timestamp_waits_and_young_is_omitted(stack, journal, settings, spark):
    """Let an event with a timestamp of another age wait; an event too young for this build is left for a
    later one.
    """
    written = journal()
    far = event("far", 1, BEGIN, timestamp=offset_at(2**59))
    soon = event("young", 2, BEGIN + timedelta(hours=3, minutes=59, days=0))
    written.messages([*events("young", (1,), BEGIN), far, *events("fine", (1, 2, 3), BEGIN)])
    written.messages(
        [{**soon, "timestamp": events("x", (1,), this_hour() + timedelta(hours=2))[0]["timestamp"]}]
    )
    result = built(settings(written.keyspace, **HOUR), spark)
    assert waits(result) == [("far", 1, "no_time_uuid")]
    assert numbers(stack, written.keyspace) == [*three("fine"), ("young", 1, 1)]


def test_build_ids_numbered_by_application_are_refused(stack, journal, settings, spark, monkeypatch):
    """Refuse persistence ids that the application has numbered, build and deliver the rest; --adopt takes
    its numbers. `status` names the refusal until then, and the command ends with it.
    """
    written = journal()
    written.messages(
        events("ours", (1, 2), BEGIN) + events("theirs", (1, 2), BEGIN) + events("scanned", (1, 2), BEGIN)
    )
    configured = settings(written.keyspace, **HOUR)
    name, file = only(configured), settings.file(only(configured))
    built(configured, spark)
    written.messages(
        events("ours", (3,), BEGIN) + events("theirs", (3,), BEGIN) + events("scanned", (3,), BEGIN)
    )
    stack.session.execute(
        f"UPDATE {written.keyspace}.tag_write_progress SET sequence_nr = 3, tag_pid_sequence_nr = 3, "
        "offset = now()"
        " WHERE persistence_id = 'theirs' AND tag = 't'"
    )
    stack.session.execute(
        f"INSERT INTO {written.keyspace}.tag_scanning (persistence_id, sequence_nr) VALUES ('scanned', 3)"
    )
    result = built(configured, spark)
    assert (result["refused"], result["rows"], result["waiting"]) == (2, 1, 0)
    refusal = r"persistence_id 'scanned' and 1 others was numbered.*the rest is built: 1 rows of 1 .*--adopt"
    assert re.search(refusal, result["refusal"]) and result["refusal"] in result["message"]
    deliver(configured, name, spark)
    assert [(row.persistence_id, row.sequence_nr) for row in clickhouse_rows(configured, name)] == [
        (row[0], row[2]) for row in numbers(stack, written.keyspace)
    ]
    for command in ("status", "check"):
        code, told, _ = tagmill(file, command, "--json")
        assert code == 3 and "2 persistence ids wait in views build, 'scanned' in front of" in told
        assert f"tagmill views build --pipeline {name} --adopt" in told and "failed" not in told
    with monkeypatch.context() as patched:
        patched.setattr("tagmill.spark.session.spark_session", lambda *_, **__: nullcontext(spark))
        arguments = ["--operation", "views build", "--pipeline", name, "--owner", OWNER]
        assert job.main([*arguments, "--config", str(file)]) == 0
        code, _, told = tagmill(file, "views", "build", "--pipeline", name)
    assert code == 2 and "'scanned' and 1 others was numbered by somebody else" in told
    assert numbers(stack, written.keyspace) == [*three("ours"), *three("scanned")[:2], *three("theirs")[:2]]
    result = built(configured, spark, adopt=True)
    assert "wait in views build" not in tagmill(file, "status", "--json")[1]
    assert result["rows"] == 1  # the application says that theirs is numbered up to 3
    assert numbers(stack, written.keyspace) == [*three("ours"), *three("scanned"), *three("theirs")[:2]]
    assert built(configured, spark)["moved"] == 0


def adopted(stack, spark, written, configured, numbered):
    """Adopt persistence ids that the application has numbered up to these sequence_nrs, while all events are young."""
    for persistence_id, sequence_nr in numbered.items():
        stack.session.execute(
            f"INSERT INTO {written.keyspace}.all_persistence_ids (persistence_id) VALUES (%s)",
            [persistence_id],
        )
        stack.session.execute(
            f"INSERT INTO {written.keyspace}.tag_write_progress (persistence_id, tag, offset, sequence_nr, "
            "tag_pid_sequence_nr) VALUES (%s, 't', now(), %s, %s)",
            (persistence_id, sequence_nr, sequence_nr),
        )
    (name, pipeline), *_ = configured.pipelines.items()
    waiting = pipeline.model_copy(update={"eventual_consistency_delay_seconds": 86_400.0})
    return built(configured.model_copy(update={"pipelines": {name: waiting}}), spark, adopt=True)


def test_adopted_ids_without_events_are_continued(stack, journal, settings, spark):
    """Adopt persistence ids whose events are all deleted, or young: the next build finds the events behind."""
    written = journal()
    configured, ids = settings(written.keyspace, **HOUR), ("all deleted", "late")
    for persistence_id in ids:
        written.deleted_to(persistence_id, 50)
    written.messages(events("late", [51], BEGIN, partition_nr=5))
    assert adopted(stack, spark, written, configured, dict.fromkeys(ids, 50))["rows"] == 0
    written.messages(events("all deleted", [51], BEGIN, partition_nr=5))
    assert built(configured, spark)["rows"] == 2
    assert numbers(stack, written.keyspace) == [(persistence_id, 51, 51) for persistence_id in ids]


def test_adopted_events_that_waited_keep_numbers(stack, journal, settings, spark):
    """Adopt while the application's last events are young: builds and rebuilds leave their numbers alone."""
    written, configured = (made := journal()), settings(made.keyspace, **HOUR)
    written.both(events("p", (1, 2), BEGIN))
    written.messages(events("p", (3,), BEGIN))
    assert adopted(stack, spark, written, configured, {"p": 2})["rows"] == 0
    chosen = {"owner": OWNER, "spark": spark, "dry_run": True}
    report = rebuild(configured, only(configured), Selection(), **chosen)
    assert (report.left, report.total("same"), report.total("added")) == (0, 2, 1)
    assert built(configured, spark)["rows"] == 1 and numbers(stack, written.keyspace) == three("p")


def test_build_keeps_meta_where_columns_exist(stack, journal, settings, spark):
    written, plain = journal(), journal()
    written.messages(
        [
            event("r", 1, BEGIN, meta=b"m", meta_ser_id=7, meta_ser_manifest="mm"),
            event("r", 2, BEGIN + timedelta(seconds=1)),
        ]
    )
    for column in ("meta", "meta_ser_id", "meta_ser_manifest"):
        for table in ("messages", "tag_views"):
            stack.session.execute(f"ALTER TABLE {plain.keyspace}.{table} DROP {column}")
    stack.session.execute(
        f"INSERT INTO {plain.keyspace}.messages (persistence_id, partition_nr, sequence_nr, timestamp, "
        "event, event_manifest, ser_id,"
        " ser_manifest, writer_uuid, tags) VALUES ('p', 0, 1, %s, 0x01, '', 1, '', 'w', {'t'})",
        (events("p", (1,), BEGIN)[0]["timestamp"],),
    )
    built(settings(written.keyspace, **HOUR), spark)
    built(settings(plain.keyspace, **HOUR), spark)
    found = [
        (row["meta"], row["meta_ser_id"], row["meta_ser_manifest"])
        for row in rows(stack, written.keyspace, "tag_views")
    ]
    assert found == [(b"m", 7, "mm"), (None, None, None)]
    assert numbers(stack, plain.keyspace) == [("p", 1, 1)]
    stack.session.execute(f"ALTER TABLE {written.keyspace}.tag_views DROP meta")
    with pytest.raises(
        ConfigurationError, match="tag_views has no column meta, messages has. Nothing was built"
    ):
        built(settings(written.keyspace, **HOUR), spark)


def test_build_finds_write_behind_empty_partition(stack, journal, settings, spark):
    """Build partitions of 10: events 1 to 10 in 0, an atomic write of 11 to 21 in 2; partition 1 stays
    empty.
    """
    written = journal()
    written.messages(events("p", range(1, 11), BEGIN))
    configured = settings(written.keyspace, **HOUR)
    built(configured, spark)
    written.messages(
        events("p", range(11, 22), BEGIN, partition_nr=2) + events("new", range(1, 12), BEGIN, partition_nr=1)
    )
    written.messages(events("deleted", range(500, 503), BEGIN, partition_nr=49))
    written.deleted_to("deleted", 499)
    result = built(configured, spark)
    assert (result["waiting"], result["rows"]) == (0, 25)
    assert [row for row in numbers(stack, written.keyspace) if row[0] == "p"] == [
        ("p", n, n) for n in range(1, 22)
    ]


def test_build_distant_partitions_are_found_or_audited(stack, journal, settings, spark):
    """Skip partitions: the first build finds the events behind them, a later one does not, and the audit
    names those.
    """
    written = journal()
    written.messages(events("p", range(1, 4), BEGIN) + events("p", range(4, 7), BEGIN, partition_nr=7))
    configured = settings(written.keyspace, **HOUR)
    assert built(configured, spark)["rows"] == 6
    written.messages(events("p", range(7, 9), BEGIN, partition_nr=20))
    assert built(configured, spark)["rows"] == 0
    found = findings(configured, audited(configured, spark))
    missing = sorted(
        (row["sequence_nr"], row["expected_number"]) for row in found if row["kind"] == "missing_in_view"
    )
    assert missing == [(7, 7), (8, 8)]
    assert numbers(stack, written.keyspace) == [("p", n, n) for n in range(1, 7)]


def test_another_bucket_size_is_refused(journal, settings, spark):
    written = journal()
    written.messages(events("p", (1,), BEGIN))
    built(settings(written.keyspace, **HOUR), spark)
    with raises(
        ViewDiffers, match="is built with bucket size Hour, the pipeline says Day. Nothing was written"
    ):
        built(settings(written.keyspace, **{**HOUR, "bucket_size": "Day"}), spark)


@pytest.mark.parametrize(
    ("keys", "command", "words"),
    [
        ({"views": "application"}, ("views", "build"), 'set views = "tagmill"'),
        ({"keyspace": "nowhere"}, ("views", "build"), "keyspace nowhere does not exist"),
        ({}, ("run", "deliver"), "was never built"),
    ],
)
def test_a_wrong_configuration_is_one_line(journal, settings, keys, command, words):
    keys = {**HOUR, **keys}
    configured = settings(keys.pop("keyspace", None) or journal().keyspace, **keys)
    name = only(configured)
    schema.apply(configured)
    code, _, said = tagmill(settings.file(name), *command, "--pipeline", name)
    assert code == 2 and words in said and said.count("\n") == 1 and "Nothing was" in said
