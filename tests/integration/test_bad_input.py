"""Mistakes of people and applications: each ends in one line that says what is wrong, what was left untouched
and what to do.
"""

from datetime import timedelta

import pytest

from local.clickhouse import ClickHouse as ClickHouseServer
from tagmill.clickhouse.client import ClickHouse
from tagmill.errors import DestinationDiffers
from tagmill.ledger import schema
from tests.support.delivery import only, tagmill
from tests.support.errors import raises
from tests.support.events import event, events, this_hour
from tests.support.stack import free_port, node

BEGIN = this_hour() - timedelta(hours=1)
HOUR = {"bucket_size": "Hour", "first_time_bucket": BEGIN.isoformat()}


@pytest.fixture
def command(settings):
    """Return command(keyspace, *arguments, **pipeline keys), which runs a command and returns exit status and
    its one line of stderr.
    """

    def run(keyspace, *arguments, apply=True, **keys):
        configured = settings(keyspace, **{"tags": ["t"], **HOUR, **keys})
        if apply:
            schema.apply(configured)
        return one_line(tagmill(settings.file(only(configured)), *arguments, "--pipeline", only(configured)))

    return run


def one_line(result):
    """Return the exit status and the error; fail unless the error is one line without a traceback."""
    code, _, said = result
    assert said.startswith("error: ") and said.endswith("\n") and said.count("\n") == 1, said
    assert "Traceback" not in said and len(said) < 1200
    return code, said


def test_a_missing_keyspace_is_named(command):
    code, said = command("not_there", "run", "deliver")
    assert (
        code == 2
        and "keyspace not_there does not exist" in said
        and "Nothing was read; check the pipeline's keyspace" in said
    )


def test_keyspace_without_plugin_tables_is_named(command, stack, journal):
    """Name the keyspace and the missing table, and ask whether it is the journal's keyspace."""
    keyspace = journal().keyspace
    stack.session.execute(f"DROP TABLE {keyspace}.tag_views")
    code, said = command(keyspace, "run", "deliver")
    assert (
        code == 2
        and f"keyspace {keyspace} has no table tag_views" in said
        and "is it the journal's keyspace?" in said
    )


def test_ledger_missing_names_schema_apply(command, journal):
    """Point to `tagmill schema apply` if the ledger's keyspace was never created."""
    code, said = command(
        journal().keyspace,
        "run",
        "deliver",
        apply=False,
        sections={"cassandra": {"ledger_keyspace": "never_applied"}},
    )
    assert code == 2 and "never_applied" in said and "tagmill schema apply" in said


def test_destination_missing_names_schema_apply(command, journal):
    """Point to `tagmill schema apply` in `status` and `check` if the destination was never created."""
    for arguments in (("status",), ("check",)):
        code, said = command(journal().keyspace, *arguments, apply=False)
        assert code == 2 and "does not exist" in said and "tagmill schema apply" in said


def test_destination_other_columns_refused_by_column(settings, stack, journal):
    """Refuse a destination with other columns, naming each wrong or missing column and the required type."""
    configured = settings(journal().keyspace, tags=["t"], **HOUR)
    name = only(configured)
    with ClickHouse(configured.clickhouse) as clickhouse:
        clickhouse.command(
            f"CREATE TABLE `{name}` (persistence_id Int64, event String) ENGINE = MergeTree ORDER BY "
            "persistence_id"
        )
    code, said = one_line(tagmill(settings.file(name), "schema", "apply"))
    assert code == 2 and f"table default.{name} has other columns" in said
    assert "persistence_id is Int64, must be String" in said and "batch_id is missing, must be UUID" in said
    assert "tagmill schema apply" in said


def test_destination_changed_receives_nothing_until_repaired(settings, journal, spark):
    """Send nothing while the destination lacks a column or does not exist; once it is repaired, the same run
    delivers everything.
    """
    from tests.support.delivery import as_row, clickhouse_rows, deliver, state

    written, records = journal(), events("a", range(1, 5), BEGIN)
    written.both(records)
    configured = settings(written.keyspace, tags=["t"], **HOUR)
    name = only(configured)
    schema.apply(configured)
    with ClickHouse(configured.clickhouse) as clickhouse:
        clickhouse.command(f"RENAME TABLE `{name}` TO `{name}_kept`")
        clickhouse.command(f"CREATE TABLE `{name}` AS `{name}_kept`")
        clickhouse.command(f"ALTER TABLE `{name}` DROP PROJECTION batch_totals, DROP COLUMN meta")
        with raises(DestinationDiffers, pipeline=name, run=1):
            deliver(configured, name, spark)
        assert (
            clickhouse.rows(f"SELECT count() FROM `{name}`") == [(0,)]
            and state(configured, name, 1) == "SEALED"
        )
        clickhouse.command(f"DROP TABLE `{name}`")
        with raises(DestinationDiffers, match="Create it: tagmill schema apply", pipeline=name, run=1):
            deliver(configured, name, spark)
        clickhouse.command(f"RENAME TABLE `{name}_kept` TO `{name}`")
    (run,) = deliver(configured, name, spark)
    assert run["run"] == 1 and clickhouse_rows(configured, name) == sorted(map(as_row, records))


def test_unknown_pipeline_or_tag_names_known_ones(settings, journal):
    """Refuse an unknown pipeline or tag and list the configured ones."""
    configured = settings(journal().keyspace, tags=["order", "billing"], **HOUR)
    name = only(configured)
    schema.apply(configured)
    code, said = one_line(tagmill(settings.file(name), "run", "deliver", "--pipeline", "nope"))
    assert code == 2 and f"pipeline 'nope' is not in the configuration (there: {name})" in said
    code, said = one_line(tagmill(settings.file(name), "run", "deliver", "--pipeline", name, "--tag", "oder"))
    assert code == 2 and "has no tag 'oder' (it has: order, billing)" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ("events", "--tag"),
        ("events", "--persistence-id"),
        ("views", "rebuild", "--yes", "--persistence-id"),
        ("views", "delete", "--yes", "--offline", "--tag"),
        ("views", "migrate", "--yes", "--persistence-id"),
        ("views", "tags", "--persistence-id"),
        ("journal", "clean", "--yes", "--all", "--persistence-id"),
        ("erase", "--yes", "--why", "asked", "--persistence-id"),
        ("holds", "close", "--yes", "--why", "found", "--persistence-id", "a", "--tag"),
        ("progress", "rebase", "--yes", "--why", "found", "--tag", "t", "--persistence-id"),
        ("kafka-journal", "head"),
    ],
)
def test_name_longer_than_any_key_is_refused(command, journal, arguments):
    """Refuse a tag, persistence id or other key above Cassandra's 65,521 bytes in every command that takes
    one.
    """
    code, said = command(journal().keyspace, *arguments, 70_000 * "x", apply=False)
    assert (
        code == 2
        and "has 70000 bytes, a tag, a persistence id or another key of Cassandra's has at most 65521" in said
    )


@pytest.mark.parametrize(
    ("begin", "end", "words"),
    [
        ("yesterday", "2026-11-21", "Give ISO date-times, such as 2026-01-31T00:00:00Z"),
        ("2026-11-21", "2026-11-20", "is not before 2026-11-20T00:00:00+00:00. Nothing was planned"),
        ("2026-13-01", "2026-11-20", "re-read range: "),
    ],
)
def test_a_range_that_is_none_is_refused(command, journal, begin, end, words):
    code, said = command(journal().keyspace, "run", "deliver", "--reread-from", begin, "--reread-until", end)
    assert code == 2 and words in said


def test_an_empty_range_is_nothing_to_do(settings, journal):
    configured = settings(journal().keyspace, tags=["t"], **HOUR)
    name = only(configured)
    schema.apply(configured)
    deliver = ("run", "deliver", "--pipeline", name)
    for span in ((), ("--reread-from", "2026-01-01", "--reread-until", "2026-01-02")):
        assert tagmill(settings.file(name), *deliver, *span) == (0, f"pipeline {name}: nothing to do\n", "")


@pytest.mark.parametrize("section", ["cassandra", "clickhouse"])
def test_server_unreachable_is_named_with_address(command, journal, section):
    """Name host and port of a server that can't be reached, with exit status 75."""
    port = free_port()
    code, said = command(
        journal().keyspace,
        "status",
        apply=False,
        sections={section: {"port": port, "connect_timeout_seconds": 5}},
    )
    assert code == 75 and f"127.0.0.1:{port}" in said and "can't be reached" in said


def test_datacenter_wrong_names_setting(command, journal):
    """Name the setting local_datacenter if the cluster has no such datacenter."""
    code, said = command(
        journal().keyspace, "runs", apply=False, sections={"cassandra": {"local_datacenter": "elsewhere"}}
    )
    assert code in (2, 75) and "local_datacenter" in said


def test_cassandra_wrong_credentials_are_not_outage(stack, command, monkeypatch):
    """Report wrong credentials with exit status 2, unlike an outage, and never print the password."""
    server = node(stack.home / "cassandra-with-logins", heap="512m", passwords=True)
    server.start()
    try:
        sections = {"cassandra": {"port": server.port}}
        code, said = command("any", "runs", apply=False, sections=sections)
        assert code == 2 and "refused the user name or password" in said, said
        monkeypatch.setenv("TAGMILL_CASSANDRA__USERNAME", "cassandra")
        monkeypatch.setenv("TAGMILL_CASSANDRA__PASSWORD", "sesame-4711")
        code, said = command("any", "runs", apply=False, sections=sections)
        assert code == 2 and "refused the user name or password" in said and "sesame-4711" not in said
    finally:
        server.stop()


def test_clickhouse_wrong_credentials_are_not_outage(stack, command, journal, monkeypatch):
    """Report wrong credentials with exit status 2, unlike an outage, and never print the password."""
    server = ClickHouseServer(stack.home / "clickhouse-with-password", free_port(), password="right")
    server.start()
    try:
        monkeypatch.setenv("TAGMILL_CLICKHOUSE__PASSWORD", "sesame-4711")
        code, said = command(
            journal().keyspace, "status", apply=False, sections={"clickhouse": {"port": server.port}}
        )
        assert (
            code == 2
            and "refused the user name or password. Nothing was done" in said
            and "sesame-4711" not in said
        )
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[cassandra\nport = 1", "can't be read as TOML"),
        ("[cassandra]\nprot = 9042", "cassandra.prot: unknown key"),
        ('[pipelines.p]\nkeyspace = "k"', "pipelines.p.bucket_size: Field required"),
        ('[cassandra]\npassword = "x"', "set TAGMILL_CASSANDRA__PASSWORD or use the Airflow connection"),
    ],
)
def test_a_broken_configuration_names_file_and_key(tmp_path, text, words):
    file = tmp_path / "tagmill.toml"
    file.write_text(text)
    code, said = one_line(tagmill(file, "status"))
    assert code == 2 and str(file) in said and words in said


def test_a_missing_configuration_says_how_to_name_one(tmp_path):
    code, said = one_line(tagmill(tmp_path / "nope.toml", "status"))
    assert code == 2 and "there is no such configuration file; give --config or set TAGMILL_CONFIG" in said


class TestStrangeButSound:
    """Unusual but valid names and payloads arrive unchanged."""

    TAGS = ("t", "a'b\"c\\d/e|%{f}$", "Ünïcode \N{SNOWMAN} и ещё", "nothing has this tag")
    PIDS = (
        "plain",
        "q'uo\"te\\ back/slash",
        "line\nbreak\ttab",
        "e\u0301 is not \u00e9",
        "\N{BROKEN HEART}" * 60,
        " ",
        "-1",
        "NULL",
    )

    def records(self):
        """Return events of every tag and persistence id, and payloads of all kinds."""
        records = [
            row for tag in self.TAGS[:3] for pid in self.PIDS for row in events(pid, (1, 2), BEGIN, tag)
        ]
        five_megabytes = bytes(range(256)) * (5 * 4096)
        records += [
            event(
                "payloads",
                1,
                BEGIN,
                ser_id=424_242,
                ser_manifest="nobody.Knows",
                event=b"\xff\xfe\x00binary\x80",
            ),
            event("payloads", 2, BEGIN, event=five_megabytes),
            event("payloads", 3, BEGIN, event=b""),
            event("payloads", 4, BEGIN, event='{"text": "ü"}'.encode()),
            event(
                "payloads",
                5,
                BEGIN,
                ser_id=-5,
                event_manifest="e:m",
                meta_ser_id=0,
                meta_ser_manifest="",
                meta=b"",
            ),
        ]
        return records

    def test_they_arrive_byte_by_byte(self, journal, settings, spark):
        from tests.support.delivery import as_row, clickhouse_rows, delivered_first, verdicts

        written, records = journal(), self.records()
        written.view(records)
        sparse = event("sparse", 1, BEGIN, writer_uuid=None, ser_manifest=None, event_manifest=None)
        written.view([sparse])
        configured = settings(written.keyspace, tags=list(self.TAGS), **HOUR)
        name = only(configured)
        (run,) = delivered_first(configured, spark)
        sparse_row = as_row({**sparse, "writer_uuid": "", "ser_manifest": "", "event_manifest": ""})
        assert clickhouse_rows(configured, name) == sorted([*map(as_row, records), sparse_row])
        assert run["held"] == 0 and run["findings"] == {}
        assert verdicts(configured, name) == dict.fromkeys(self.TAGS, "exactly once")
        with ClickHouse(configured.clickhouse) as clickhouse:
            text = dict(
                clickhouse.rows(
                    f"SELECT sequence_nr, event_text FROM `{name}` WHERE persistence_id = 'payloads'"
                )
            )
            once = clickhouse.rows(
                f"SELECT persistence_id, sequence_nr, tags FROM `{name}_events` WHERE persistence_id != "
                "'payloads'"
            )
        assert (text[1], text[2], text[4]) == ("", "", '{"text": "ü"}')
        assert sorted(once) == sorted(
            [("sparse", 1, ["t"]), *((pid, n, sorted(self.TAGS[:3])) for pid in self.PIDS for n in (1, 2))]
        )


def test_view_other_columns_stops_before_reading(stack, settings, spark, place):
    """Stop before reading a view with a wrong or missing column, and name each with the required type."""
    from tests.integration.test_stops import stopped

    stack.session.execute(f"CREATE TABLE {place}.messages (persistence_id text PRIMARY KEY)")
    stack.session.execute(
        f"CREATE TABLE {place}.tag_views (tag_name text, timebucket bigint, timestamp timeuuid, "
        "persistence_id text, "
        "tag_pid_sequence_nr bigint, sequence_nr int, writer_uuid text, ser_id int, ser_manifest "
        "text, event_manifest text, "
        "event blob, PRIMARY KEY ((tag_name, timebucket), timestamp))"
    )
    record = event("a", 1, BEGIN)
    stack.session.execute(
        f"INSERT INTO {place}.tag_views (tag_name, timebucket, timestamp, event) VALUES (%s, %s, %s, %s)",
        tuple(record[name] for name in ("tag_name", "timebucket", "timestamp", "event")),
    )
    text = stopped(settings(place, tags=["t"], **HOUR), spark)
    assert (
        "column sequence_nr is int, bigint is required" in text
        and "column meta is missing, blob is required" in text
    )
