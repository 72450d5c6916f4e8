"""The plugin writes with events-by-tag off, Tagmill builds the views, and the plugin reads every event by
tag.
"""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from tagmill.domain.timeuuid import ticks
from tests.support.auditing import audited
from tests.support.building import built, rows
from tests.support.delivery import deliver, only, verdicts

FIRST = f"{datetime.now(UTC) - timedelta(minutes=3):%Y%m%dT%H:%M}"
ODD = ("Заказ №'/ 1", 'a|b"c\\d %')


def journal_of(stack, keyspace, tag):
    """Return (persistence_id, sequence_nr, offset) of every event with a tag, in the order of the plugin's
    query.
    """
    found = stack.session.execute(
        f"SELECT persistence_id, sequence_nr, timestamp, tags FROM {keyspace}.messages"
    )
    tagged = [row for row in found if tag in (row.tags or ())]
    return [
        (row.persistence_id, row.sequence_nr, str(row.timestamp))
        for row in sorted(tagged, key=lambda row: ticks(row.timestamp))
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("bucket", "options"),
    [
        pytest.param("Day", ("--payload", "string"), marks=pytest.mark.long),
        (
            "Minute",
            (
                "--payload",
                "json-order",
                "--set",
                "pekko.persistence.cassandra.journal.target-partition-size=10",
                "--batch",
                "7",
            ),
        ),
        pytest.param("Hour", ("--payload", "bytes", "--replicated"), marks=pytest.mark.long),
    ],
    ids=["day", "minute, small partitions", "hour, replicated"],
)
def test_the_plugin_reads_what_is_built_for_it(bucket, options, stack, peer, settings, spark):
    plugin = peer()
    names = [part for tag in ODD for part in ("--tag-name", tag)]
    write = (
        "--pids",
        "12",
        "--events",
        "25",
        "--tags",
        "2",
        "--untagged-every",
        "5",
        "--bucket",
        bucket,
        *names,
        *options,
    )
    configured = settings(
        plugin.keyspace, tags=list(ODD), bucket_size=bucket, first_time_bucket=FIRST, views="tagmill"
    )
    for _ in range(2):  # the persistent actors recover and write more, and the build continues
        plugin.write(*write)
        assert built(configured, spark)["waiting"] == 0
        expected = journal_of(stack, plugin.keyspace, ODD[0])
        found = plugin.read(ODD[0], bucket, FIRST)
        assert sorted(found) == sorted(expected) and [line[2] for line in found] == [
            line[2] for line in expected
        ]
    assert len(rows(stack, plugin.keyspace, "tag_views")) == 2 * len(expected) == 2 * 12 * 40


@pytest.mark.timeout(900)
def test_build_refuses_after_application_numbered(stack, peer, settings, spark):
    """Let the plugin tag by itself behind a build: it continues Tagmill's numbers, and the next build
    refuses.
    """
    plugin = peer()
    write = ("--pids", "5", "--events", "10", "--tags", "1", "--linger", "3")
    plugin.write(*write)
    configured = settings(
        plugin.keyspace, tags=["tag-0"], bucket_size="Hour", first_time_bucket=FIRST, views="tagmill"
    )
    built(configured, spark)
    plugin.write(*write, tagging=True)
    assert sorted(plugin.read("tag-0", "Hour", FIRST)) == sorted(journal_of(stack, plugin.keyspace, "tag-0"))
    result = built(configured, spark)
    assert result["refused"] == 5
    assert "and 4 others was numbered by somebody else" in result["refusal"]
    assert len(rows(stack, plugin.keyspace, "tag_views")) == 5 * 20


@pytest.mark.long
@pytest.mark.timeout(900)
def test_builds_during_live_writer_deliver_events_once(stack, peer, settings, spark):
    """Build and deliver ten times while the plugin writes; each event is delivered once."""
    plugin = peer()
    write = ("--pids", "20", "--tags", "2", "--untagged-every", "5", "--batch", "3")
    plugin.write(*write, "--events", "5")
    configured = settings(
        plugin.keyspace,
        tags=["tag-0", "tag-1"],
        bucket_size="Minute",
        first_time_bucket=FIRST,
        views="tagmill",
        eventual_consistency_delay_seconds=1,
    )
    name, brought, begun = only(configured), [], time.monotonic()
    built(configured, spark)
    deliver(configured, name, spark)
    seconds = str(
        min(150, max(40, round(4 * (time.monotonic() - begun))))
    )  # long enough for some of the runs to fall into it
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(plugin.write, *write, "--events", "60", "--duration", seconds)
        for _ in range(9):
            built(configured, spark)
            brought.append((sum(run["rows"] for run in deliver(configured, name, spark)), writer.done()))
        writer.result()
    time.sleep(2)  # longer than eventual_consistency_delay_seconds
    assert built(configured, spark)["waiting"] == 0
    deliver(configured, name, spark)
    assert len([rows for rows, ended in brought if rows and not ended]) >= 2, brought
    found = stack.session.execute(f"SELECT persistence_id, sequence_nr, tags FROM {plugin.keyspace}.messages")
    expected = Counter((tag, row.persistence_id, row.sequence_nr) for row in found for tag in row.tags or ())
    assert len(expected) == 2 * 20 * 52
    assert (
        Counter(tuple(row) for row in stack.rows(f"SELECT tag, persistence_id, sequence_nr FROM {name}"))
        == expected
    )
    assert set(verdicts(configured, name).values()) == {"exactly once"}
    report = audited(configured, spark)
    assert report.agrees and report.journal == len(expected), report
