"""Connections to Cassandra: consistency, time limits, retries of what is safe to repeat, errors in Tagmill's words."""

import logging
import ssl
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import copy
from datetime import UTC, datetime
from functools import cached_property, partial
from random import sample
from typing import Any, TypeVar, cast, overload

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    DriverException,
    InvalidRequest,
    OperationTimedOut,
    ReadFailure,
    ReadTimeout,
    RequestExecutionException,
    Unauthorized,
    Unavailable,
    WriteFailure,
    WriteTimeout,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, ResponseFuture, Session
from cassandra.concurrent import execute_concurrent
from cassandra.policies import DCAwareRoundRobinPolicy, ExponentialReconnectionPolicy, TokenAwarePolicy
from cassandra.protocol import ErrorMessage
from cassandra.query import PreparedStatement, SimpleStatement, Statement
from tenacity import Retrying, retry, retry_if_exception_type, stop_after_delay, wait_fixed, wait_random_exponential

from tagmill import clock, tls
from tagmill.errors import ConfigurationError, StoreUnavailable, TagmillError
from tagmill.settings import CassandraSettings
from tagmill.stores import writelimits
from tagmill.stores.rights import missing_right
from tagmill.timeuuid import from_datetime

# faults that pass: nothing was done, or doing it again changes nothing (every write here is idempotent)
PASSING = (OperationTimedOut, ReadTimeout, ReadFailure, Unavailable, WriteTimeout, WriteFailure, NoHostAvailable)
CONCURRENCY = 128
# nodes whose clocks are read in a session
CLOCKS_READ = 4
# a node that restarts is back within this time
PATIENCE_SECONDS = 45
# the driver's own waits up to ten minutes before it looks at a node again
RECONNECT = ExponentialReconnectionPolicy(0.5, 5)
T = TypeVar("T")


class Cassandra:
    """A session with prepared statements by text, which reads what Tagmill writes. Close it, or use it in `with`.

    `compression`: of what goes over the network, where the driver can.
    """

    def __init__(self, settings: CassandraSettings, *, compression: bool = True) -> None:
        self.settings = settings
        self.where = f"Cassandra at {', '.join(settings.hosts)}:{settings.port}"
        consistency = ConsistencyLevel.name_to_value[settings.own_consistency]
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(settings.local_datacenter)),
            consistency_level=consistency,
            serial_consistency_level=ConsistencyLevel.SERIAL,
            request_timeout=settings.request_timeout_seconds,
        )
        self.cluster = Cluster(
            settings.hosts,
            port=settings.port,
            auth_provider=_auth(settings),
            ssl_context=_tls(settings),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=RECONNECT,
            compression=compression,
            connect_timeout=settings.connect_timeout_seconds,
            control_connection_timeout=settings.connect_timeout_seconds,
        )
        self._prepared: dict[tuple[str, int | None], PreparedStatement] = {}
        self._reads_at = consistency
        try:
            self.session: Session = self.cluster.connect()
        except NoHostAvailable as error:
            self.cluster.shutdown()
            raise _connect_error(settings, self.where, error) from None
        except DriverException as error:
            self.cluster.shutdown()
            raise StoreUnavailable(f"{self.where}: {error}") from None

    def __enter__(self) -> "Cassandra":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session and its threads."""
        self.cluster.shutdown()

    @cached_property
    def clocks(self) -> list[clock.Reading]:
        """Return readings of the clocks of some nodes, taken once a session."""
        up = [
            host for host in self.cluster.metadata.all_hosts() if host.is_up and host.datacenter == self.settings.local_datacenter
        ]
        readings = []
        for node in sample(up, min(len(up), CLOCKS_READ)):
            with suppress(*PASSING):
                readings.append(clock.read(f"Cassandra at {node.endpoint}", partial(self._server_time, node)))
        if not readings:
            with explained(self.where):
                readings.append(clock.read(self.where, partial(self.retried, self._server_time)))
        return readings

    def check_clocks(self) -> None:
        """Raise ClockDiffers where the clocks of this machine and the servers differ: before a step writes anything."""
        clock.require_agreement(self.clocks, self.settings.max_clock_difference_seconds)

    def now(self) -> datetime:
        """Return the time by the servers' clocks, the earliest of them; raises ClockDiffers."""
        self.check_clocks()
        return clock.earliest(self.clocks)

    def now_microseconds(self) -> int:
        """Return the same in what USING TIMESTAMP counts."""
        return from_datetime(self.now()) // 10

    def _server_time(self, node: Any = None) -> datetime:
        asked = SimpleStatement("SELECT toTimestamp(now()) AS now FROM system.local", consistency_level=ConsistencyLevel.ONE)
        return utc(
            cast(datetime, self.session.execute(asked, host=node, timeout=self.settings.connect_timeout_seconds).one().now)
        )

    @property
    def largest_row(self) -> int:
        """Return how many bytes the values of any row may have, so that Cassandra takes it in one write."""
        return self.largest_write - writelimits.BESIDE_VALUES

    @cached_property
    def largest_write(self) -> int:
        """Return how many bytes Cassandra takes in one write."""
        told = self.settings.max_write_bytes
        if told is None:
            settings: dict[str, str | None] = {}
            # releases before 4.0 have no such table, and not every user may read it
            with explained(self.where), suppress(InvalidRequest, Unauthorized):
                asked = SimpleStatement(writelimits.QUERY, consistency_level=ConsistencyLevel.ONE)
                settings = {row.name: row.value for row in self.retried(lambda: list(self.session.execute(asked)))}
            told = writelimits.largest_write(settings)
        return told

    @cached_property
    def application(self) -> "Cassandra":
        """The same session for the tables that the application writes: what says nothing else is read at `read_consistency`."""
        other = copy(self)
        other._prepared = {}
        other._reads_at = ConsistencyLevel.name_to_value[self.settings.read_consistency]
        return other

    def tables(self, keyspace: str) -> Mapping[str, Any] | None:
        """The driver's tables of a keyspace as they are now, by name; None: there is no such keyspace.

        All of the schema is read: the driver's refresh of one keyspace leaves out its tables.
        """
        with explained(self.where):
            refresh_schema(self.cluster)
        metadata = self.cluster.metadata.keyspaces.get(keyspace)
        return metadata.tables if metadata else None

    def prepare(self, cql: str, consistency: int | None = None) -> PreparedStatement:
        """A prepared statement, prepared once a session."""
        statement = self._prepared.get((cql, consistency))
        if statement is None:
            with explained(self.where):
                statement = self.retried(lambda: self.session.prepare(cql))
            statement.is_idempotent = True
            statement.consistency_level = self._reads_at if consistency is None else consistency
            self._prepared[(cql, consistency)] = statement
        return statement

    def execute(self, cql: str, *values: Any, consistency: int | None = None) -> list[Any]:
        """Run one statement with bound values, again after a passing fault; all rows (for results that are small)."""
        statement = self.prepare(cql, consistency)
        with explained(self.where):
            return self.retried(lambda: list(self.session.execute(statement, values)))

    def stream(self, cql: str, *values: Any, page: int = 5000) -> Iterator[Any]:
        """Run one query and page through its rows."""
        bound = self.prepare(cql).bind(values)
        bound.fetch_size = page
        with explained(self.where):
            yield from self.session.execute(bound)

    def transact(self, cql: str, *values: Any, landed: Callable[[], bool]) -> bool:
        """Run a lightweight transaction; whether it is in force.

        After a lost answer it is sent again: then the first one may have been applied and the second not, so `landed`
        reads back at SERIAL whether it was ours.
        """
        statement = self.prepare(cql, ConsistencyLevel.LOCAL_QUORUM)
        with explained(self.where):
            row = self.retried(lambda: self.session.execute(statement, values).one())
        return bool(row[0]) or landed()

    def execute_many(
        self, cql: str, rows: Iterable[tuple[Any, ...]], consistency: int | None = None, concurrency: int = CONCURRENCY
    ) -> Iterator[list[Any]]:
        """Run one idempotent statement for many values, `concurrency` at a time, in order; yields each one's rows.

        What fails in passing is run again by itself.
        """
        statement = self.prepare(cql, consistency)
        values = deque[tuple[Any, ...]]()

        def statements() -> Iterator[tuple[PreparedStatement, tuple[Any, ...]]]:
            for row in rows:
                values.append(row)
                yield statement, row

        results = execute_concurrent(
            self.session, statements(), concurrency=concurrency, raise_on_first_error=False, results_generator=True
        )
        with explained(self.where):
            for success, outcome in results:
                row = values.popleft()
                if success:
                    yield _taken(outcome)
                elif isinstance(outcome, PASSING):
                    yield self.retried(partial(self._rows, statement, row))
                else:
                    raise outcome

    def write_many(self, cql: str, rows: Iterable[tuple[Any, ...]]) -> int:
        """The same for writes, at LOCAL_QUORUM; returns how many."""
        return sum(1 for _ in self.execute_many(cql, rows, ConsistencyLevel.LOCAL_QUORUM))

    def write_ready(self, statements: Iterable[Statement], concurrency: int) -> None:
        """Run idempotent writes, each as it is, so many at a time; what fails in passing is run again by itself."""
        flying = deque[tuple[Statement, ResponseFuture]]()
        with explained(self.where):
            for statement in statements:
                if len(flying) == concurrency:
                    self._landed(*flying.popleft())
                flying.append((statement, self.session.execute_async(statement)))
            while flying:
                self._landed(*flying.popleft())

    def _landed(self, statement: Statement, answer: ResponseFuture) -> None:
        try:
            answer.result()
        except PASSING:
            self.retried(lambda: self.session.execute(statement))

    def _rows(self, statement: PreparedStatement, values: tuple[Any, ...]) -> list[Any]:
        return list(self.session.execute(statement, values))

    def retried(self, call: Callable[[], T]) -> T:
        """What a call returns, made again after a passing fault; raises the last one behind PATIENCE_SECONDS."""
        for attempt in Retrying(
            retry=retry_if_exception_type(PASSING),
            stop=stop_after_delay(PATIENCE_SECONDS),
            wait=wait_random_exponential(0.2, max=5),
            reraise=True,
        ):
            with attempt:
                return call()
        raise AssertionError("unreachable")


def _taken(outcome: Any) -> list[Any]:
    """All rows of an answer, which the driver keeps no longer: its timer and it name each other, and large ones would pile up."""
    if outcome is None:
        return []
    rows, outcome.response_future._timer = list(outcome), None
    return rows


_kept: list[Cassandra] = []


def connected(settings: CassandraSettings) -> Cassandra:
    """The connection of this process, which one of Spark's Python workers keeps for the tasks that follow. It ends with the process."""
    if _kept and _kept[0].settings != settings:
        _kept.pop().close()
    if not _kept:
        # what the driver logs comes as an exception, too
        logging.getLogger("cassandra").setLevel(logging.CRITICAL)
        # as the connector's own: to compress takes as long as all else that is done to a row
        _kept.append(Cassandra(settings, compression=False))
    return _kept[0]


@retry(
    retry=retry_if_exception_type(DriverException), stop=stop_after_delay(PATIENCE_SECONDS), wait=wait_fixed(0.5), reraise=True
)
def refresh_schema(cluster: Cluster) -> None:
    """Have the driver read all of the schema; again, where a busy node or a control connection that was lost kept it from that."""
    cluster.refresh_schema_metadata(max_schema_agreement_wait=0)


@overload
def utc(moment: datetime) -> datetime: ...
@overload
def utc(moment: None) -> None: ...
def utc(moment: datetime | None) -> datetime | None:
    """A moment as the driver gives it, which is UTC and doesn't say so."""
    return moment.replace(tzinfo=UTC) if moment else None


def needs_tables(cassandra: Cassandra, keyspace: str, tables: Collection[str]) -> None:
    """Raise ConfigurationError unless the ledger's keyspace has these tables; the driver learns of new ones by and by."""
    metadata = cassandra.cluster.metadata.keyspaces.get(keyspace)
    known = metadata.tables if metadata else {}
    if any(table not in known for table in tables):
        known = cassandra.tables(keyspace) or {}
    if missing := [table for table in tables if table not in known]:
        raise ConfigurationError(
            f"{cassandra.where}: the ledger's keyspace {keyspace} has no table {' and '.join(missing)}. Nothing was done. "
            "Create it: tagmill schema apply"
        )


@contextmanager
def explained(where: str) -> Iterator[None]:
    """The driver's errors in Tagmill's words: what passes, and what somebody has to mend."""
    try:
        yield
    except TagmillError:
        raise
    except PASSING as error:
        raise StoreUnavailable(
            f"{where} did not answer: {_brief(error)}. Run the same command again; every step is safe to repeat"
        ) from None
    except Unauthorized as error:
        right = missing_right(str(error))
        said = f"{right.said}. {right.way_out}, then run the same command again" if right else _brief(error)
        raise ConfigurationError(f"{where} refused: {said}") from None
    except (InvalidRequest, ErrorMessage) as error:
        raise ConfigurationError(f"{where} refused: {_brief(error)}") from None
    except (RequestExecutionException, DriverException) as error:
        raise StoreUnavailable(f"{where}: {_brief(error)}") from None


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _connect_error(settings: CassandraSettings, where: str, error: NoHostAvailable) -> TagmillError:
    if settings.tls:
        for host in settings.hosts:
            address = (host, settings.port)
            if refused := tls.refusal("cassandra", where, address, settings.tls_ca_file, settings.connect_timeout_seconds):
                return refused
    causes = list(error.errors.values()) if isinstance(error.errors, dict) else []
    if any(isinstance(cause, AuthenticationFailed) for cause in causes):
        return ConfigurationError(
            f"{where} refused the user name or password; set them in the environment or the Airflow connection"
        )
    cause = f": {_brief(causes[0])}" if causes else ""
    return StoreUnavailable(
        f"{where} can't be reached{cause}. Nothing was done; is it up, are host, port and local_datacenter right?"
    )


def _auth(settings: CassandraSettings) -> PlainTextAuthProvider | None:
    if settings.username is None or settings.password is None:
        return None
    return PlainTextAuthProvider(settings.username, settings.password.get_secret_value())


def _tls(settings: CassandraSettings) -> ssl.SSLContext | None:
    return tls.context("cassandra", settings.tls_ca_file) if settings.tls else None
