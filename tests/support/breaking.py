"""Make a driver, Spark or the file system fail where a job's call passes it, and compare what a job must leave
untouched.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import cassandra
import clickhouse_connect
from cassandra.cluster import NoHostAvailable, Session
from clickhouse_connect.driver.exceptions import DatabaseError
from confluent_kafka import KafkaError, KafkaException
from pyarrow import fs
from tenacity import wait_none

from tagmill.cassandra import client
from tagmill.clickhouse import client as clickhouse_client
from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.delivery import push
from tagmill.idle_connections import IdleConnections
from tagmill.kafka import client as kafka_client
from tagmill.runs import storage

# Ledger tables that say who is or was at work, and what was looked at.
OF_ATTEMPTS = {
    *("leases", "attempts", "failures", "pipelines"),
    *("audits", "buckets", "journal_tables", "journal_views", "topic_ids", "interventions"),
}
# Columns that a repetition of the same work changes.
VOLATILE = {"fence", "attempt", "owner", "done_at", "begun_at"}


class InterruptedThen(KeyboardInterrupt):
    """An interrupt behind which each further call fails with a new error that `then` makes."""

    def __init__(self, then: Callable[[], BaseException]) -> None:
        super().__init__()
        self.then = then


NO_RIGHT = "User writer has no MODIFY permission on <table shop.some> or any of its parents"
# Of Cassandra's driver: what each case raises, words of the line and the exit status.
CASSANDRA: dict[str, tuple[BaseException, str, int]] = {
    "right": (cassandra.Unauthorized(NO_RIGHT), "no MODIFY permission on table shop.some", 2),
    "unavailable": (cassandra.Unavailable("not enough replicas"), "did not answer", 75),
    "no node": (NoHostAvailable("no host", {}), "did not answer", 75),
    "timeout": (cassandra.OperationTimedOut(), "did not answer", 75),
    "memory": (MemoryError(), "no memory left", 75),
    "interrupted": (KeyboardInterrupt(), "stopped; nothing is lost", 130),
    "interrupted, then no answer": (
        InterruptedThen(cassandra.OperationTimedOut),
        "stopped; nothing is lost",
        130,
    ),
    "defect": (ZeroDivisionError("division by zero"), "unexpected ZeroDivisionError", 1),
}


def _answer(code: int | None, text: str) -> DatabaseError:
    error = DatabaseError(f"Code: {code}. DB::Exception: {text}")
    error.code = code
    return error


CLICKHOUSE: dict[str, tuple[BaseException, str, int]] = {
    "right": (_answer(497, "default: Not enough privileges"), "Not enough privileges", 2),
    "login": (_answer(516, "Authentication failed"), "refused the user name or password", 2),
    "memory of the server": (_answer(241, "Memory limit exceeded"), "Memory limit exceeded", 75),
    "connection lost": (ConnectionResetError("reset by peer"), "reset by peer", 75),
    "memory": (MemoryError(), "no memory left", 75),
    "interrupted": (KeyboardInterrupt(), "stopped; nothing is lost", 130),
    "defect": (ZeroDivisionError("division by zero"), "unexpected ZeroDivisionError", 1),
}
KAFKA: dict[str, tuple[BaseException, str, int]] = {
    "right": (KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), "correct [kafka]", 2),
    "login": (KafkaException(KafkaError(KafkaError.SASL_AUTHENTICATION_FAILED)), "correct [kafka]", 2),
    "tls": (KafkaException(KafkaError(KafkaError._SSL)), "correct [kafka]", 2),
    "no broker": (KafkaException(KafkaError(KafkaError._TRANSPORT)), "Kafka at", 75),
    "interrupted": (KeyboardInterrupt(), "stopped; nothing is lost", 130),
    "defect": (ZeroDivisionError("division by zero"), "unexpected ZeroDivisionError", 1),
}


def _of_disk(number: int) -> OSError:
    return OSError(number, f"Cannot do it. Detail: [errno {number}] {os.strerror(number)}")


DISK: dict[str, tuple[BaseException, str, int]] = {
    "full": (_of_disk(errno.ENOSPC), "No space left on device", 75),
    "no right": (_of_disk(errno.EACCES), "Correct the rights there", 2),
}


class Broken:
    """What a patch raises from now on: `raised` counts how often."""

    def __init__(self, error: BaseException) -> None:
        self.error, self.raised = error, 0

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.raised += 1
        if self.raised > 1 and isinstance(self.error, InterruptedThen):
            raise self.error.then()
        raise self.error


@contextmanager
def broken_cassandra(error: BaseException, pattern: str) -> Iterator[Broken]:
    """Let each statement that matches a pattern fail; passing faults are retried once."""
    broken, execute = Broken(error), Session.execute_async

    def execute_async(session: Session, query: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = getattr(query, "prepared_statement", query)
        goes_on = broken.raised and isinstance(error, InterruptedThen)
        if goes_on or re.search(pattern, str(getattr(prepared, "query_string", prepared))):
            broken()
        return execute(session, query, *args, **kwargs)

    with patch.object(Session, "execute_async", execute_async), patch.object(client, "PATIENCE_SECONDS", 0):
        yield broken


@contextmanager
def broken_clickhouse(error: BaseException, pattern: str) -> Iterator[Broken]:
    """Let each call of a ClickHouse client fail whose name and arguments match a pattern."""
    broken, get_client = Broken(error), clickhouse_connect.get_client

    class Proxy:
        def __init__(self, **options: Any) -> None:
            self.real = get_client(**options)

        def __getattr__(self, name: str) -> Any:
            attribute = getattr(self.real, name)
            if not callable(attribute):
                return attribute

            def call(*args: Any, **kwargs: Any) -> Any:
                if re.search(pattern, f"{name} {args} {kwargs}"):
                    broken()
                return attribute(*args, **kwargs)

            return call

    with (
        patch.object(clickhouse_connect, "get_client", Proxy),
        patch.object(clickhouse_client, "idle", IdleConnections()),
        patch.object(push, "wait_random_exponential", lambda *_, **__: wait_none()),
    ):
        yield broken


@contextmanager
def broken_kafka(error: BaseException, _pattern: str) -> Iterator[Broken]:
    """Let each question of Kafka's administration fail."""
    broken, admin = Broken(error), kafka_client.AdminClient

    class Admin(admin):  # type: ignore[valid-type, misc]
        list_topics = describe_topics = list_offsets = broken

    with patch.object(kafka_client, "AdminClient", Admin):
        yield broken


@contextmanager
def broken_disk(error: BaseException, pattern: str) -> Iterator[Broken]:
    """Let the file system below storage.root fail at each file or folder whose path matches a pattern."""
    broken, real = Broken(error), fs.LocalFileSystem()

    class Local:
        def __getattr__(self, name: str) -> Any:
            method = getattr(real, name)

            def call(target: Any, *args: Any, **kwargs: Any) -> Any:
                if re.search(pattern, getattr(target, "base_dir", target)):
                    broken()
                return method(target, *args, **kwargs)

            return call

    with patch.object(storage.fs, "LocalFileSystem", Local):
        yield broken


def _begun_only(row: dict[str, Any]) -> bool:
    """Return whether a ledger row is of a run that has sealed nothing, or of a journal that was never built."""
    return row.get("state") in ("PLANNED", "ABANDONED") or 0 in (row.get("build"), row.get("replication"))


def contents(session: Any, settings: Settings, keyspaces: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return all that a failed job must leave as it is: rows of the journal, the destination and the ledger.

    Of the ledger, runs that are only planned and the names of workers are left out; `keyspaces` names the
    keyspaces of the journal.
    """
    ledger = settings.cassandra.ledger_keyspace
    found: dict[str, Any] = {}
    for keyspace in (*keyspaces, ledger):
        tables = session.execute(
            "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", [keyspace]
        )
        for table in {row.table_name for row in tables} - (OF_ATTEMPTS if keyspace == ledger else set()):
            rows = [row._asdict() for row in session.execute(f"SELECT * FROM {keyspace}.{table}")]
            found[f"{keyspace}.{table}"] = sorted(
                repr({name: value for name, value in row.items() if name not in VOLATILE})
                for row in rows
                if keyspace != ledger or not _begun_only(row)
            )
    with ClickHouse(settings.clickhouse) as clickhouse:
        for chosen in (*settings.pipelines.values(), *settings.streams.values()):
            query = f"SELECT toString(tuple(*)) FROM `{chosen.destination}`"
            found[chosen.destination] = sorted(clickhouse.rows(query))
    return found
