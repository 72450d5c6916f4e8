"""Verdicts of `status`, `check` and the page for pipelines that are not well, or of which too little is
known.
"""

import json
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from tagmill.audit.audit import message
from tagmill.config.settings import Settings
from tagmill.delivery.tag_views import steps
from tagmill.delivery.topics import destination_table
from tagmill.domain.timeuuid import ticks, to_datetime
from tagmill.errors import ConfigurationError, TagmillError
from tagmill.ledger import schema
from tests.conftest import toml_value
from tests.support.auditing import audited
from tests.support.delivery import OWNER, as_row, clickhouse_rows, deliver, finish, only, tagmill
from tests.support.events import event, events, this_hour
from tests.support.kafka import create, delete
from tests.support.overview import page
from tests.support.topics import made

BEGIN = this_hour() - timedelta(hours=2)
ALL_IN_SIGHT = {"look_back_seconds": 4 * 3600, "long_look_back_seconds": 4 * 3600}


class Case:
    """A pipeline of tag views with one tag, and its command line."""

    def __init__(self, journal, settings, spark, **keys):
        self.journal, self.spark = journal, spark
        wanted = {
            "tags": ["t"],
            "bucket_size": "Hour",
            "first_time_bucket": BEGIN.isoformat(),
            **ALL_IN_SIGHT,
            **keys,
        }
        self.settings = settings(journal.keyspace, **wanted)
        self.name = only(self.settings)
        self.file = settings.file(self.name)
        schema.apply(self.settings)

    def deliver(self):
        """Deliver until nothing is new."""
        return deliver(self.settings, self.name, self.spark)

    def say(self, *command):
        """Return exit status and verdicts of a command."""
        return say(self.file, *command)


def say(file, *command):
    """Return exit status and verdicts of a command."""
    code, out, _ = tagmill(file, *command, "--json")
    return code, [line["verdict"] for line in json.loads(out)]


@pytest.fixture
def case(journal, settings, spark):
    """Return make(**keys), which makes a pipeline of tag views over a new journal."""
    return lambda **keys: Case(journal(), settings, spark, **keys)


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    """Yield a factory of topics with products, each delivered by its own pipeline."""
    yield from made(stack, kafka, spark, tmp_path)


def lose_one_and_double_another(stack, table):
    """Delete the row of number 2 and insert that of number 3 again under its own batch."""
    stack.rows(f"ALTER TABLE `{table}` DELETE WHERE sequence_nr = 2 SETTINGS mutations_sync = 2")
    stack.rows(f"INSERT INTO `{table}` SELECT * FROM `{table}` WHERE sequence_nr = 3")


def test_status_lost_and_doubled_row_claims_no_proof(case, stack, tmp_path):
    """Lose one row and double another, so that counts agree: only a check or an audit may say that each is
    there once.
    """
    one = case()
    records = events("a", range(1, 7), BEGIN, "t")
    one.journal.both(records)
    one.deliver()
    lose_one_and_double_another(stack, one.name)
    assert one.say("status") == (0, ["counts agree"])
    code, (verdict,) = one.say("check")
    assert (
        code == 3
        and verdict.startswith("differs: batch ")
        and "other values" in verdict
        and "(and 1 more)" in verdict
    )
    code, (verdict,) = one.say("status")
    assert code == 3 and "other values" in verdict and "(checked at 20" in verdict
    shown = page(one.file, tmp_path / "airflow")
    assert (
        '<td class="bad">differs: batch' in shown
        and 'class="ok">' not in shown.split("<h2>")[1].split("closed (UTC)")[0]
    )
    batch = str(stack.rows(f"SELECT any(batch_id) FROM `{one.name}`")[0][0])
    code, _, said = tagmill(
        one.file, "batches", "resend", batch, "--run", "1", "-p", one.name, "--why", "a test", "--yes"
    )
    assert code == 0, said
    code, (verdict,) = one.say("check")
    assert code == 0 and verdict.startswith("exactly once, checked at ")
    assert clickhouse_rows(one.settings, one.name) == sorted(map(as_row, records))


def test_status_rows_of_view_not_read_are_counted(case, stack, tmp_path):
    """Say what no run has read, also where the view has lost as many delivered rows."""
    one = case()
    records = events("a", range(1, 4), BEGIN, "t")
    one.journal.both(records)
    one.deliver()
    assert one.say("check")[0] == 0
    now = datetime.now(UTC)
    more = [event("a", number, now + number * timedelta(milliseconds=1)) for number in (4, 5, 6)]
    one.journal.both(more)
    assert one.say("status") == (0, ["3 in the view not delivered"])
    assert '<td class="open">3 in the view not delivered</td>' in page(one.file, tmp_path / "airflow")
    bucket = int(BEGIN.timestamp() * 1000)
    stack.session.execute(
        f"DELETE FROM {one.journal.keyspace}.tag_views WHERE tag_name = 't' AND timebucket = {bucket}"
    )
    said = "3 in the view not delivered; the view has 3 rows fewer than were delivered"
    assert one.say("check") == (3, [said])
    one.deliver()
    code, (verdict,) = one.say("status")
    assert code == 0 and verdict.startswith("counts agree; exactly once when checked")
    assert clickhouse_rows(one.settings, one.name) == sorted(map(as_row, [*records, *more]))


def test_status_after_check_keeps_proof_until_rows_change(case, stack, tmp_path):
    """Trust a check for as long as the destination stays the same; a later run leaves it valid for what it
    covered.
    """
    one = case()
    one.journal.both(events("a", range(1, 4), BEGIN, "t"))
    one.deliver()
    assert one.say("check")[0] == 0
    code, (verdict,) = one.say("status")
    assert (
        code == 0 and verdict.startswith("exactly once, checked at 20") and verdict.endswith(", up to run 1")
    )
    assert f'<td class="ok">{verdict}</td>' in page(one.file, tmp_path / "airflow")
    one.journal.both(events("a", range(4, 7), BEGIN + timedelta(minutes=5), "t"))
    one.deliver()
    code, (verdict,) = one.say("status")
    assert (
        code == 0
        and verdict.startswith("counts agree; exactly once when checked at 20")
        and verdict.endswith("up to run 1")
    )
    assert one.say("check")[0] == 0
    lose_one_and_double_another(stack, one.name)
    assert one.say("status")[1][0].startswith("counts agree; exactly once when checked")


def test_audit_last_rows_without_newer_ones_are_judged(case, stack, spark):
    """Audit the newest delivered rows although no event follows; `status` repeats the audit's verdict."""
    one = case()
    records = events("a", range(1, 21), BEGIN, "t")
    one.journal.both(records)
    one.deliver()
    report = audited(one.settings, spark)
    assert (report.agrees, report.clickhouse, [line.pending for line in report.tags]) == (True, 20, [0])
    code, (verdict,) = one.say("status")
    assert code == 0 and verdict.startswith("exactly once, audited at 20") and ", up to 20" in verdict
    stack.rows(f"ALTER TABLE `{one.name}` DELETE WHERE sequence_nr = 20 SETTINGS mutations_sync = 2")
    stack.rows(f"INSERT INTO `{one.name}` SELECT * FROM `{one.name}` WHERE sequence_nr = 1")
    assert one.say("status")[1][0].startswith("counts agree; exactly once when audited at 20")
    report = audited(one.settings, spark)
    assert {kind.value: count for kind, count in report.findings.items()} == {
        "missing_in_clickhouse": 1,
        "duplicated_in_clickhouse": 1,
    }
    code, (verdict,) = one.say("status")
    assert (
        code == 3 and verdict.startswith("differs: audit 2 found ") and "1 missing_in_clickhouse" in verdict
    )


def test_audit_with_pending_rows_proves_less(case, spark):
    """A row that came late, or after the last run, is pending: a proof ends in front of it, also when it is delivered."""
    one = case(look_back_seconds=3600, long_look_back_seconds=3600)
    now = datetime.now(UTC) - timedelta(minutes=2)
    one.journal.both([event("a", number, now + number * timedelta(seconds=1)) for number in (1, 2, 3)])
    one.deliver()
    late = event("b", 1, now + timedelta(milliseconds=1500))
    one.journal.both([late])
    report = audited(one.settings, spark)
    (of_t,) = report.tags
    assert report.agrees and of_t.pending == 1 and of_t.up_to < ticks(late["timestamp"])
    day, at = f"{to_datetime(of_t.up_to):%Y-%m-%d %H:%M:%S}".split()
    assert message(report).endswith(f"; tags with pending rows are proven up to {day}T{at}Z only")
    assert f"<td>{day}T{at}" in Path(report.docs).read_text()
    code, (verdict,) = one.say("status")
    assert code == 0 and verdict.startswith("counts agree; exactly once when audited at 20")
    assert verdict.endswith(f", up to {day} {at}")
    one.deliver()
    assert one.say("status") == (0, [verdict])

    file = Path(one.settings.storage.root) / report.folder / "report.json"
    of_before = json.loads(file.read_text())  # as earlier versions wrote it
    del of_before["tags"][0]["up_to"]
    file.write_text(json.dumps(of_before))
    assert one.say("status") == (0, ["counts agree"])


def test_audit_before_lagging_run_proves_less(case, spark):
    """Rows behind the watermark wait for a run: once it has delivered them, the audit's proof still ends there."""
    one = case()
    one.journal.both(events("a", range(1, 4), BEGIN, "t"))
    one.deliver()
    waiting = [event("a", number, datetime.now(UTC)) for number in (4, 5)]
    one.journal.both(waiting)
    report = audited(one.settings, spark)
    (of_t,) = report.tags
    assert report.agrees and of_t.pending == 2
    assert ticks(waiting[0]["timestamp"]) > of_t.up_to > ticks(event("a", 3, BEGIN)["timestamp"])
    one.deliver()
    code, (verdict,) = one.say("status")
    up_to = f"{to_datetime(of_t.up_to):%Y-%m-%d %H:%M:%S}"
    assert code == 0 and verdict.startswith("counts agree; exactly once when audited at 20")
    assert verdict.endswith(f", up to {up_to}")


def test_audit_of_one_tag_leaves_other_verdicts(case, stack, spark, tmp_path):
    """Keep what an audit found of a tag until one that judges the tag agrees, and the proof of one that was well."""
    one = case(tags=["t", "u"])
    one.journal.both(events("a", range(1, 7), BEGIN, "t") + events("b", range(1, 7), BEGIN, "u"))
    one.deliver()
    is_t, kept = f"`{one.name}` WHERE tag = 't'", f"{one.name}_kept"
    stack.rows(f"CREATE TABLE {kept} ENGINE = Memory AS SELECT * FROM {is_t}")
    stack.rows(
        f"ALTER TABLE `{one.name}` DELETE WHERE tag = 't' AND sequence_nr = 2 SETTINGS mutations_sync = 2"
    )
    stack.rows(f"INSERT INTO `{one.name}` SELECT * FROM {is_t} AND sequence_nr = 3")
    assert not audited(one.settings, spark).agrees
    before = one.say("status")
    assert (before[0], before[1][0][:23]) == (3, "differs: audit 1 found ")
    assert audited(one.settings, spark, tags=["u"]).agrees
    code, (of_t, of_u) = one.say("status")
    assert (code, of_t) == (3, before[1][0]) and of_u.startswith("exactly once, audited at 20")
    shown = page(one.file, tmp_path / "airflow")
    assert (
        shown.index("Audit 2 of u (")
        < shown.index("Audit 1 (")
        < shown.index("does not agree: 1 duplicated_in")
    )
    listed = json.loads(tagmill(one.file, "audits", "--json")[1])
    assert [(row["audit"], row["tags"]) for row in listed] == [(2, "u"), (1, None)]

    stack.rows(f"ALTER TABLE `{one.name}` DELETE WHERE tag = 't' SETTINGS mutations_sync = 2")
    stack.rows(f"INSERT INTO `{one.name}` SELECT * FROM {kept}")
    stack.rows(f"DROP TABLE {kept}")
    assert audited(one.settings, spark, tags=["t"]).agrees
    code, (of_t, of_u) = one.say("status")
    assert code == 0 and of_t.startswith("exactly once, audited at 20") and "audited at 20" in of_u
    folder = Path(one.settings.storage.root) / one.name / "audit"
    assert sorted(path.name for path in folder.iterdir()) == ["00000002", "00000003"]
    # Of audit 2 only what status and people read is left, not the rows that were staged.
    assert sorted(path.name for path in (folder / "00000002").iterdir()) == [
        "buckets",
        "findings",
        "report.json",
    ]


def test_status_rows_too_many_ends_with_3(case, stack):
    one = case()
    one.journal.both(events("a", range(1, 6), BEGIN, "t"))
    one.deliver()
    stack.rows(f"INSERT INTO `{one.name}` SELECT * FROM `{one.name}`")
    assert one.say("status") == (3, ["differs: +5 rows in ClickHouse"])


def test_status_failing_run_counts_failures_until_success(case, monkeypatch):
    """Count each failed attempt and keep its message without passwords, until a run succeeds."""
    one = case()
    records = events("a", range(1, 4), BEGIN, "t")
    one.journal.both(records)
    planned = steps.plan(one.settings, one.name, owner=OWNER)

    def broken(*_):
        raise TagmillError("http://reader:secret@host refused\nand more")

    with monkeypatch.context() as patched:
        patched.setattr("tagmill.delivery.tag_views.seal.seal", broken)
        for _ in range(12):
            planned = steps.plan(one.settings, one.name, owner=OWNER)
            with pytest.raises(TagmillError):
                finish(one.settings, one.name, one.spark, planned)
    code, (verdict,) = one.say("status")
    assert (
        code == 3
        and verdict.startswith("failed 12 times since 20")
        and "seal of run 1: http://***@host refused" in verdict
    )
    assert "secret" not in verdict and "and more" not in verdict
    (run,) = json.loads(tagmill(one.file, "runs", "--json")[1])
    assert run["state"] == "PLANNED" and run["reason"] == verdict
    one.deliver()
    assert one.say("status") == (0, ["counts agree"])
    assert clickhouse_rows(one.settings, one.name) == sorted(map(as_row, records))


def test_status_run_killed_each_time_is_wrong(case):
    """Let a run end behind its plan four times, first with its process killed: `status` names how often it
    began, as no failure was recorded.
    """
    one = case()
    records = events("a", range(1, 4), BEGIN, "t")
    one.journal.both(records)
    program = (
        "import os, signal, sys; from pathlib import Path; from tagmill.config.settings import Settings; "
        "from tagmill.delivery.tag_views import steps; "
        "from tagmill.ledger.lease import this_process; "
        "steps.plan(Settings.load(Path(sys.argv[1])), sys.argv[2], owner=this_process()); "
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    said = []
    for attempt in range(4):
        if attempt:
            steps.plan(one.settings, one.name, owner=OWNER)
        else:
            killed = [sys.executable, "-c", program, str(one.file), one.name]
            assert subprocess.run(killed, timeout=120, check=False).returncode == -signal.SIGKILL
        said.append(one.say("status"))
    begun = [f", begun {times} times" if times > 1 else "" for times in range(1, 5)]
    assert said == [
        (0 if times < 4 else 3, [f"run 1 is not closed (PLANNED{begun[times - 1]})"]) for times in range(1, 5)
    ]
    one.deliver()
    assert one.say("status") == (0, ["counts agree"])
    assert clickhouse_rows(one.settings, one.name) == sorted(map(as_row, records))
    # A run that is refused before it plans counts as a failure from the first time.
    chosen = one.settings.pipelines[one.name].model_copy(update={"view_table": "elsewhere"})
    with pytest.raises(ConfigurationError):
        steps.plan(one.settings.model_copy(update={"pipelines": {one.name: chosen}}), one.name, owner=OWNER)
    code, (verdict,) = one.say("status")
    assert (
        code == 3 and verdict.startswith("failed at 20") and ": plan: " in verdict and "elsewhere" in verdict
    ), verdict
    assert one.deliver() == [] and one.say("status") == (0, ["counts agree"])


def test_status_of_topic_names_what_waits(shop):
    """Name unread records, ten behind an open transaction, and those of a recreated topic."""
    one = shop()
    for product in range(4):
        one.send(product)
    one.topic.flush()
    assert say(one.file, "status") == (0, ["waiting 4"])
    one.deliver()
    with one.topic.transaction():
        for product in range(10, 20):
            one.send(product)
        one.topic.flush()
        assert say(one.file, "status") == (0, ["10 behind an open transaction"])
        assert say(one.file, "check") == (3, ["10 behind an open transaction"])
    one.deliver()
    code, (verdict,) = say(one.file, "status")
    assert code == 0 and verdict.startswith("counts agree; exactly once when checked at 20")
    delete(one.kafka.port, one.name)
    create(one.kafka.port, one.name)
    for product in range(150):
        one.send(product)
    one.topic.flush()
    code, (verdict,) = say(one.file, "status")
    assert code == 3 and "made anew" in verdict and verdict.endswith("waiting 150")
    with pytest.raises(TagmillError):
        one.deliver()
    code, (verdict,) = say(one.file, "status")
    assert code == 3 and "failed at 20" in verdict and "plan: " in verdict
    assert one.products() == [*range(4), *range(10, 20)]


def test_all_pipelines_one_unreadable_others_are_shown(case, stack, tmp_path):
    """Break four pipelines by a missing table, a missing keyspace, a foreign table and a stopped broker: each
    line says why.
    """
    one = case()
    one.journal.both(events("a", range(1, 4), BEGIN, "t"))
    one.deliver()
    other = f"other_{uuid4().hex[:8]}"
    stack.rows(f"CREATE TABLE {other} (a Int64) ENGINE = MergeTree ORDER BY a")
    alike = f"alike_{uuid4().hex[:8]}"
    stack.rows(f"CREATE TABLE {alike} AS `{one.name}`")
    common = {"tags": ["t"], "bucket_size": "Hour", "first_time_bucket": BEGIN.isoformat()}
    more = {
        "no_table": {**common, "keyspace": one.journal.keyspace, "destination": f"missing_{uuid4().hex[:8]}"},
        "no_keyspace": {**common, "keyspace": f"missing_{uuid4().hex[:8]}", "destination": alike},
        "other_table": {**common, "keyspace": one.journal.keyspace, "destination": other},
        "no_broker": {
            "kind": "topic",
            "topics": ["x"],
            "format": "json",
            "destination": f"topic_{uuid4().hex[:8]}",
        },
    }
    lines = ["[kafka]", 'bootstrap_servers = ["127.0.0.1:9"]', "request_timeout_seconds = 2"]
    for name, keys in more.items():
        lines += [f"[pipelines.{name}]", *(f"{key} = {toml_value(value)}" for key, value in keys.items())]
    file = tmp_path / "all.toml"
    file.write_text(one.file.read_text() + "\n".join(lines) + "\n")
    destination_table.apply(Settings.load(file))
    for command, worst in (("status", 2), ("check", 2)):
        code, out, err = tagmill(file, command, "--json")
        assert out, err
        verdicts = {line["pipeline"]: line["verdict"] for line in json.loads(out)}
        assert code == worst, (verdicts, err)
        assert verdicts[one.name].startswith("counts agree" if command == "status" else "exactly once")
        unread = {name for name, verdict in verdicts.items() if verdict.startswith("not known: ")}
        assert unread == {*more} and "127.0.0.1:9" in verdicts["no_broker"], verdicts
    for command in ("runs", "batches", "holds", "audits", "deadletters list -p no_broker"):
        code, out, err = tagmill(file, *command.split())
        assert code == 0, (command, err)
    shown = page(file, tmp_path / "airflow")
    assert shown.count("not known: ") == len(more) and "exactly once, checked at" in shown
    code, _, err = tagmill(file, "status", "--pipeline", "no_table")
    assert code == 2 and err.startswith("error: ")


def test_rows_before_a_tags_start_wait_for_nothing(case):
    """Start a tag within the view's history: what is before is another's, and a check can be green."""
    start = BEGIN + timedelta(hours=1)
    one = case(start_from={"t": start.isoformat()}, first_seen="assume_first")
    one.journal.view(
        events("a", range(1, 4), start - timedelta(seconds=2), "t")
    )  # the last one is at the start
    one.journal.view(events("b", range(1, 4), BEGIN, "t") + events("c", range(1, 4), start, "t"))
    one.deliver()
    code, (verdict,) = one.say("check")
    assert code == 0 and verdict.startswith("exactly once"), verdict


def test_check_counts_rows_once_old_enough(case, tmp_path):
    """Write rows younger than the delay, also of a tag that was never delivered and in the next bucket: they wait
    for nothing until they are old enough. A longer delay leaves what is delivered delivered.
    """
    one = case(eventual_consistency_delay_seconds=3600, tags=["t", "u"])
    other = tmp_path / "no_delay.toml"
    other.write_text(one.file.read_text().replace("_delay_seconds = 3600", "_delay_seconds = 0"))
    now = datetime.now(UTC)
    one.journal.both([event("d", 1, now, "u"), *events("a", range(1, 4), BEGIN, "t")])
    none, three = "exactly once, checked at", "3 in the view not delivered"
    for file, waiting in ((one.file, [three, none]), (other, [three, "1 in the view not delivered"])):
        code, verdicts = say(file, "check")
        assert (
            code == 3 and [word[: len(said)] for word, said in zip(verdicts, waiting, strict=True)] == waiting
        )
    one.deliver()
    one.journal.both([event("b", 1, now), event("c", 1, now + timedelta(hours=1))])
    code, verdicts = one.say("check")
    assert code == 0 and all(verdict.startswith(none) for verdict in verdicts), verdicts
    assert say(other, "check") == (3, ["1 in the view not delivered"] * 2)
    deliver(Settings.load(other), one.name, one.spark)
    code, verdicts = one.say("check")
    assert code == 0 and all(verdict.startswith(none) for verdict in verdicts), verdicts


def test_check_lost_rows_hide_no_undelivered_one(case, stack):
    """Lose two delivered rows of the view, and write one that is not delivered behind the look-back windows."""
    near = {"look_back_seconds": 60, "long_look_back_seconds": 60}
    one = case(**near, look_back_windows_seconds=[])
    first = events("a", range(1, 4), BEGIN, "t")
    one.journal.both(first + events("z", range(1, 4), BEGIN + timedelta(minutes=70), "t"))
    one.deliver()
    for lost in first[:2]:
        key = (lost["timebucket"], lost["timestamp"])
        where = "tag_name = 't' AND timebucket = %s AND timestamp = %s"
        stack.session.execute(f"DELETE FROM {one.journal.keyspace}.tag_views WHERE {where}", key)
    shrunk = "the view has 2 rows fewer than were delivered"
    code, (verdict,) = one.say("check")
    assert code == 0 and verdict.endswith(shrunk), verdict
    one.journal.both([event("late", 1, BEGIN + timedelta(minutes=65))])
    assert one.say("check") == (3, [f"1 in the view not delivered; {shrunk}"])


def test_check_row_in_wrong_bucket_counts_once(case):
    """Deliver a row that lies in the bucket before that of its time: it is not called undelivered, nor lost."""
    one = case(quality={"max_wrong_bucket_share_percent": 100})
    rows = events("a", range(1, 4), BEGIN + timedelta(minutes=70), "t")
    rows[2]["timebucket"] -= 3_600_000
    one.journal.both(rows)
    one.deliver()
    code, (verdict,) = one.say("check")
    assert code == 0 and verdict.startswith("exactly once, checked at ") and ";" not in verdict, verdict


def test_held_rows_same_number_everywhere(case):
    """Compare the held rows in a run's table, its message, `status` and the view, also if look-back reads
    them again.
    """
    one = case()
    written = [*events("a", (1, 2, 4), BEGIN, "t"), *events("b", range(1, 30), BEGIN, "t")]
    closed = events("closed", (1, 2, 3, 4, 7, 8, 10), BEGIN, "t")  # 5 and 6 never come; 10 waits for 9
    written += closed
    one.journal.view(written[:-1])
    one.deliver()
    close = ("holds", "close", "--tag", "t", "--persistence-id", "closed", "--pipeline", one.name)
    assert tagmill(one.file, *close, "--why", "a test", "--yes")[0] == 0
    one.deliver()
    one.journal.view(closed[-1:])
    one.deliver()
    one.journal.view(
        more := [event for event in events("a", range(1, 6), BEGIN, "t") if event["tag_pid_sequence_nr"] == 5]
    )
    written += more
    for late in ("c", "d"):  # rows in the look-back window make the run read all of it again
        one.journal.view(more := events(late, range(1, 3), BEGIN, "t"))
        written += more
        (run,) = one.deliver()
        held = len(written) - len(clickhouse_rows(one.settings, one.name))
        assert (run["held"], [line["held"] for line in run["tags"]]) == (3, [3]) and held == 3
        assert run["message"].endswith("3 held")
        code, verdicts = one.say("status")
        assert (code, verdicts) == (0, ["3 held"])
