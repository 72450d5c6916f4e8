"""Open a driver session on the local Cassandra, with one clear line when Cassandra doesn't answer; write many
rows fast.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.concurrent import execute_concurrent
from cassandra.policies import DCAwareRoundRobinPolicy, TokenAwarePolicy
from cassandra.query import BatchStatement, BatchType

from tagmill.cassandra.client import RECONNECT
from tagmill.domain.identifiers import cql
from tagmill.errors import StoreUnavailable

BATCH_BYTES = 30_000  # of a batch: below Cassandra's batch_size_fail_threshold of 50 KiB
ROW_BYTES = 150  # a row's keys and columns without the payload
IN_FLIGHT = 24


@contextmanager
def session(port: int, host: str = "127.0.0.1") -> Iterator[Session]:
    """Yield a session and close it at the end; raise StoreUnavailable if no Cassandra answers."""
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy("datacenter1")), request_timeout=60
    )
    cluster = Cluster(
        [host],
        port=port,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        protocol_version=5,
        connect_timeout=10,
        reconnection_policy=RECONNECT,
        schema_metadata_enabled=False,  # the driver would read all of it, after each change
        max_schema_agreement_wait=0,  # seconds; the only node agrees with itself
    )
    try:
        try:
            connected = cluster.connect()
        except NoHostAvailable:
            raise StoreUnavailable(
                f"no Cassandra answers on {host}:{port}. Start it: tagmill local up --part cassandra"
            ) from None
        yield connected
    finally:
        cluster.shutdown()


def write_partitions(
    session: Session,
    table: str,
    columns: Sequence[str],
    partitions: Iterable[Sequence[Sequence[Any]]],
    payload_bytes: int,
) -> None:
    """Insert rows partition by partition, in unlogged batches of one partition each, many batches at once.

    Args:
        session: on the cluster.
        table: keyspace and table, quoted.
        columns: of the rows, in the order of their values.
        partitions: the rows of one partition each.
        payload_bytes: largest payload of a row, in bytes.
    """
    names, marks = ", ".join(cql(column) for column in columns), ", ".join("?" for _ in columns)
    insert = session.prepare(f"INSERT INTO {table} ({names}) VALUES ({marks})")
    size = max(1, BATCH_BYTES // (payload_bytes + ROW_BYTES))

    def batches() -> Iterator[tuple[BatchStatement, tuple[()]]]:
        for rows in partitions:
            for first in range(0, len(rows), size):
                batch = BatchStatement(BatchType.UNLOGGED)
                for row in rows[first : first + size]:
                    batch.add(insert, row)
                yield batch, ()

    for _ in execute_concurrent(session, batches(), concurrency=IN_FLIGHT, results_generator=True):
        pass
