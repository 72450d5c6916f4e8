"""Reads how far other readers of a view are: projections of the application, by their own offsets."""

from collections.abc import Iterator
from uuid import UUID

from tagmill.cassandra.client import Cassandra
from tagmill.config.tag_views import OffsetStore, OtherReader
from tagmill.domain import identifiers
from tagmill.domain.timeuuid import from_datetime, ticks
from tagmill.maintenance.view_cleanup.rules import ReadTo

# Pekko and Akka Projection spread a projection's keys over these partitions (CassandraOffsetStore). TBU is
# the manifest of the TimeBasedUUID offsets of eventsByTag.
PARTITIONS = (0, 1, 2, 3, 4)
TIME_BASED_UUID = "TBU"


def positions(cassandra: Cassandra, readers: list[OtherReader], tag: str) -> Iterator[ReadTo]:
    """Yield how far each reader of the tag has read, as the configuration states it or by the reader's stored
    offset.
    """
    for reader in readers:
        if reader.tags is not None and tag not in reader.tags:
            continue
        if reader.read_to is not None:
            yield ReadTo(reader.name, from_datetime(reader.read_to))
        elif reader.offset_store is not None:
            yield _stored(cassandra, reader.name, reader.offset_store, tag)


def _stored(cassandra: Cassandra, name: str, store: OffsetStore, tag: str) -> ReadTo:
    key = store.projection_key or tag
    table = f"{identifiers.cql(store.keyspace)}.{identifiers.cql(store.table)}"
    found = [
        row
        for partition in PARTITIONS
        for row in cassandra.application.execute(
            f'SELECT "offset", manifest FROM {table} WHERE projection_name = ? AND partition = ? AND '
            "projection_key = ?",
            store.projection_name,
            partition,
            key,
        )
    ]
    where = (
        f"{store.keyspace}.{store.table}, projection_name {store.projection_name!r}, projection_key {key!r}"
    )
    if not found:
        return ReadTo(name, None, f"it has no offset yet in {where}")
    if found[0].manifest != TIME_BASED_UUID:
        return ReadTo(name, None, f"its offset in {where} is no TimeUUID (manifest {found[0].manifest!r})")
    try:
        return ReadTo(name, ticks(UUID(found[0].offset)))
    except ValueError:
        return ReadTo(name, None, f"its offset in {where} is no TimeUUID: {found[0].offset!r}")
