"""A right that Spark lacks is named in one line, and once it is granted the same command does its work."""

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster, NoHostAvailable, Session
from pydantic import SecretStr
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from local.fixtures import WITHOUT_VIEWS, load_case
from tagmill.config.settings import Settings
from tagmill.ledger import schema
from tagmill.spark import session as sparksession
from tests.conftest import SettingsFactory
from tests.support.building import recorded, rows
from tests.support.delivery import as_row, clickhouse_rows, only, state, tagmill
from tests.support.stack import Stack, node

CASE, WORKER, PASSWORD = "partition-boundary", "worker", "sesame-4711"


@dataclass
class Guarded:
    """A Cassandra whose user `worker` has only granted rights, and a session of its superuser."""

    stack: Stack
    session: Session
    factory: SettingsFactory

    def settings(self, keyspace: str, **keys: Any) -> Settings:
        """Return the settings of a pipeline over a keyspace of this Cassandra."""
        return self.factory(keyspace, case=CASE, **keys)

    def grant_all_but(self, keyspaces: list[str], right: str, table: str) -> None:
        """Grant every right on every table, except this one on this table."""
        tables = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"
        for keyspace in keyspaces:
            for name in [f"{keyspace}.{row.table_name}" for row in self.session.execute(tables, (keyspace,))]:
                for one in ("SELECT", "MODIFY"):
                    verb = "REVOKE {} ON {} FROM" if (one, name) == (right, table) else "GRANT {} ON {} TO"
                    self.session.execute(f"{verb.format(one, name)} {WORKER}")


@retry(
    retry=retry_if_exception_type(NoHostAvailable),
    stop=stop_after_delay(60),
    wait=wait_fixed(0.5),
    reraise=True,
)
def superuser(port: int) -> Session:
    """Connect as the first user, whom a new node makes some time after it answers."""
    login = PlainTextAuthProvider("cassandra", "cassandra")
    return Cluster(["127.0.0.1"], port=port, auth_provider=login, protocol_version=5).connect()


@pytest.fixture(scope="module")
def guarded(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """Start a Cassandra with passwords and the role `worker`."""
    server = node(stack.home / "cassandra-with-rights", heap="512m", passwords=True)
    with ExitStack() as at_the_end:
        at_the_end.callback(server.stop)
        server.start()
        session = superuser(server.port)
        at_the_end.callback(session.cluster.shutdown)
        session.execute(f"CREATE ROLE {WORKER} WITH PASSWORD = '{PASSWORD}' AND LOGIN = true")
        own = Stack(stack.home, server, stack.clickhouse, session)
        yield Guarded(stack, session, SettingsFactory(own, tmp_path_factory.mktemp("rights")))


@pytest.fixture
def as_worker(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands of this process log in as the worker, with the session that all tests share."""
    monkeypatch.setenv("TAGMILL_CASSANDRA__USERNAME", WORKER)
    monkeypatch.setenv("TAGMILL_CASSANDRA__PASSWORD", PASSWORD)
    monkeypatch.setattr(sparksession, "session", lambda *_, **__: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)


def applied(settings: Settings) -> None:
    """Apply the schema as the superuser."""
    superuser = {"username": "cassandra", "password": SecretStr("cassandra")}
    schema.apply(settings.model_copy(update={"cassandra": settings.cassandra.model_copy(update=superuser)}))


def refused(file: Path, pipeline: str, right: str, table: str, *command: str) -> None:
    """Assert that the command ends with 2 and one line that names the right and the log with the trace."""
    code, _, said = tagmill(file, *command, "--pipeline", pipeline)
    assert code == 2, said
    assert said.count("\n") == 1 and PASSWORD not in said
    assert f"user {WORKER} has no {right} permission on table {table}" in said, said
    assert f'GRANT {right} ON table {table} TO "{WORKER}"' in said, said
    if "trace: " in said:
        assert right in Path(re.findall(r"trace: (.+)\)", said)[0]).read_text()


@pytest.mark.parametrize(
    ("right", "table"),
    [("SELECT", "messages"), ("MODIFY", "tag_write_progress")],
    ids=["read messages", "write progress"],
)
def test_build_right_missing_is_named_then_builds(guarded, as_worker, spark, right, table) -> None:
    """Build without a right on one table; grant it, and the same command writes the plugin's rows."""
    keyspace = f"shop_{right.lower()}"
    load_case(guarded.session, CASE, keyspace, tables=WITHOUT_VIEWS)
    settings = guarded.settings(keyspace, views="tagmill")
    applied(settings)
    file, pipeline = guarded.factory.file(only(settings)), only(settings)
    both = [keyspace, settings.cassandra.ledger_keyspace]
    guarded.grant_all_but(both, right, f"{keyspace}.{table}")
    refused(file, pipeline, right, f"{keyspace}.{table}", "views", "build")
    if right == "SELECT":
        assert rows(guarded, keyspace, "tag_views") == []
        refused(file, pipeline, right, f"{keyspace}.{table}", "events", "--persistence-id", "o-1")
    guarded.session.execute(f"GRANT {right} ON {keyspace}.{table} TO {WORKER}")
    code, _, said = tagmill(file, "views", "build", "--pipeline", pipeline)
    assert code == 0, said
    for name in ("tag_views", "tag_write_progress"):
        assert rows(guarded, keyspace, name) == recorded(CASE, name), name
    code, _, said = tagmill(file, "views", "rebuild", "--pipeline", pipeline, "--offline", "--yes")
    assert code == 0, said


def test_delivery_right_missing_is_named_then_delivers(guarded, as_worker, spark) -> None:
    """Deliver without the right to read progress: the run stays SEALED; grant it, and each row is there
    once.
    """
    keyspace = "shop_delivered"
    load_case(guarded.session, CASE, keyspace)
    settings = guarded.settings(keyspace)
    applied(settings)
    file, pipeline = guarded.factory.file(only(settings)), only(settings)
    ledger = settings.cassandra.ledger_keyspace
    guarded.grant_all_but([keyspace, ledger], "SELECT", f"{ledger}.progress")
    refused(file, pipeline, "SELECT", f"{ledger}.progress", "run", "deliver")
    assert state(settings, pipeline, 1) == "SEALED"
    guarded.session.execute(f"GRANT SELECT ON {ledger}.progress TO {WORKER}")
    code, _, said = tagmill(file, "run", "deliver", "--pipeline", pipeline)
    assert code == 0, said
    assert clickhouse_rows(settings, pipeline) == sorted(as_row(row) for row in recorded(CASE, "tag_views"))


def examined(file: Path) -> dict[str, dict[str, str]]:
    """Return what the doctor finds, by its checks; nothing that it says has the password."""
    code, out, said = tagmill(file, "doctor", "--json")
    assert PASSWORD not in out + said
    found = {finding["check"]: finding for finding in json.loads(out)}
    assert code == (2 if any(one["level"] == "wrong" for one in found.values()) else 0)
    return found


def test_doctor_names_rights_whose_grants_cure(guarded, monkeypatch) -> None:
    """Find a wrong password and each missing right, and grant what the cures say: then nothing is wrong."""
    keyspace, ledger = "shop_examined", "examined_ledger"
    load_case(guarded.session, CASE, keyspace)
    settings = guarded.settings(keyspace, sections={"cassandra": {"ledger_keyspace": ledger}})
    file = guarded.factory.file(only(settings))
    pipeline = f"pipeline {only(settings)}"
    monkeypatch.setenv("TAGMILL_CASSANDRA__USERNAME", WORKER)
    monkeypatch.setenv("TAGMILL_CASSANDRA__PASSWORD", f"not-{PASSWORD}")
    found = examined(file)
    login, clocks = found["cassandra login"], found["clocks"]
    assert clocks["level"] == "warning" and "not checked: no connection to Cassandra" in clocks["said"]
    assert login["level"] == "wrong" and "TAGMILL_CASSANDRA__PASSWORD" in login["cure"]
    monkeypatch.setenv("TAGMILL_CASSANDRA__PASSWORD", PASSWORD)
    found = examined(file)
    assert found["ledger schema"]["cure"] == "tagmill schema apply"
    assert found[f"keyspace {ledger}: rights"]["cure"].startswith(
        f'GRANT CREATE ON ALL KEYSPACES TO "{WORKER}"'
    )
    applied(settings)
    before = rows(guarded, keyspace, "tag_views")
    found = examined(file)
    wrong = {check: one["cure"] for check, one in found.items() if one["level"] == "wrong"}
    assert wrong.keys() == {f"keyspace {ledger}: rights", f"{pipeline}: rights"}
    assert f'GRANT SELECT ON KEYSPACE "{ledger}" TO "{WORKER}"' in wrong[f"keyspace {ledger}: rights"]
    assert f'GRANT MODIFY ON "{keyspace}"."tag_views" TO "{WORKER}"' in wrong[f"{pipeline}: rights"]
    for grant in "; ".join(wrong.values()).split("; "):
        guarded.session.execute(grant)
    guarded.session.execute(f"DROP TABLE {ledger}.attempts", timeout=60)
    cure = examined(file)["ledger schema"]["cure"]
    assert cure == f'GRANT CREATE ON KEYSPACE "{ledger}" TO "{WORKER}"; tagmill schema apply'
    applied(settings)
    found = examined(file)
    assert not [one for one in found.values() if one["level"] == "wrong"], found
    assert rows(guarded, keyspace, "tag_views") == before
