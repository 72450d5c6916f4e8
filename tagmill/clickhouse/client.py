"""The destination in ClickHouse: insert a sealed batch unless it is there, read a batch's totals, check the
table.

All requests go over HTTP. The insert checks and inserts in one statement on the server, so a client that
freezes can't double a batch.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BytesIO
from itertools import groupby
from math import ceil
from shutil import copyfileobj
from typing import Any, BinaryIO, cast
from uuid import UUID

import clickhouse_connect
from clickhouse_connect.driver import httputil
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DatabaseError
from clickhouse_connect.driver.exceptions import OperationalError as ClickHouseOperationalError
from tenacity import Retrying, stop_after_delay, wait_fixed
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError

from tagmill.clickhouse import destination
from tagmill.config import tls
from tagmill.config.settings import ClickHouseSettings
from tagmill.domain import identifiers
from tagmill.domain.batches import layout as columns
from tagmill.domain.time_buckets import BucketSize
from tagmill.errors import AGAIN, ConfigurationError, DestinationDiffers, LoginRefused, StoreUnavailable
from tagmill.idle_connections import Borrower, IdleConnections

# These settings make one insert one block and one part. Without the two min_* a batch of 1.4 million rows
# became two parts.
INSERT_SETTINGS = {
    "min_insert_block_size_rows": 1_000_000_000,
    "min_insert_block_size_bytes": 1_000_000_000_000,
    "max_insert_threads": 1,
    "max_threads": 1,
    "input_format_parquet_preserve_order": 1,
    "input_format_null_as_default": 0,
    "async_insert": 0,  # recent versions have 1 as their default
    "insert_deduplicate": 1,
}
# Seconds that void_batch waits for a running insert of its batch to end.
VOID_WAIT_SECONDS = 60
# Bytes of values bound in one statement; ClickHouse's max_query_size is 262144 bytes.
MAX_BOUND_BYTES = 100_000
# The client binds these values: those that the server binds travel in the request's address, which has no
# room for them.
BOUND = (
    "(SELECT %(ids)s AS ps, %(sequence_nrs)s AS ss, %(numbers)s AS ns) ARRAY JOIN ps AS p, ss AS s, ns AS n"
)
OF_EVENTS = f"`tag` = %(tag)s AND (`persistence_id`, `sequence_nr`) IN (SELECT p, s FROM {BOUND})"
OF_IDS = "`persistence_id` IN %(ids)s"
# Exception codes of faults that pass: timeout, too many queries or connections, memory limit, network, object
# storage (364, 499, 500, 660, 707, 737), too many parts or mutations, a replica that is busy or without its keeper,
# a server that starts, stops or has no thread left.
PASSING_CODES = frozenset(
    {
        95,
        96,
        159,
        198,
        202,
        203,
        209,
        210,
        225,
        236,
        241,
        242,
        252,
        254,
        279,
        285,
        286,
        319,
        341,
        364,
        394,
        439,
        473,
        499,
        500,
        660,
        692,
        707,
        722,
        733,
        737,
        745,
        749,
        762,
        999,
        1002,
    }
)


@dataclass(frozen=True, slots=True)
class Totals:
    """Rows and checksum (modulo 2^64) of a batch in the destination, by generation."""

    generation: int
    rows: int
    checksum: int


@dataclass(frozen=True, slots=True)
class OfBatch:
    """Rows of some persistence ids in one batch, and their checksum (modulo 2^64)."""

    tag: str
    batch_id: UUID
    rows: int
    checksum: int


class _Connection:
    """The driver's client, with the connections that show a client certificate if one is configured."""

    def __init__(self, settings: ClickHouseSettings) -> None:
        self.made_for = (settings,)
        self._pool = _own_pool(settings)
        shown = str(settings.tls_certificate_file) if self._pool else None
        with ExitStack() as failed:
            failed.callback(self._end_pool)
            self.client: Client = clickhouse_connect.get_client(
                host=settings.host,
                port=settings.port,
                database=settings.database,
                username=settings.username,
                password=settings.password.get_secret_value() if settings.password else "",
                secure=settings.tls,
                ca_cert=str(settings.tls_ca_file) if settings.tls_ca_file else None,
                pool_mgr=self._pool,
                # With it, the certificate is the login, and no password is sent.
                client_cert=shown if settings.username and settings.password is None else None,
                connect_timeout=ceil(settings.connect_timeout_seconds),
                send_receive_timeout=ceil(settings.request_timeout_seconds),
                autogenerate_session_id=False,
            )
            failed.pop_all()

    def works(self) -> bool:
        """Return whether the server answers."""
        try:
            return self.client.ping()
        except OSError:
            return False

    def end(self) -> None:
        """End the connections to the server."""
        self.client.close()
        self._end_pool()

    def _end_pool(self) -> None:
        """End the connections that show a client certificate; the driver only ends its own."""
        if self._pool is not None:
            self._pool.clear()
            httputil.all_managers.pop(self._pool, None)


# The driver asks a server for its version and its thousand settings before the first statement.
idle = IdleConnections[_Connection]()


class ClickHouse(Borrower[_Connection]):
    """An HTTP client, for destinations with the columns of `layout`."""

    def __init__(self, settings: ClickHouseSettings, layout: columns.Layout = columns.TAG_VIEWS) -> None:
        self.settings, self.layout = settings, layout
        self.where = f"ClickHouse at {settings.host}:{settings.port}"
        with self._tls_explained(), self.explained("can't be reached"):
            super().__init__(idle, idle.take(settings) or _Connection(settings))
        self.client = self._connection.client

    def command(self, statement: str, parameters: dict[str, Any] | None = None) -> None:
        """Run one statement that returns no rows."""
        with self.explained("refused a statement"):
            self.client.command(statement, parameters=parameters)

    def rows(
        self, query: str, parameters: dict[str, Any] | None = None, settings: dict[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """Run a query and return all of its rows, for small results."""
        with self.explained("could not answer"):
            return [
                tuple(row)
                for row in self.client.query(query, parameters=parameters, settings=settings).result_rows
            ]

    def insert_rows(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Insert a few rows; a repetition inserts them again."""
        with self.explained("did not confirm an insert"):
            self.client.insert(table, rows, column_names=list(columns), settings={"async_insert": 0})

    def now(self) -> datetime:
        """Return the time by the server's clock."""
        ((milliseconds,),) = self.rows("SELECT toUnixTimestamp64Milli(now64(3))")
        return datetime.fromtimestamp(milliseconds / 1000, UTC)

    def save(self, query: str, parameters: dict[str, Any], sink: BinaryIO, settings: dict[str, Any]) -> None:
        """Stream the rows of a query, as Parquet, into an open file."""
        with self.explained("could not answer"):
            stream = self.client.raw_stream(query, parameters=parameters, settings=settings, fmt="Parquet")
            with closing(cast(BinaryIO, stream)) as rows:
                copyfileobj(rows, sink)

    def insert_batch(self, table: str, batch_id: UUID, generation: int, parquet: bytes) -> bool:
        """Insert a sealed file's rows unless the batch is there; return False if ClickHouse wrote none, since
        an earlier request had.

        Callers must read the outcome with `totals`, whatever this returns or raises.
        """
        # raw_insert binds no parameters. A UUID and an int have only one spelling each, so they are safe in
        # the statement's text.
        batch = f"toUUID('{UUID(int=batch_id.int)}')"
        target = (
            f"{identifiers.sql(table)} ({self._names()}, `batch_id`, `generation`) "
            f"SELECT {self.layout.insert_expressions()}, {batch}, toUInt32({int(generation)}) "
            f"FROM input({_quoted(self.layout.input_structure())}) "
            f"WHERE (SELECT count() FROM {identifiers.sql(table)} WHERE `batch_id` = {batch}) = 0 "
            f"AND (SELECT count() FROM {identifiers.sql(table + '_voided')} WHERE `batch_id` = {batch}) = 0"
        )
        with self.explained(f"did not confirm batch {batch_id}"):
            # The client leaves the bytes of a stream alone (command(data=...) decodes 100 MB as text, 3.4 s
            # of 4.2 s).
            summary = self.client.raw_insert(
                target,
                insert_block=BytesIO(parquet),
                fmt="Parquet",
                settings={**INSERT_SETTINGS, "insert_deduplication_token": f"{batch_id}-{generation}"},
            )
        # The client repeats a request whose connection ended, and the repetition writes nothing.
        return summary.summary.get("written_rows") != "0"

    def totals(self, table: str, batch_id: UUID, *, from_rows: bool = False) -> list[Totals]:
        """Return a batch's totals in the table, by generation; `from_rows` reads every column again instead
        of the projection.
        """
        found = self.rows(
            f"SELECT `generation`, count(), sum({self.layout.row_checksum_sql()}) FROM "
            f"{identifiers.sql(table)} "
            "WHERE `batch_id` = {batch:UUID} GROUP BY `batch_id`, `generation` ORDER BY `generation`",
            {"batch": str(batch_id)},
            {"optimize_use_projections": 0} if from_rows else None,
        )
        return [Totals(int(generation), int(rows), int(checksum)) for generation, rows, checksum in found]

    def totals_of(self, table: str, batch_ids: Iterable[UUID]) -> dict[UUID, list[Totals]]:
        """Return the totals of many batches, read from every column as by `totals`; [] if the table has no row of one."""
        wanted = list(batch_ids)
        found: dict[UUID, list[Totals]] = {batch_id: [] for batch_id in wanted}
        for part in _id_chunks(map(str, wanted)):
            rows = self.rows(
                f"SELECT `batch_id`, `generation`, count(), sum({self.layout.row_checksum_sql()}) "
                f"FROM {identifiers.sql(table)} WHERE `batch_id` IN %(ids)s "
                "GROUP BY `batch_id`, `generation` ORDER BY `generation`",
                {"ids": tuple(part)},
                {"optimize_use_projections": 0},
            )
            for batch_id, generation, count, checksum in rows:
                found[UUID(str(batch_id))].append(Totals(int(generation), int(count), int(checksum)))
        return found

    def absent(self, table: str, batch_ids: Iterable[UUID]) -> frozenset[UUID]:
        """Return those of these batches of which the table has no row, in any generation."""
        wanted = frozenset(batch_ids)
        found: set[UUID] = set()
        for part in _id_chunks(map(str, wanted)):
            rows = self.rows(
                f"SELECT DISTINCT `batch_id` FROM {identifiers.sql(table)} WHERE `batch_id` IN %(ids)s",
                {"ids": tuple(part)},
            )
            found.update(UUID(str(batch_id)) for (batch_id,) in rows)
        return wanted - found

    def present(self, table: str, events: Collection[tuple[str, str, int]]) -> set[columns.EventKey]:
        """Return the events that the table has, in any batch, under these (tag, persistence_id, sequence_nr).

        In two lives of a persistence_id, different writers' events have the same.
        """
        found: set[columns.EventKey] = set()
        for tag, part in _chunks(
            (tag, persistence_id, number, 0) for tag, persistence_id, number in sorted(events)
        ):
            rows = self.rows(
                "SELECT DISTINCT `persistence_id`, `sequence_nr`, `writer_uuid` FROM "
                f"{identifiers.sql(table)} WHERE {OF_EVENTS}",
                _bound(tag, part),
            )
            found.update((tag, str(one), int(number), str(writer)) for one, number, writer in rows)
        return found

    def events_only_in(self, table: str, batch_id: UUID) -> int:
        """Count the events of a batch that the table has in no other batch."""
        event = ", ".join(map(identifiers.sql, self.layout.identity))
        of_batch = f"SELECT {event} FROM {identifiers.sql(table)} WHERE `batch_id` = {{batch:UUID}}"
        ((count,),) = self.rows(
            "SELECT countIf(others = 0) FROM "
            "(SELECT countIf(`batch_id` != {batch:UUID}) AS others "
            f"FROM {identifiers.sql(table)} WHERE ({event}) IN ({of_batch}) GROUP BY {event})",
            {"batch": str(batch_id)},
        )
        return int(count)

    def events_of(self, table: str, tag: str, persistence_id: str) -> set[tuple[int, str]]:
        """Return (sequence_nr, writer_uuid) of all rows of one persistence_id and tag."""
        found = self.rows(
            f"SELECT DISTINCT `sequence_nr`, `writer_uuid` FROM {identifiers.sql(table)} "
            "WHERE `tag` = {tag:String} AND `persistence_id` = {persistence_id:String}",
            {"tag": tag, "persistence_id": persistence_id},
        )
        return {(int(number), str(writer)) for number, writer in found}

    def batches_with_other_numbers(self, table: str, numbers: Mapping[columns.EventKey, int]) -> set[UUID]:
        """Return the batches that have one of these events under another number than its own."""
        found: set[UUID] = set()
        for tag, part in _chunks(sorted((*event[:3], number) for event, number in numbers.items())):
            rows = self.rows(
                "SELECT DISTINCT `batch_id`, `persistence_id`, `sequence_nr`, `writer_uuid` FROM "
                f"{identifiers.sql(table)} WHERE {OF_EVENTS} "
                "AND (`persistence_id`, `sequence_nr`, `tag_pid_sequence_nr`) NOT IN (SELECT p, s, n "
                f"FROM {BOUND})",
                _bound(tag, part),
            )
            found.update(UUID(str(batch)) for batch, *event in rows if (tag, *event) in numbers)
        return found

    def bucket_rows(self, table: str, tag: str, buckets: Sequence[int], size: int) -> dict[int, int]:
        """Count the rows of a tag by the bucket that their time is in; `size` is a bucket's milliseconds.

        The column timebucket can't be used: it has the bucket size that the view had when the rows were
        delivered.
        """
        if not buckets:
            return {}
        found = self.rows(
            "SELECT intDiv(toUnixTimestamp64Milli(`event_time`), {size:Int64}) * {size:Int64} AS bucket, "
            "count() "
            f"FROM {identifiers.sql(table)} "
            "WHERE `tag` = {tag:String} AND bucket IN {buckets:Array(Int64)}"
            " AND `event_time` >= fromUnixTimestamp64Milli({low:Int64}) AND `event_time` < "
            "fromUnixTimestamp64Milli({high:Int64})"
            " GROUP BY bucket",
            {
                "tag": tag,
                "buckets": list(buckets),
                "size": size,
                "low": min(buckets),
                "high": max(buckets) + size,
            },
        )
        return {int(bucket): int(rows) for bucket, rows in found}

    def rows_by_bucket(
        self, table: str, tag: str, size: int, after: int, until: int
    ) -> Iterator[tuple[int, int, int]]:
        """Yield the buckets (as by `bucket_rows`) of a tag's rows with after < time <= until (ticks), their rows, and
        how many of those the view did not have in the bucket of their time, whatever size its buckets had.
        """
        milliseconds = "toUnixTimestamp64Milli(`event_time`)"
        of_sizes = ", ".join(
            f"{milliseconds} - positiveModulo({milliseconds}, {each.milliseconds})" for each in BucketSize
        )
        at = next(column for column in self.layout.columns if column.name == "event_time")
        time_sql = at.stored.format("`event_time`")
        query = (
            f"SELECT {milliseconds} - positiveModulo({milliseconds}, {{size:Int64}}) AS bucket, count(), "
            f"countIf(`timebucket` NOT IN ({of_sizes})) FROM {identifiers.sql(table)} WHERE `tag` = {{tag:String}} "
            f"AND {time_sql} > {{after:Int64}} AND {time_sql} <= {{until:Int64}} GROUP BY bucket"
        )
        values = {"tag": tag, "size": size, "after": after, "until": until}
        with (
            self.explained("could not answer"),
            self.client.query_rows_stream(query, parameters=values) as rows,
        ):
            for bucket, count, elsewhere in rows:
                yield int(bucket), int(count), int(elsewhere)

    def delete_batch(self, table: str, batch_id: UUID, generation: int) -> None:
        """Delete a batch's rows up to a generation, and wait until they are gone.

        Rows of later generations stay.
        """
        with self.explained(f"did not confirm the removal of batch {batch_id}"):
            self.client.command(
                f"ALTER TABLE {identifiers.sql(table)} DELETE "
                "WHERE `batch_id` = {batch:UUID} AND `generation` <= {generation:UInt32}",
                parameters={"batch": str(batch_id), "generation": generation},
                settings={"mutations_sync": 2},
            )

    def of_ids(self, table: str, persistence_ids: Iterable[str]) -> tuple[set[str], list[OfBatch]]:
        """Return which of these persistence ids the table has, and their rows and checksum by batch.

        A batch comes once for each part of the ids that fits into one statement.
        """
        known: set[str] = set()
        found: list[OfBatch] = []
        for part in _id_chunks(persistence_ids):
            values, where = {"ids": tuple(part)}, f"FROM {identifiers.sql(table)} WHERE {OF_IDS}"
            known.update(
                str(one) for (one,) in self.rows(f"SELECT DISTINCT `persistence_id` {where}", values)
            )
            total = (
                f"SELECT toString(`tag`), `batch_id`, count(), sum({self.layout.row_checksum_sql()}) "
                f"{where} GROUP BY `tag`, `batch_id`"
            )
            found.extend(
                OfBatch(str(tag), UUID(str(batch)), int(rows), int(checksum))
                for tag, batch, rows, checksum in self.rows(total, values)
            )
        return known, found

    def delete_ids(self, table: str, persistence_ids: Iterable[str]) -> None:
        """Delete all rows of persistence ids, in any batch, and wait until they are gone."""
        for part in _id_chunks(persistence_ids):
            with self.explained("did not confirm the removal of persistence ids"):
                self.client.command(
                    f"ALTER TABLE {identifiers.sql(table)} DELETE WHERE {OF_IDS}",
                    parameters={"ids": tuple(part)},
                    settings={"mutations_sync": 2},
                )

    def void_batch(self, table: str, batch_id: UUID) -> None:
        """Make every later insert of this batch do nothing, and wait until a running one has ended.

        Raises StoreUnavailable: an insert still runs after VOID_WAIT_SECONDS. The mark stays; a push or resend
        of a batch that is not VOIDED removes it.
        """
        self.command(
            f"INSERT INTO {identifiers.sql(table + '_voided')} (`batch_id`) VALUES ({{batch:UUID}})",
            {"batch": str(batch_id)},
        )
        for attempt in Retrying(stop=stop_after_delay(VOID_WAIT_SECONDS), wait=wait_fixed(1), reraise=True):
            with attempt:
                running = self.rows(
                    "SELECT count() FROM system.processes WHERE query LIKE 'INSERT%' AND query LIKE "
                    "{like:String}",
                    {"like": f"%{batch_id}%"},
                )
                if running[0][0]:
                    raise StoreUnavailable(
                        f"{self.where}: an insert of batch {batch_id} still runs. Nothing was changed but "
                        f"the batch's mark in {table}_voided; run the same command again later",
                        batch=batch_id,
                    )

    def voided_at(self, table: str, batch_id: UUID) -> int:
        """Return when void_batch marked a batch last, in seconds since 1970; 0 if it is not marked."""
        voided = table + "_voided"
        self.sync_replica(voided)
        ((seconds,),) = self.rows(
            f"SELECT toUnixTimestamp(max(`voided_at`)) FROM {identifiers.sql(voided)} "
            "WHERE `batch_id` = {batch:UUID}",
            {"batch": str(batch_id)},
        )
        return int(seconds or 0)

    def unvoid_batch(self, table: str, batch_id: UUID, until: int) -> None:
        """Remove the marks of void_batch that a batch has got up to a time in seconds since 1970."""
        with self.explained(f"did not take back the mark of batch {batch_id}"):
            self.client.command(
                f"ALTER TABLE {identifiers.sql(table + '_voided')} DELETE "
                "WHERE `batch_id` = {batch:UUID} AND toUnixTimestamp(`voided_at`) <= {until:UInt32}",
                parameters={"batch": str(batch_id), "until": until},
                settings={"mutations_sync": 2},
            )

    def sync_replica(self, table: str) -> None:
        """Wait until this replica has what the others have, before a caller believes that rows are absent.

        Does nothing without a cluster.
        """
        if self.settings.cluster:
            self.command(f"SYSTEM SYNC REPLICA {identifiers.sql(table)}")

    def columns_of(self, table: str, *, plain: bool = False) -> dict[str, str]:
        """Return the columns of a table with their types, with `plain` only those without a default; none if
        the table does not exist.
        """
        chosen = "database = {database:String} AND table = {table:String}" + (
            " AND default_kind = ''" if plain else ""
        )
        query = f"SELECT name, type FROM system.columns WHERE {chosen} ORDER BY position"
        return dict(self.rows(query, {"database": self.settings.database, "table": table}))

    def check_destination(self, table: str, *, may_be_missing: bool = False) -> None:
        """Raise DestinationDiffers unless the table has the right engine, and the columns that a batch fills,
        with their types.
        """
        self.check_engine(table)
        found = self.columns_of(table)
        name = self._table_name(table)
        if not found and may_be_missing:
            return
        if not found:
            raise DestinationDiffers(
                f"{name} does not exist. Nothing was sent. Create it: tagmill schema apply"
            )
        wanted = {column.name: column.table_type for column in self.layout.columns} | {
            "batch_id": "UUID",
            "generation": "UInt32",
        }
        wrong = [
            f"{column} is {found.get(column, 'missing')}, must be {type_}"
            for column, type_ in wanted.items()
            if found.get(column) != type_
        ]
        if wrong:
            raise DestinationDiffers(
                f"{name} has other columns: {'; '.join(wrong)}. Nothing was sent. Rename it, then: "
                "tagmill schema apply"
            )

    def check_for_plan(self, table: str, retention_days: int | None) -> None:
        """Raise DestinationDiffers if engine, window or TTL of an existing table would not keep what a new
        run delivers.
        """
        self.check_engine(table)
        found = self.describe(table)
        if found and not found.window:
            raise DestinationDiffers(
                f"{self._table_name(table)} has {found.window_setting} = 0, so two inserts of one batch "
                "at once would both stay. "
                "Nothing was read or sent. Set it: tagmill schema apply"
            )
        if found and (fault := found.ttl_fault(retention_days)):
            raise DestinationDiffers(f"{self._table_name(table)} {fault}. Nothing was read or sent")

    def check_engine(self, table: str) -> None:
        """Raise DestinationDiffers if a table that exists has an engine that batches can't be delivered
        to.
        """
        found = self.describe(table)
        fault = destination.engine_fault(found.engine) if found else None
        if found and fault:
            raise DestinationDiffers(
                f"{self._table_name(table)} has the engine {found.engine}, {fault}. Batches need "
                f"{destination.RIGHT_ENGINES}. "
                "Nothing was read or sent. Rename the table, or give another one as destination, then: "
                "tagmill schema apply"
            )

    def ttl_warnings(self, table: str, retention_days: int | None) -> list[str]:
        """Return a sentence if a TTL of the table removes rows that the declared retention keeps."""
        found = self.describe(table)
        fault = found.ttl_fault(retention_days) if found else None
        return [f"table {table} {fault}"] if fault else []

    def describe(self, table: str) -> destination.Table | None:
        """Return engine, TTL and deduplication window of a table; None: the table does not exist."""
        return destination.find_table(self.rows, self.settings.database, table)

    def dependent_views(self, table: str) -> list[str]:
        """Return the names of the materialized views that an insert into a table reaches, also through other
        views.
        """
        return destination.dependent_views(self.rows, self.settings.database, table)

    def ensure_window(self, table: str) -> None:
        """Give a table without a deduplication window the window that new tables get."""
        found = self.describe(table)
        if found and not found.window:
            on_cluster = (
                f" ON CLUSTER {identifiers.sql(self.settings.cluster)}" if self.settings.cluster else ""
            )
            self.command(
                f"ALTER TABLE {identifiers.sql(table)}{on_cluster} MODIFY SETTING {found.window_setting} "
                f"= {destination.WINDOW}"
            )

    def _table_name(self, table: str) -> str:
        return f"{self.where}: table {self.settings.database}.{table}"

    def _names(self) -> str:
        return ", ".join(identifiers.sql(name) for name in self.layout.names)

    @contextmanager
    def _tls_explained(self) -> Iterator[None]:
        """Raise ConfigurationError instead of StoreUnavailable if TLS fails, which no retry cures."""
        chosen = self.settings
        try:
            yield
        except StoreUnavailable:
            if chosen.tls:
                address, seconds = (chosen.host, chosen.port), chosen.connect_timeout_seconds
                if refused := tls.refusal("clickhouse", self.where, address, chosen, seconds):
                    raise refused from None
            raise

    @contextmanager
    def explained(self, action: str) -> Iterator[None]:
        """Raise an error of the driver as Tagmill's, with `action` as what ClickHouse did."""
        try:
            yield
        except DatabaseError as error:
            code = error.code
            text = f"{self.where} {action}: {_brief(error)}"
            if code in (193, 194, 516, 192):
                login = "user name or password"
                if (
                    self.settings.tls
                    and self.settings.tls_certificate_file
                    and self.settings.password is None
                ):
                    login = "user name, or the client certificate as its login"
                raise LoginRefused(f"{self.where} refused the {login}. Nothing was done") from None
            if code is None or code in PASSING_CODES:
                raise StoreUnavailable(f"{text}. {AGAIN}") from None
            raise ConfigurationError(text) from None
        except (ClickHouseOperationalError, HTTPError, OSError) as error:
            raise StoreUnavailable(f"{self.where} {action}: {_brief(error)}. {AGAIN}") from None
        except ClickHouseError as error:
            raise ConfigurationError(f"{self.where} {action}: {_brief(error)}") from None


def _own_pool(settings: ClickHouseSettings) -> PoolManager | None:
    """Return connections that show a client certificate; None if none is configured, for the driver's own.

    Raises ConfigurationError if a file of TLS can't be used.
    """
    if not settings.tls:
        return None
    context = tls.context("clickhouse", settings)
    if settings.tls_certificate_file is None:
        return None
    proxy = httputil.check_env_proxy("https", settings.host, settings.port)
    return cast(PoolManager, httputil.get_pool_manager(ssl_context=context, https_proxy=proxy))


def _chunks(events: Iterable[tuple[str, str, int, int]]) -> Iterator[tuple[str, list[tuple[str, int, int]]]]:
    """Yield sorted events by tag, in parts that one statement can bind (MAX_BOUND_BYTES)."""
    for tag, of_tag in groupby(events, key=lambda event: event[0]):
        part: list[tuple[str, int, int]] = []
        size = 0
        for _, persistence_id, sequence_nr, number in of_tag:
            length = 2 * len(persistence_id.encode()) + 50
            if part and size + length > MAX_BOUND_BYTES:
                yield tag, part
                part, size = [], 0
            part.append((persistence_id, sequence_nr, number))
            size += length
        yield tag, part


def _id_chunks(persistence_ids: Iterable[str]) -> Iterator[list[str]]:
    """Split persistence ids into parts that one statement can bind (MAX_BOUND_BYTES)."""
    return ([one for one, _, _ in part] for _, part in _chunks(("", one, 0, 0) for one in persistence_ids))


def _bound(tag: str, part: list[tuple[str, int, int]]) -> dict[str, Any]:
    """Return the values that OF_EVENTS and BOUND bind."""
    ids, sequence_nrs, numbers = zip(*part, strict=True)
    return {"tag": tag, "ids": list(ids), "sequence_nrs": list(sequence_nrs), "numbers": list(numbers)}


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _brief(error: BaseException) -> str:
    return identifiers.shortened(" ".join(str(error).split()), 400)
