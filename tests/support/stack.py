"""The servers of one test session: in a folder below build/test-stack, on free ports, removed at the end
however the session ends.
"""

import fcntl
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeVar
from uuid import uuid4

import clickhouse_connect
import psutil
from cassandra.cluster import Session

from local.cassandra import Cassandra
from local.clickhouse import ClickHouse
from local.layout import ROOT
from local.processes import MARKER, port_is_free

FOLDER = ROOT / "build" / "test-stack"
JARS = Path(os.environ.get("TAGMILL_TEST_JARS") or ROOT / "build" / "jars" / "cassandra")
KAFKA_JARS = JARS.parent / "kafka"
# Tests make and drop hundreds of tables, so schema changes aren't flushed (the commit log has them), a table that
# goes has half of the counters to add up, and code is compiled only once.
CASSANDRA_FLAGS = (
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dcassandra.unsafesystem=true",
    "-Dcassandra.test.flush_local_schema_changes=false", "-Dcassandra.approximate_time_precision_ms=20",
    "-Dcassandra.dehr_stripe_count=1",
)  # fmt: skip
# Each table that is dropped ends a segment of the commit log; a compressed one isn't filled with zeros first.
CASSANDRA_SETTINGS = """\
commitlog_compression:
  - class_name: LZ4Compressor
"""
# The ledger of most tests.
LEDGER = "tagmill_test"
# Microseconds: its idle threads sleep ten at a time, which with three nodes on two cores is a third of what they do.
CASSANDRA_TIMER_SLACK = 500
# Spark reads a table in at least one task per range; with few rows, more tasks only cost time.
CASSANDRA_TOKENS = 2

NodeT = TypeVar("NodeT", bound=Cassandra)
# Ports given out, with the files that are locked until this process ends.
_given: dict[int, IO[str]] = {}


def free_port(beside: int = 0) -> int:
    """Return a free port below the range of outgoing connections that no test session has been given;
    port + `beside` is free, too.

    It remains this process's own while nothing listens there, so a server may start on it again.
    """
    while True:
        port = random.randrange(20500, 22500)
        if _taken(port) and port_is_free(port) and (not beside or port_is_free(port + beside)):
            return port


def _taken(port: int) -> bool:
    """Take a port for this process; return False if it is taken already."""
    folder = Path(tempfile.gettempdir()) / f"tagmill-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    lock = (folder / str(port)).open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return False
    _given[port] = lock
    return True


def node(home: Path, kind: type[NodeT] = Cassandra, **options: Any) -> NodeT:
    """Return a node of Cassandra for tests, not started; `options` as local.cassandra.Cassandra takes them."""
    made = kind(
        home,
        free_port(beside=10000),
        JARS,
        flags=CASSANDRA_FLAGS,
        tokens=CASSANDRA_TOKENS,
        settings=CASSANDRA_SETTINGS,
        **options,
    )
    made.timer_slack = CASSANDRA_TIMER_SLACK
    return made


def session_home() -> Path:
    """Create the folder of this test session; end the processes and remove the folders of dead sessions."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for folder in FOLDER.iterdir():
        if folder.name.isdigit() and not psutil.pid_exists(int(folder.name)):
            _end_below(folder)
            shutil.rmtree(folder, ignore_errors=True)
    home = FOLDER / str(os.getpid())
    home.mkdir(exist_ok=True)
    return home


def _end_below(folder: Path) -> None:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get(MARKER, "").startswith(f"{folder}/"):
                process.kill()


def create_keyspace(session: Session, name: str) -> None:
    """Create an empty keyspace whose rows are in no commit log.

    Dropping a table flushes all tables that the log has rows of, which took longer than most tests.
    """
    session.execute(
        f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        " AND durable_writes = false"
    )


@contextmanager
def own_keyspaces(session: Session) -> Iterator[Callable[[], str]]:
    """Yield a function that creates an empty keyspace and returns its name; drop those that it made at the end."""
    made: list[str] = []

    def create() -> str:
        made.append(f"t_{uuid4().hex[:12]}")
        create_keyspace(session, made[-1])
        return made[-1]

    yield create
    for name in made:
        session.execute(f"DROP KEYSPACE IF EXISTS {name}", timeout=60)


@dataclass
class Stack:
    """The running servers and a session on Cassandra; `clickhouse` is the server with faults on demand."""

    home: Path
    cassandra: Cassandra
    clickhouse: ClickHouse
    session: Session

    def client(self, **options: Any) -> Any:
        """Return a clickhouse-connect client, which the caller has to close."""
        return clickhouse_connect.get_client(host="127.0.0.1", port=self.clickhouse.port, **options)

    def rows(self, query: str, parameters: dict[str, Any] | None = None) -> Sequence[Sequence[Any]]:
        """Return the rows of one ClickHouse query."""
        return self._reader.query(query, parameters=parameters).result_rows  # type: ignore[no-any-return]

    @cached_property
    def _reader(self) -> Any:
        return self.client(autogenerate_session_id=False)
