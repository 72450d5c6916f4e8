"""Connections to Cassandra: consistency, time limits, retries of what is safe to repeat, and the driver's
errors as Tagmill's.
"""

import logging
import ssl
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from random import sample
from typing import Any, NamedTuple, TypeVar, cast, overload
from uuid import UUID

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    DriverException,
    InvalidRequest,
    OperationTimedOut,
    ProtocolVersion,
    ReadFailure,
    ReadTimeout,
    RequestExecutionException,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
    WriteFailure,
    WriteTimeout,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import (
    EXEC_PROFILE_DEFAULT,
    Cluster,
    ExecutionProfile,
    NoHostAvailable,
    ResponseFuture,
    Session,
)
from cassandra.concurrent import execute_concurrent
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    LoadBalancingPolicy,
    RoundRobinPolicy,
    TokenAwarePolicy,
)
from cassandra.protocol import ErrorMessage
from cassandra.query import (
    BatchStatement,
    BatchType,
    BoundStatement,
    PreparedStatement,
    SimpleStatement,
    Statement,
    named_tuple_factory,
)
from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_delay,
    wait_random_exponential,
)

from tagmill.cassandra import write_limits
from tagmill.cassandra.permissions import missing_right
from tagmill.cassandra.schema import Keyspace, Table, read_keyspaces
from tagmill.config import tls
from tagmill.config.settings import CassandraSettings
from tagmill.domain import clock
from tagmill.domain.timeuuid import from_datetime
from tagmill.errors import (
    AGAIN,
    ConfigurationError,
    DatacenterUnknown,
    LoginRefused,
    StoreUnavailable,
    TagmillError,
)
from tagmill.idle_connections import Borrower, IdleConnections

# Faults that pass: nothing was done, or a repetition changes nothing (every write here is idempotent).
PASSING = (
    OperationTimedOut,
    ReadTimeout,
    ReadFailure,
    Unavailable,
    WriteTimeout,
    WriteFailure,
    NoHostAvailable,
)
# All that the driver raises for a connection that does not work.
FAULTS = (*PASSING, DriverException)
# Cassandra's newest protocol version. By itself, the driver begins with those of another database, and falls
# back from each with a new connection.
NEWEST_PROTOCOL = ProtocolVersion.V5
# Requests of execute_many that are under way at once.
CONCURRENCY = 128
# Partitions that one request reads, since clusters with guardrails refuse requests of more; such requests that are under
# way at once.
READ_TOGETHER, READS_AT_ONCE = 20, 16
# Partitions that are written together, and bytes of the values: Cassandra warns of batches above 10 partitions or 5 KiB.
PARTITIONS_TOGETHER, BYTES_TOGETHER = 10, 4096
# Number of nodes whose clocks a session reads.
CLOCKS_READ = 4
# Seconds that a failing call is retried: a node that restarts is back within this time.
PATIENCE_SECONDS = 45
# Seconds between attempts to reach a node again, from 0.5 to 5: the driver's own policy waits up to ten
# minutes.
RECONNECT = ExponentialReconnectionPolicy(0.5, 5)
T = TypeVar("T")


class _Connection:
    """Driver's cluster and session, with the statements prepared on it.

    The driver knows no schema, since it would read all of it after each change of any table.
    """

    def __init__(self, settings: CassandraSettings, compression: bool) -> None:
        self.made_for = (settings, compression)
        self.prepared: dict[tuple[str, int], PreparedStatement] = {}
        self._keyspaces: dict[str, Keyspace | None] = {}
        self._schema_version: UUID | None = None
        consistency = ConsistencyLevel.name_to_value[settings.own_consistency]
        policy = TokenAwarePolicy(DCAwareRoundRobinPolicy(settings.local_datacenter))
        where = f"Cassandra at {', '.join(settings.hosts)}:{settings.port}"
        self.cluster = _cluster(settings, policy, consistency, compression=compression)
        self.session = _connect(self.cluster, settings, where)

    def keyspace(self, name: str) -> Keyspace | None:
        """Return a keyspace as it is now; it is read again once any schema has changed. None: it does not exist."""
        # Another node might not know of a change yet.
        node = self.cluster.get_control_connection_host()
        version = self._version(node)
        if version != self._schema_version:
            self._keyspaces.clear()
            self._schema_version = version
        if name not in self._keyspaces:
            self._keyspaces[name] = read_keyspaces(self.session, name, node).get(name)
        return self._keyspaces[name]

    def _version(self, node: Any) -> UUID:
        return cast(UUID, self.session.execute(self._version_asked.bind(()), host=node).one().schema_version)

    @cached_property
    def _version_asked(self) -> PreparedStatement:
        statement = self.session.prepare("SELECT schema_version FROM system.local")
        statement.consistency_level = ConsistencyLevel.ONE
        return statement

    def prepare(self, cql: str) -> PreparedStatement:
        """Return a prepared statement, and tell the driver where the rows of its keyspace lie."""
        statement = self.session.prepare(cql)
        for keyspace in {column.keyspace_name for column in statement.column_metadata}:
            if keyspace not in self.cluster.metadata.keyspaces:
                with suppress(DriverException):  # without, any node passes a request on to a replica
                    self.cluster.refresh_keyspace_metadata(keyspace, max_schema_agreement_wait=0)
        return statement

    def works(self) -> bool:
        """Return whether a node answers."""
        try:
            self._version(None)
        except FAULTS:
            return False
        return True

    def end(self) -> None:
        """End the session and its threads."""
        self.cluster.shutdown()


idle = IdleConnections[_Connection]()


class Cassandra(Borrower[_Connection]):
    """A session that keeps prepared statements by their text and reads what Tagmill writes.

    `compression`: whether traffic is compressed, where the driver can do that.
    """

    def __init__(self, settings: CassandraSettings, *, compression: bool = True) -> None:
        self.settings = settings
        self.where = f"Cassandra at {', '.join(settings.hosts)}:{settings.port}"
        self._reads_at = ConsistencyLevel.name_to_value[settings.own_consistency]
        super().__init__(idle, idle.take(settings, compression) or _Connection(settings, compression))
        self.cluster, self.session = self._connection.cluster, self._connection.session
        self._seen: set[tuple[str, str]] = set()

    @cached_property
    def clocks(self) -> list[clock.Reading]:
        """Readings of the clocks of some nodes, taken once per session."""
        up = [
            host
            for host in self.cluster.metadata.all_hosts()
            if host.is_up and host.datacenter == self.settings.local_datacenter
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
        """Raise ClockDiffers if the clocks of this machine and the servers differ too much; call it before a
        step writes anything.
        """
        clock.require_agreement(self.clocks, self.settings.max_clock_difference_seconds)

    def now(self) -> datetime:
        """Return the time by the earliest of the servers' clocks; raises ClockDiffers."""
        self.check_clocks()
        return clock.earliest(self.clocks)

    def now_microseconds(self) -> int:
        """Return the time of `now` in microseconds since 1970, the unit of USING TIMESTAMP."""
        return from_datetime(self.now()) // 10

    def _server_time(self, node: Any = None) -> datetime:
        asked = SimpleStatement(
            "SELECT toTimestamp(now()) AS now FROM system.local", consistency_level=ConsistencyLevel.ONE
        )
        return utc(
            cast(
                datetime,
                self.session.execute(asked, host=node, timeout=self.settings.connect_timeout_seconds)
                .one()
                .now,
            )
        )

    @property
    def largest_row(self) -> int:
        """Bytes that the values of a row may have, so that Cassandra takes the row in one write."""
        return self.largest_write - write_limits.BESIDE_VALUES

    @cached_property
    def largest_write(self) -> int:
        """Bytes that Cassandra takes in one write: max_write_bytes of the settings, or what the server says
        of itself.
        """
        told = self.settings.max_write_bytes
        if told is None:
            settings: dict[str, str | None] = {}
            # Releases before 4.0 do not have system_views.settings, and not every user may read it.
            with explained(self.where), suppress(InvalidRequest, Unauthorized):
                asked = SimpleStatement(write_limits.QUERY, consistency_level=ConsistencyLevel.ONE)
                settings = {
                    row.name: row.value for row in self.retried(lambda: list(self.session.execute(asked)))
                }
            told = write_limits.largest_write(settings)
        return told

    @cached_property
    def application(self) -> "Cassandra":
        """The same session for tables that the application writes: reads without a consistency of their own
        use `read_consistency`.
        """
        other = copy(self)
        other._reads_at = ConsistencyLevel.name_to_value[self.settings.read_consistency]
        return other

    def all_keyspaces(self) -> Mapping[str, Keyspace]:
        """Return all keyspaces of the cluster by name, as of now."""
        with explained(self.where):
            return self.retried(lambda: read_keyspaces(self.session))

    def keyspace(self, name: str) -> Keyspace | None:
        """Return a keyspace as of now; None: it does not exist."""
        with explained(self.where):
            return self.retried(lambda: self._connection.keyspace(name))

    def tables(self, keyspace: str) -> Mapping[str, Table] | None:
        """Return the tables of a keyspace by name, as of now; None: the keyspace does not exist."""
        found = self.keyspace(keyspace)
        return found.tables if found else None

    def missing(self, keyspace: str, tables: Collection[str]) -> list[str]:
        """Return which of these tables a keyspace lacks; one that was found is not looked for again."""
        if unseen := [table for table in tables if (keyspace, table) not in self._seen]:
            self._seen.update((keyspace, table) for table in self.tables(keyspace) or ())
        return [table for table in unseen if (keyspace, table) not in self._seen]

    def prepare(self, cql: str, consistency: int | None = None) -> PreparedStatement:
        """Return the prepared statement of this text at a consistency; it is prepared once per session."""
        level = self._reads_at if consistency is None else consistency
        statement = self._connection.prepared.get((cql, level))
        if statement is None:
            with explained(self.where):
                statement = self.retried(lambda: self._connection.prepare(cql))
            statement.is_idempotent = True
            statement.consistency_level = level
            self._connection.prepared[(cql, level)] = statement
        return statement

    def execute(self, cql: str, *values: Any, consistency: int | None = None) -> list[Any]:
        """Run one statement with bound values, again after a passing fault, and return all rows; for small
        results.
        """
        statement = self.prepare(cql, consistency)
        with explained(self.where):
            return self.retried(lambda: list(self.session.execute(statement, values)))

    def stream(self, cql: str, *values: Any, page: int = 5000) -> Iterator[Any]:
        """Run one query and yield its rows, fetching `page` of them at a time."""
        bound = self.prepare(cql).bind(values)
        bound.fetch_size = page
        with explained(self.where):
            yield from self.session.execute(bound)

    def transact(self, cql: str, *values: Any, landed: Callable[[], bool]) -> bool:
        """Run a lightweight transaction and return whether it is in force.

        After a lost answer the statement is sent again. The first one may have been applied and the second
        one not, so `landed` reads back at SERIAL whether the change in force is ours.
        """
        statement = self.prepare(cql, ConsistencyLevel.LOCAL_QUORUM)
        with explained(self.where):
            row = self.retried(lambda: self.session.execute(statement, values).one())
        return bool(row[0]) or landed()

    def execute_many(
        self,
        cql: str,
        rows: Iterable[tuple[Any, ...]],
        consistency: int | None = None,
        concurrency: int = CONCURRENCY,
    ) -> Iterator[list[Any]]:
        """Run one idempotent statement for many values, `concurrency` at a time, and yield the rows of each
        in their order.

        A statement that fails with a passing fault is run again on its own.
        """
        statement = self.prepare(cql, consistency)
        values = deque[tuple[Any, ...]]()

        def statements() -> Iterator[tuple[PreparedStatement, tuple[Any, ...]]]:
            for row in rows:
                values.append(row)
                yield statement, row

        results = execute_concurrent(
            self.session,
            statements(),
            concurrency=concurrency,
            raise_on_first_error=False,
            results_generator=True,
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
        """Run one idempotent write for many values at LOCAL_QUORUM, and return how many there were.

        Consecutive ones are sent together, as one unlogged batch of few partitions.
        """
        statement, count = self.prepare(cql, ConsistencyLevel.LOCAL_QUORUM), 0

        def sent() -> Iterator[Statement]:
            nonlocal count
            together, size, partitions = list[BoundStatement](), 0, set[bytes | int]()
            for values in rows:
                bound = statement.bind(values)
                count += 1
                own = sum(len(value) for value in bound.values if isinstance(value, bytes))
                partition = bound.routing_key or count
                partitions.add(partition)
                if together and (len(partitions) > PARTITIONS_TOGETHER or size + own > BYTES_TOGETHER):
                    yield _unlogged(together)
                    together, size, partitions = [], 0, {partition}
                together.append(bound)
                size += own
            if together:
                yield _unlogged(together)

        self.write_ready(sent(), CONCURRENCY)
        return count

    def write_ready(self, statements: Iterable[Statement], concurrency: int) -> None:
        """Run idempotent write statements, `concurrency` at a time; one that fails with a passing fault is
        run again on its own.
        """
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
        """Return what `call` returns, and repeat it after passing faults; raises the last fault once
        PATIENCE_SECONDS have passed since the first one.

        The first one alone may have taken longer: a node that is gone without a word is noticed within a minute.
        """
        try:
            return call()
        except PASSING:
            for attempt in Retrying(
                retry=retry_if_exception_type(PASSING),
                stop=stop_after_delay(PATIENCE_SECONDS),
                wait=wait_random_exponential(0.2, max=5),
                reraise=True,
            ):
                with attempt:
                    return call()
        raise AssertionError("unreachable")


def _unlogged(writes: list[BoundStatement]) -> Statement:
    """Return the writes as one statement, at the consistency of the first."""
    if len(writes) == 1:
        return writes[0]
    batch = BatchStatement(BatchType.UNLOGGED, consistency_level=writes[0].consistency_level)
    batch.is_idempotent = True
    for write in writes:
        batch.add(write)
    return batch


def _taken(outcome: Any) -> list[Any]:
    """Return all rows of an answer, and drop its timer: the two reference each other, so large answers would
    pile up in memory.
    """
    if outcome is None:
        return []
    rows, outcome.response_future._timer = list(outcome), None
    return rows


class Contact(NamedTuple):
    """The first contact point that answers: its datacenter, its release, and its cluster's name."""

    datacenter: str
    release: str
    cluster: str


def contact(settings: CassandraSettings) -> Contact:
    """Ask a contact point which datacenter it is in, whatever `local_datacenter` says."""
    where = f"Cassandra at {', '.join(settings.hosts)}:{settings.port}"
    cluster = _cluster(settings, RoundRobinPolicy(), ConsistencyLevel.ONE, compression=False)
    _connect(cluster, settings, where)
    try:
        # A query might be answered by any node of the cluster, also one of another datacenter.
        host = cluster.get_control_connection_host()
        return Contact(host.datacenter, host.release_version, cluster.metadata.cluster_name)
    finally:
        cluster.shutdown()


class _Cluster(Cluster):  # type: ignore[misc]
    def signal_connection_failure(self, host: Any, *args: Any, **options: Any) -> bool:
        """Return whether the host is down now, so that only then a pool that lost its connection gives up.

        The driver's own answer is yes even if it leaves the host up, since another session has a connection to it; the
        pool then stays shut down (scylladb/python-driver issue 1027).
        """
        return super().signal_connection_failure(host, *args, **options) and not host.is_up


def _cluster(
    settings: CassandraSettings, policy: LoadBalancingPolicy, consistency: int, *, compression: bool
) -> Cluster:
    profile = ExecutionProfile(
        load_balancing_policy=policy,
        consistency_level=consistency,
        serial_consistency_level=ConsistencyLevel.SERIAL,
        request_timeout=settings.request_timeout_seconds,
        row_factory=_named_rows,
    )
    try:
        cluster = _Cluster(
            settings.hosts,
            port=settings.port,
            auth_provider=_auth(settings),
            ssl_context=_tls(settings),
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=RECONNECT,
            compression=compression,
            connect_timeout=settings.connect_timeout_seconds,
            control_connection_timeout=settings.connect_timeout_seconds,
            schema_metadata_enabled=False,
        )
    except UnresolvableContactPoints:
        raise StoreUnavailable(
            f"Cassandra at {', '.join(settings.hosts)}:{settings.port}: no host has an address. Nothing was done; "
            "correct cassandra.hosts, or try again once the name service answers"
        ) from None
    cluster.protocol_version = NEWEST_PROTOCOL
    return cluster


@lru_cache(maxsize=1024)
def _row_type(names: tuple[str, ...]) -> Any:
    return type(named_tuple_factory(names, [(None,) * len(names)])[0])


def _named_rows(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[Any]:
    """Return rows as named tuples; the driver's own factory makes a new class for each answer, which takes longer than
    to read one of a few rows.
    """
    return list(map(_row_type(tuple(names))._make, rows))


def _connect(cluster: Cluster, settings: CassandraSettings, where: str) -> Session:
    """Open a session; raises ConfigurationError or StoreUnavailable and ends the cluster's threads."""
    try:
        return cluster.connect()
    except NoHostAvailable as error:
        cluster.shutdown()
        datacenters = {host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter}
        raise _connect_error(settings, where, error, datacenters) from None
    except DriverException as error:
        cluster.shutdown()
        raise StoreUnavailable(f"{where}: {error}") from None


_kept: list[Cassandra] = []


def connected(settings: CassandraSettings) -> Cassandra:
    """Return this process's connection, which a Python worker of Spark keeps for its later tasks.

    It ends with the process.

    Other settings than before replace the connection.
    """
    if _kept and _kept[0].settings != settings:
        _kept.pop().close()
    if not _kept:
        # Everything that the driver logs also arrives as an exception.
        logging.getLogger("cassandra").setLevel(logging.CRITICAL)
        # Like Spark's connector, this does not compress: compression takes as long as everything else that is
        # done to a row.
        _kept.append(Cassandra(settings, compression=False))
    return _kept[0]


@overload
def utc(moment: datetime) -> datetime: ...
@overload
def utc(moment: None) -> None: ...
def utc(moment: datetime | None) -> datetime | None:
    """Mark a moment that the driver returned as UTC, which it is without a time zone; None stays None."""
    return moment.replace(tzinfo=UTC) if moment else None


def needs_tables(cassandra: Cassandra, keyspace: str, tables: Collection[str]) -> None:
    """Raise ConfigurationError unless the ledger's keyspace has these tables."""
    if missing := cassandra.missing(keyspace, tables):
        raise ConfigurationError(
            f"{cassandra.where}: the ledger's keyspace {keyspace} has no table {' and '.join(missing)}. "
            "Nothing was done. "
            "Create it: tagmill schema apply"
        )


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Raise the driver's errors as Tagmill's: StoreUnavailable if a retry may help, ConfigurationError if the
    operator has to act.
    """
    try:
        yield
    except TagmillError:
        raise
    except PASSING as error:
        raise StoreUnavailable(f"{where} did not answer: {_brief(error)}. {AGAIN}") from None
    except Unauthorized as error:
        right = missing_right(str(error))
        said = f"{right.said}. {right.way_out}, then run the same command again" if right else _brief(error)
        raise ConfigurationError(f"{where} refused: {said}") from None
    except (InvalidRequest, ErrorMessage) as error:
        raise ConfigurationError(f"{where} refused: {_brief(error)}") from None
    except (RequestExecutionException, DriverException) as error:
        raise StoreUnavailable(f"{where}: {_brief(error)}. {AGAIN}") from None


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _connect_error(
    settings: CassandraSettings, where: str, error: NoHostAvailable, datacenters: Collection[str]
) -> TagmillError:
    """Return the error that says why no session could be made; `datacenters`: those of the nodes that have
    answered.
    """
    if datacenters and settings.local_datacenter not in datacenters:
        return DatacenterUnknown(
            f"{where} has no datacenter {settings.local_datacenter} (there: "
            f"{', '.join(sorted(datacenters))}). Nothing was done; correct cassandra.local_datacenter"
        )
    if settings.tls:
        for host in settings.hosts:
            address = (host, settings.port)
            if refused := tls.refusal(
                "cassandra", where, address, settings, settings.connect_timeout_seconds
            ):
                return refused
    causes = list(error.errors.values()) if isinstance(error.errors, dict) else []
    if any(isinstance(cause, AuthenticationFailed) for cause in causes):
        return LoginRefused(
            f"{where} refused the user name or password; set them in the environment or the Airflow "
            "connection"
        )
    cause = f": {_brief(causes[0])}" if causes else ""
    return StoreUnavailable(
        f"{where} can't be reached{cause}. Nothing was done; is it up, are host, port and "
        "local_datacenter right?"
    )


def _auth(settings: CassandraSettings) -> PlainTextAuthProvider | None:
    if settings.username is None or settings.password is None:
        return None
    return PlainTextAuthProvider(settings.username, settings.password.get_secret_value())


def _tls(settings: CassandraSettings) -> ssl.SSLContext | None:
    return tls.context("cassandra", settings) if settings.tls else None
