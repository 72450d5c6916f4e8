"""Audits report every damage of the fixtures by kind, tag, persistence_id and number, and agree where nothing
is wrong.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from local.fixtures import WITHOUT_VIEWS, Case
from tagmill.audit.audit import raise_unless_it_agrees, told
from tagmill.audit.model import AuditReport
from tagmill.delivery.tag_views import steps
from tagmill.domain.batches.layout import NAMES
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import ticks
from tagmill.errors import AuditDiffers
from tagmill.ledger import schema
from tests.support.auditing import audited, findings, judged, load_together
from tests.support.building import built
from tests.support.delivery import OWNER, deliver, finish, only
from tests.support.errors import raises
from tests.support.events import event, events, offset, this_hour
from tests.support.stack import own_keyspaces

# The plugin's own reading does not notice four of these: gap-first, gap-whole-pid, late-previous-bucket and
# the row in LAST.
DAMAGED = [
    "gap-first", "gap-middle", "gap-whole-pid", "late-previous-bucket", "duplicate-nr", "swapped-order", "null-event", "split-brain",
]  # fmt: skip
HEALTHY = ["deleted-events", "odd-names", "partition-boundary"]
# (tag, persistence_id, tag_pid_sequence_nr) of a last row, which is deleted by CQL because no fixture lacks
# one.
LAST = ("tag-1", "gap-first/o-000007", 16)
TOLERANT = {"max_held_share_percent": 100, "max_wrong_bucket_share_percent": 100}


@pytest.fixture(scope="module")
def together(stack: Any) -> Iterator[Callable[[list[str]], str]]:
    """Yield a function that loads cases into one keyspace and returns its name; drop the keyspaces after the
    module.
    """
    with own_keyspaces(stack.session) as create:
        yield lambda cases: load_together(stack.session, create(), cases)


# -- damaged views


@pytest.fixture(scope="module")
def damaged(stack: Any, together: Any, module_settings: Any, spark: Any) -> tuple[Any, AuditReport]:
    """Deliver and audit one journal with all damaged cases and without the last row of one persistence_id."""
    journal = together(DAMAGED)
    key = ("tag_name", "timebucket", "timestamp", "persistence_id", "tag_pid_sequence_nr")
    rows = stack.session.execute(f"SELECT {', '.join(key)} FROM {journal}.tag_views")
    (last,) = (
        tuple(row) for row in rows if (row.tag_name, row.persistence_id, row.tag_pid_sequence_nr) == LAST
    )
    stack.session.execute(
        f"DELETE FROM {journal}.tag_views WHERE {' AND '.join(f'{name} = %s' for name in key)}", last
    )
    configured = module_settings(
        journal,
        tags=["tag-0", "tag-1"],
        bucket_size="Hour",
        first_time_bucket="20261121T06:00",
        repair_view=False,
        quality=TOLERANT,
    )
    schema.apply(configured)
    deliver(configured, only(configured), spark)
    return configured, audited(configured, spark)


# Findings per kind by (persistence_id, tag). Events of a gap that the journal has are delivered, but the view
# lacks them.
FOUND = {
    ("gap-first/o-000003", "tag-0"): {"missing_in_view": 1},
    ("gap-first/o-000007", "tag-1"): {"missing_in_view": 1, "missing_in_clickhouse": 1},
    ("gap-middle/o-000003", "tag-0"): {"missing_in_view": 1},
    ("gap-whole-pid/o-000003", "tag-0"): {"missing_in_view": 16, "missing_in_clickhouse": 16},
    ("late-previous-bucket/o-000003", "tag-0"): {"misplaced": 1},
    ("late-previous-bucket/o-000003", "tag-1"): {"differs_in_view": 1, "differs_in_clickhouse": 1},
    ("duplicate-nr/o-000003", "tag-0"): {"duplicated_in_view": 1},
    ("duplicate-nr/o-000003", "tag-1"): {"duplicated_in_view": 1},
    ("swapped-order/o-000003", "tag-0"): {"differs_in_view": 2, "differs_in_clickhouse": 2},
    ("null-event/o-000003", "tag-0"): {"differs_in_view": 1, "held": 12},
    ("split-brain/o-000001", "tag-0"): {"two_writers": 5},
    ("split-brain/o-000001", "tag-1"): {"two_writers": 5},
    ("split-brain/o-000001", None): {"two_writers": 1},
}


def test_audit_fixture_damage_is_reported_exactly(damaged):
    """Audit the damaged cases: the findings are exactly those in FOUND, and the audit does not agree."""
    configured, report = damaged
    found: dict[Any, Counter[str]] = defaultdict(Counter)
    for row in findings(configured, report):
        found[row["persistence_id"], row["tag"]][row["kind"]] += 1
    assert found == FOUND
    assert not report.agrees and sum(report.findings.values()) == sum(
        sum(kinds.values()) for kinds in FOUND.values()
    )


def test_finding_names_row_and_expected_number(damaged):
    """Name in each finding the affected row and the number that the plugin would give it."""
    configured, report = damaged
    rows = findings(configured, report)

    def of(persistence_id: str, kind: str, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(
            tuple(row[name] for name in columns)
            for row in rows
            if (row["persistence_id"], row["kind"]) == (persistence_id, kind)
        )

    place = ("tag", "sequence_nr", "expected_number", "journal_offset")
    assert of("gap-first/o-000003", "missing_in_view", *place) == [
        ("tag-0", 1, 1, "37e6b180-e586-11f1-bc52-179cca693e0c")
    ]
    assert of("gap-middle/o-000003", "missing_in_view", *place) == [
        ("tag-0", 6, 5, "33ab9fea-e586-11f1-b315-07da6a7238a4")
    ]
    assert [
        number for (number,) in of("gap-whole-pid/o-000003", "missing_in_view", "expected_number")
    ] == list(range(1, 17))
    assert of("gap-first/o-000007", "missing_in_view", "tag", "expected_number") == [LAST[::2]]
    lies = ("view_timebucket", "timebucket", "view_number", "expected_number")
    assert of("late-previous-bucket/o-000003", "misplaced", *lies) == [(1795244400000, 1795248000000, 5, 5)]
    assert of("late-previous-bucket/o-000003", "differs_in_view", *lies) == [
        (1795244400000, 1795248000000, 5, 5)
    ]
    # Of two rows of one event, the finding names the later one or the one with the higher number.
    assert of("duplicate-nr/o-000003", "duplicated_in_view", "tag", "view_number", "view_offset") == [
        ("tag-0", 5, "412ce278-e586-11f1-b6e2-33b1dd4a7a48"),
        ("tag-1", 17, "4124b8a5-e586-11f1-b6e2-33b1dd4a7a48"),
    ]
    assert {number for (number,) in of("split-brain/o-000001", "two_writers", "sequence_nr")} == set(
        range(13, 19)
    )


# -- healthy ones, and damage in ClickHouse


@pytest.fixture(scope="module")
def healthy(together: Any, module_settings: Any, spark: Any) -> tuple[Any, AuditReport]:
    """Deliver and audit one journal with all healthy cases."""
    tags = sorted({tag for case in HEALTHY for tag in Case(case).tags})
    configured = module_settings(
        together(HEALTHY), tags=tags, bucket_size="Hour", first_time_bucket="20261121T07:00", batch_rows=300
    )
    schema.apply(configured)
    deliver(configured, only(configured), spark)
    return configured, audited(configured, spark)


@pytest.mark.long
def test_audit_healthy_delivery_agrees(healthy, stack):
    """Audit the delivered healthy cases: it agrees, counts deleted events, and records its page and every
    audited bucket.
    """
    configured, report = healthy
    rows = sum(Case(case).table("tag_views").num_rows for case in HEALTHY)
    assert (report.findings, report.agrees, report.named, report.buckets) == ({}, True, [], [])
    assert (report.view, report.clickhouse, sum(line.pending for line in report.tags)) == (rows, rows, 0)
    # In the case deleted-events, 150 of 360 events are gone from the journal.
    assert (
        report.journal + sum(line.deleted for line in report.tags) == rows
        and sum(line.deleted for line in report.tags) > 100
    )
    (warning,) = report.warnings
    assert (
        "the journal knows nothing of 1 persistence ids that the view has (for example "
        "'deleted-events/o-000006')" in warning
    )
    raise_unless_it_agrees(report)
    words = judged(configured).values()
    assert sum(word.rows for word in words) == rows and all(word.agrees for word in words)
    page = Path(report.docs).read_text()
    assert "agrees" in page and "<script" not in page
    assert (Path(report.docs).parent / "expectations.html").exists()


def test_every_damage_in_clickhouse_is_found(healthy, stack, spark):
    """Delete, duplicate, change and add rows in ClickHouse: the audit names each row, and the batch of each
    that ClickHouse has.
    """
    configured, _ = healthy
    name = only(configured)
    rows = stack.rows(
        f"SELECT tag, persistence_id, sequence_nr, toString(batch_id) FROM `{name}` WHERE tag = 'tag-0' "
        "AND tag_pid_sequence_nr = 10 AND startsWith(persistence_id, 'partition-boundary/')"
    )
    gone, twice, changed, copied = sorted(rows)[:4]
    ((batch, batch_rows),) = stack.rows(
        f"SELECT toString(batch_id), count() FROM `{name}` WHERE tag = '100%' GROUP BY batch_id ORDER BY "
        "batch_id LIMIT 1"
    )
    where = "tag = '{}' AND persistence_id = '{}' AND sequence_nr = {}"
    columns = ", ".join(f"`{column}`" for column in [*NAMES, "batch_id", "generation"])
    extra = columns.replace("`persistence_id`", "'nobody'")
    client = stack.client(settings={"mutations_sync": 2})
    for statement in (
        f"ALTER TABLE `{name}` DELETE WHERE {where.format(*gone)}",
        f"INSERT INTO `{name}` ({columns}) SELECT {columns} FROM `{name}` WHERE {where.format(*twice)}",
        f"ALTER TABLE `{name}` UPDATE event = concat(event, ' ') WHERE {where.format(*changed)}",
        f"INSERT INTO `{name}` ({columns}) SELECT {extra} FROM `{name}` WHERE {where.format(*copied)}",
        f"ALTER TABLE `{name}` DELETE WHERE batch_id = '{batch}'",
    ):
        client.command(statement)
    client.close()
    report = audited(configured, spark)
    assert {kind.value: count for kind, count in report.findings.items()} == {
        "missing_in_clickhouse": 1 + batch_rows,
        "extra_in_clickhouse": 1,
        "duplicated_in_clickhouse": 1,
        "differs_in_clickhouse": 1,
    }
    found = [
        (row["kind"], row["tag"], row["persistence_id"], row["sequence_nr"])
        for row in findings(configured, report)
    ]
    assert {row for row in found if row[1] == "tag-0"} == {
        ("missing_in_clickhouse", *gone[:3]),
        ("duplicated_in_clickhouse", *twice[:3]),
        ("differs_in_clickhouse", *changed[:3]),
        ("extra_in_clickhouse", "tag-0", "nobody", copied[2]),
    }
    assert {row["batch_id"] for row in findings(configured, report)} == {
        None,
        twice[3],
        changed[3],
        copied[3],
    }
    with raises(AuditDiffers, pipeline=name) as error:
        raise_unless_it_agrees(report)
    assert (error.value.exit_code, error.value.docs_page) == (3, report.docs)
    assert (report.audit, told(report)["audit"]) == (2, 2)
    # Only the files of the newest audit are kept.
    assert [folder.name for folder in (Path(configured.storage.root) / name / "audit").iterdir()] == [
        "00000002"
    ]
    words = [(tag, word.agrees) for (tag, _), word in judged(configured).items()]
    assert {agrees for tag, agrees in words if tag in ("tag-0", "100%")} == {False}
    assert {agrees for tag, agrees in words if tag == "tag-1"} == {True}


# -- views that Tagmill keeps, sizes, old layouts


@pytest.mark.long
def test_audit_view_kept_by_tagmill_agrees(stack, keyspace, settings, spark):
    """Agree with a view that Tagmill builds; with a wrong bucket size, report its rows as misplaced and
    warn.
    """
    journal = keyspace("minute-buckets", WITHOUT_VIEWS)
    configured = settings(journal, case="minute-buckets", views="tagmill")
    built(configured, spark)
    deliver(configured, only(configured), spark)
    report = audited(configured, spark)
    assert (report.findings, report.journal, report.view, report.clickhouse) == ({}, 2000, 2000, 2000)
    wrong = settings(
        journal,
        case="minute-buckets",
        bucket_size="Hour",
        first_time_bucket="20260101T00:00",
        quality={"max_partition_rows": 50},
    )
    schema.apply(wrong)
    report = audited(wrong, spark, tags=["tag-0"])
    rows = stack.session.execute(f"SELECT tag_name, timebucket FROM {journal}.tag_views")
    in_place = sum(row.tag_name == "tag-0" and row.timebucket % 3_600_000 == 0 for row in rows)
    assert {kind.value: count for kind, count in report.findings.items()} == {"misplaced": 1000 - in_place}
    assert [line.pending for line in report.tags] == [1000]
    large, early = report.warnings
    assert "partitions of tag_views have more than 50 rows" in large and "Minute" in large
    assert "first_time_bucket 20260101T00:00 is 7784 Hour buckets before the first event" in early


def test_what_cannot_be_read_has_a_name(stack, keyspace, settings, spark):
    """Name unreadable events, gaps of the journal and missing rows of the view, and warn of events with many
    tags.
    """
    journal = keyspace("legacy-tags")
    columns = (
        "persistence_id, partition_nr, sequence_nr, timestamp, writer_uuid, event, ser_id, "
        "ser_manifest, event_manifest, tags"
    )
    now = datetime(2026, 11, 21, 8, tzinfo=UTC)
    for number, moment, payload in (
        (1, now, b"e"),
        (2, now, None),
        (5, now, b"e"),
        (6, now + timedelta(days=900), b"e"),
    ):
        stack.session.execute(
            f"INSERT INTO {journal}.messages ({columns}) VALUES (%s, 0, %s, %s, 'w', %s, 4, '', '', %s)",
            (
                "odd",
                number,
                offset(moment),
                payload,
                {"tag-0", "other", *(f"tag {n}" for n in range(10 if number == 5 else 0))},
            ),
        )
    configured = settings(journal, case="legacy-tags")
    schema.apply(configured)
    report = audited(configured, spark)
    assert {kind.value: count for kind, count in report.findings.items()} == {
        "unreadable": 3 * 410 + 2,
        "journal_hole": 1,
        "missing_in_view": 2,
    }
    own = [
        (row["kind"], row["tag"], row["sequence_nr"], row["detail"])
        for row in findings(configured, report)
        if row["persistence_id"] == "odd"
    ]
    assert sorted(own, key=str) == [
        ("journal_hole", None, 3, "sequence_nr 3 to 4 are missing in front of 5"),
        ("missing_in_view", "tag-0", 1, "tag_views has no row of this event"),
        ("missing_in_view", "tag-0", 5, "tag_views has no row of this event"),
        ("unreadable", "tag-0", 2, "the event or its serializer id is null"),
        ("unreadable", "tag-0", 6, "the timestamp is no TimeUUID, or of another age"),
    ]
    (many,) = (warning for warning in report.warnings if "tags (" in warning)
    assert "1 events have more than 10 tags (at most 12, for example of 'odd')" in many


# -- while others are at work


@pytest.mark.long
def test_audit_during_writes_finds_nothing(module_journal, settings, spark):
    """Audit while the application writes and only part is delivered: rows that arrive meanwhile are not
    findings.
    """
    journal = module_journal()
    configured = settings(
        journal.keyspace,
        tags=["t"],
        bucket_size="Minute",
        first_time_bucket=(datetime.now(UTC) - timedelta(hours=1)).isoformat(),
        eventual_consistency_delay_seconds=3,
        look_back_seconds=1,
    )
    schema.apply(configured)
    stop, written = threading.Event(), Counter[str]()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for id_ in ("a", "b", "c"):
                record = event(id_, number, datetime.now(UTC))
                record["timebucket"] = BucketSize.MINUTE.start(ticks(record["timestamp"]))
                journal.messages([record])
                journal.view([record])
                written[id_] += 1
            time.sleep(0.01)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        time.sleep(5)
        planned = steps.plan(configured, only(configured), owner=OWNER)
        assert finish(configured, only(configured), spark, planned)["rows"] > 0
        before = sum(written.values())
        report = audited(configured, spark)
        assert sum(written.values()) > before, "nothing was written meanwhile"
    finally:
        stop.set()
        writer.join()
    assert report.findings == {}
    assert 0 < report.clickhouse < report.view <= before + 50


@pytest.mark.parametrize(
    ("hidden", "untagged", "shift"),
    [(0, 0, 1), (2, 0, -2), (2, 2, -1)],
    ids=["from the first", "behind start_from", "behind events without tags"],
)
def test_numbers_wrong_in_all_stores_are_found(
    journal: Any, settings: Any, spark: Any, hidden: int, untagged: int, shift: int
) -> None:
    """Deliver a view whose numbers begin at another than the plugin gives: all sums agree, and the audit names each row."""
    begin, made = this_hour() - timedelta(hours=2), journal()
    rows = [row for name in "ab" for row in events(name, range(1, 7), begin)]
    for row in rows:
        row["tags"] = {"t"} if row["sequence_nr"] > untagged else set()
        row["tag_pid_sequence_nr"] += shift if row["persistence_id"] == "b" else -untagged
    made.messages(rows)
    made.view(row for row in rows if row["sequence_nr"] > hidden)
    configured = settings(
        made.keyspace,
        tags=["t"],
        bucket_size="Hour",
        first_time_bucket=begin.isoformat(),
        start_from={"t": (begin + timedelta(seconds=hidden, milliseconds=500)).isoformat()},
        first_seen="assume_first",
        look_back_seconds=0,
        long_look_back_seconds=0,
    )
    schema.apply(configured)
    deliver(configured, only(configured), spark)
    report = audited(configured, spark)
    assert report.view == report.clickhouse == report.journal == 2 * (6 - hidden)
    assert {kind.value: count for kind, count in report.findings.items()} == {"wrong_number": 6 - hidden}
