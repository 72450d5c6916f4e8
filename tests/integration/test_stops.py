"""Stops before the seal, so that nothing is delivered: unfit bucket sizes, broken keys, too many held
rows.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tagmill.delivery.tag_views import steps
from tagmill.errors import DataQualityStop
from tagmill.journal.tag_view_reader import VIEW_COLUMNS
from tagmill.ledger import schema
from tagmill.runs.storage import RunFiles
from tests.support.delivery import (
    OWNER,
    Unstoppable,
    clickhouse_rows,
    deliver,
    delivered_first,
    holds,
    only,
    quality,
    state,
    tagmill,
)
from tests.support.errors import raises
from tests.support.events import event, events, this_hour

BEGIN = this_hour() - timedelta(hours=1)
BOTH = pytest.mark.parametrize("small_run_rows", [50_000, 0], ids=["here", "by Spark"])


def stopped(settings, spark, *, held=()):
    """Plan and seal a run that the gate has to stop; assert that it wrote nothing but holds, and return the
    error's text.
    """
    schema.apply(settings)
    name = only(settings)
    planned = steps.plan(settings, name, owner=OWNER)
    with raises(DataQualityStop, pipeline=name, run=planned["run"]) as error:
        steps.seal(settings, name, planned["run"], planned["fence"], owner=OWNER, spark=lambda: spark)
    assert clickhouse_rows(settings, name) == [] and {
        persistence_id for _, persistence_id in holds(settings, name)
    } == set(held)
    assert state(settings, name, planned["run"]) == "ABANDONED"
    assert Path(error.value.docs_page).is_file()
    assert (
        RunFiles(settings.storage.root).folders(f"{name}/run-{planned['run']:08d}") == []
    )  # nothing was sealed
    text = str(error.value)
    assert "Nothing was sealed or delivered" in text and error.value.docs_page in text and "\n" not in text
    return text


@pytest.mark.parametrize(
    ("case", "configured", "right", "small_run_rows"),
    [
        pytest.param("gap-middle", "Day", "Hour", 0, marks=pytest.mark.long),
        ("gap-middle", "Minute", "Hour", 0),
        ("minute-buckets", "Hour", "Minute", 50_000),
    ],
)
def test_run_wrong_bucket_size_stops_naming_right_one(
    keyspace, settings, spark, case, configured, right, small_run_rows
):
    wrong = settings(keyspace(case), case=case, bucket_size=configured, small_run_rows=small_run_rows)
    text = stopped(wrong, spark)
    assert "bucket_size is wrong" in text and f'set bucket_size = "{right}"' in text


@BOTH
def test_run_too_many_held_rows_stops(journal, settings, spark, small_run_rows):
    """Stop at too large a share of held rows; the page names them, and the next run continues with the
    hold.
    """
    written = journal()
    written.both(events("sound", range(1, 9), BEGIN))
    written.view(row for row in events("broken", range(1, 5), BEGIN) if row["tag_pid_sequence_nr"] != 2)
    keys = {
        "tags": ["t"],
        "bucket_size": "Hour",
        "first_time_bucket": BEGIN.isoformat(),
    }
    keys |= {"name": f"p_too_much_held_{small_run_rows}", "small_run_rows": small_run_rows}
    strict = settings(written.keyspace, quality={"min_rows_for_share": 1, "min_ids_for_share": 1}, **keys)
    text = stopped(strict, spark, held=["broken"])
    assert (
        "18.182 % of the rows would be newly held back, 10 % are tolerated (quality.max_held_share_percent)"
        in text
    )
    assert (
        f"1 holds were recorded, the next run goes on without them: tagmill holds --pipeline {only(strict)}"
        in text
    )
    named = quality(strict, only(strict), 1)["reports"]["offending"]
    assert [(row["persistence_id"], row["tag_pid_sequence_nr"], row["reason"]) for row in named] == [
        ("broken", 3, "hole"),
        ("broken", 4, "hole"),
    ]
    assert (
        "broken" in Path(strict.storage.root, only(strict), "docs", "run-00000001", "index.html").read_text()
    )

    # The next run plans the range again and reads the recorded hold.
    runs = deliver(strict, only(strict), spark)
    assert runs[0]["run"] == 2 and sum(run["rows"] for run in runs) == 9
    assert len(clickhouse_rows(strict, only(strict))) == 9
    assert [hold.held_rows for hold in holds(strict, only(strict)).values()] == [2]


@BOTH
def test_run_broken_keys_stop_with_one_line(journal, settings, spark, monkeypatch, small_run_rows):
    """Stop once at numbers below 1, by the command line; the next run holds their persistence_id."""
    written = journal()
    written.both(events("sound", range(1, 9), BEGIN))
    written.view([event("broken", 0, BEGIN), event("broken", 1, BEGIN, sequence_nr=0)])
    configured = settings(
        written.keyspace,
        tags=["t"],
        bucket_size="Hour",
        first_time_bucket=BEGIN.isoformat(),
        small_run_rows=small_run_rows,
    )
    name = only(configured)
    schema.apply(configured)
    monkeypatch.setattr("tagmill.spark.session.session", lambda *_, **__: Unstoppable(spark))
    code, _, said = tagmill(settings.file(name), "run", "deliver", "--pipeline", name)
    (said,) = [
        line for line in said.splitlines() if not line.startswith("{")
    ]  # warnings of the gate are logged as JSON
    assert code == 3 and said.startswith("error: run 1 of pipeline"), said
    assert "2 rows without a persistence_id, or with a number or sequence_nr below 1" in said
    assert "t 'broken' number 0 (sequence_nr 0)" in said and "index.html" in said
    assert clickhouse_rows(configured, name) == [] and state(configured, name, 1) == "ABANDONED"
    # The stop happens once: the next run holds that persistence_id.
    deliver(configured, name, spark)
    assert [row.persistence_id for row in clickhouse_rows(configured, name)] == ["sound"] * 8
    ((_, held),) = holds(configured, name).items()
    assert (held.persistence_id, held.reason, held.held_rows) == ("broken", "broken_key", 2)


def test_run_held_rows_expiring_soon_are_warned_of(journal, settings, spark):
    written = journal()
    broken = [row for row in events("broken", range(1, 5), BEGIN) if row["tag_pid_sequence_nr"] != 2]
    written.view(broken[:1])
    for row in broken[1:]:
        columns = [name for name in VIEW_COLUMNS if row.get(name) is not None]
        written.session.execute(
            f"INSERT INTO {written.keyspace}.tag_views ({', '.join(columns)}) VALUES "
            f"({', '.join(['%s'] * len(columns))}) USING TTL 3600",
            [row[name] for name in columns],
        )
    keys = {"tags": ["t", "u"], "bucket_size": "Hour", "first_time_bucket": BEGIN.isoformat()}
    configured = settings(written.keyspace, **keys, quality={"max_held_share_percent": 100})
    name = only(configured)
    delivered_first(configured, spark)
    written.view([event("other", 1, datetime.now(UTC)), event("other", 1, datetime.now(UTC), "u")])
    (run,) = (run["run"] for run in deliver(configured, name, spark) if run["rows"] == 2)
    page = quality(configured, name, run)
    left = {line["tag"]: line["smallest_ttl_seconds"] for line in page["reports"]["tags"]}
    assert left["u"] is None and 3000 < left["t"] <= 3600
    assert [
        check["severity"]
        for check in page["checks"]
        if not check["success"] and check["name"] == "time_to_live"
    ] == ["warn"]
