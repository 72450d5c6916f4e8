"""Write events as the plugin does, and as it never would: into messages, into tag_views, or into only one of
the two.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.query import UNSET_VALUE

from local.cql import write_partitions
from tagmill.cassandra.client import Cassandra
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import GREGORIAN_TICKS, from_datetime, ticks
from tagmill.journal.tag_view_reader import VIEW_COLUMNS
from tagmill.ledger.schema import create_journal

WRITER = "0a1b2c3d-0000-4000-8000-000000000001"
MANY = 5000  # rows: more of them are written in batches
SECOND = timedelta(seconds=1)
_IN_JOURNAL = [name for name in VIEW_COLUMNS if name not in ("tag_name", "timebucket", "tag_pid_sequence_nr")]


def this_hour() -> datetime:
    """Return the start of the current hour."""
    return datetime.now(UTC).replace(minute=0, second=0, microsecond=0)


def offset(moment: datetime, node: int = 1) -> UUID:
    """Return a TimeUUID of a moment."""
    return offset_at(from_datetime(moment), node)


def offset_at(at_ticks: int, node: int = 1) -> UUID:
    """Return a TimeUUID of ticks (100 ns) since 1970, also outside the range of datetime."""
    time = at_ticks + GREGORIAN_TICKS
    return UUID(fields=(time & 0xFFFFFFFF, time >> 32 & 0xFFFF, 0x1000 | time >> 48, 0x80, 0x01, node))


def event(
    persistence_id: str, number: int, moment: datetime, tag: str = "t", **columns: Any
) -> dict[str, Any]:
    """Return one row of tag_views; sequence_nr is the number unless given."""
    at = columns.pop("timestamp", None) or offset(moment)
    record = {
        "tag_name": tag,
        "timebucket": BucketSize.HOUR.start(from_datetime(moment)),
        "timestamp": at,
        "persistence_id": persistence_id,
        "tag_pid_sequence_nr": number,
        "sequence_nr": number,
        "writer_uuid": WRITER,
        "ser_id": 9001,
        "ser_manifest": "Happened",
        "event_manifest": "",
        "event": f'{{"of": "{persistence_id}", "number": {number}}}'.encode(),
        "meta_ser_id": None,
        "meta_ser_manifest": None,
        "meta": None,
    }
    return {**record, **columns}


def events(
    persistence_id: str, numbers: Iterable[int], begin: datetime, tag: str = "t", **columns: Any
) -> list[dict[str, Any]]:
    """Return events with these numbers, each `number` seconds after `begin`."""
    return [event(persistence_id, number, begin + number * SECOND, tag, **columns) for number in numbers]


class Journal:
    """A journal keyspace on the test Cassandra."""

    def __init__(
        self, session: Session, keyspace: str, view_table: str = "tag_views", messages_table: str = "messages"
    ) -> None:
        self.session, self.keyspace, self.view_table, self.messages_table = (
            session,
            keyspace,
            view_table,
            messages_table,
        )

    def create(self, cassandra: Cassandra) -> "Journal":
        """Create the plugin's tables, and return this journal."""
        create_journal(cassandra, self.keyspace)
        return self

    def view(
        self, records: Iterable[dict[str, Any]], written_at: int | None = None, ttl: int | None = None
    ) -> None:
        """Write rows into the view; nulls stay unset.

        `written_at` is the write time in microseconds (default: now), `ttl` in seconds (default: none).
        """
        using = " AND ".join(
            f"{name} {value}" for name, value in (("TIMESTAMP", written_at), ("TTL", ttl)) if value
        )
        self._insert(self.view_table, ("tag_name", "timebucket"), list(VIEW_COLUMNS), records, using)

    def messages(self, records: Iterable[dict[str, Any]]) -> None:
        """Write the events of these rows into messages.

        `partition_nr` defaults to 0, and `tags` to the row's own tag.
        """
        rows = [
            {
                **record,
                "partition_nr": record.get("partition_nr", 0),
                "tags": record.get("tags", {record["tag_name"]}),
                "timebucket": str(record["timebucket"]),
            }
            for record in records
        ]
        columns = [*_IN_JOURNAL, "partition_nr", "tags", "timebucket"]
        self._insert(self.messages_table, ("persistence_id", "partition_nr"), columns, rows)

    def both(self, records: Iterable[dict[str, Any]]) -> None:
        """Write these rows into the view and into messages, as a sound application does."""
        rows = list(records)
        self.view(rows)
        self.messages(rows)

    def remove(self, record: dict[str, Any]) -> None:
        """Delete one row from the view."""
        key = ("tag_name", "timebucket", "timestamp", "persistence_id", "tag_pid_sequence_nr")
        where = " AND ".join(f"{name} = %s" for name in key)
        self.session.execute(
            f"DELETE FROM {self.keyspace}.{self.view_table} WHERE {where}",
            [_uuid(name, record[name]) for name in key],
        )

    def deleted_to(self, persistence_id: str, sequence_nr: int) -> None:
        """Write the metadata row that the plugin writes when it deletes events."""
        self.session.execute(
            f"INSERT INTO {self.keyspace}.metadata (persistence_id, deleted_to) VALUES (%s, %s)",
            (persistence_id, sequence_nr),
        )

    def rows(self, persistence_id: str | None = None) -> list[dict[str, Any]]:
        """Return the current rows of the view, sorted by tag, persistence_id, number and offset."""
        names = list(VIEW_COLUMNS)
        found = self.session.execute(f"SELECT {', '.join(names)} FROM {self.keyspace}.{self.view_table}")
        rows = [dict(zip(names, row, strict=True)) for row in found]
        chosen = [row for row in rows if persistence_id in (None, row["persistence_id"])]
        return sorted(
            chosen,
            key=lambda r: (
                r["tag_name"],
                r["persistence_id"],
                r["tag_pid_sequence_nr"],
                ticks(r["timestamp"]),
            ),
        )

    def _insert(
        self,
        table: str,
        partition: Sequence[str],
        names: list[str],
        records: Iterable[dict[str, Any]],
        using: str = "",
    ) -> None:
        def values(record: dict[str, Any]) -> list[Any]:
            return [UNSET_VALUE if record[name] is None else _uuid(name, record[name]) for name in names]

        records = list(records)
        if len(records) > MANY and not using:
            groups = groupby(records, key=itemgetter(*partition))
            partitions = ([values(record) for record in rows] for _, rows in groups)
            largest = max(len(record["event"] or b"") for record in records)
            write_partitions(self.session, f"{self.keyspace}.{table}", names, partitions, largest)
            return
        insert = self.session.prepare(
            f"INSERT INTO {self.keyspace}.{table} ({', '.join(names)}) VALUES "
            f"({', '.join('?' for _ in names)})" + (f" USING {using}" if using else "")
        )
        rows = map(values, records)
        for done, error in execute_concurrent_with_args(self.session, insert, rows, results_generator=True):
            assert done, error


def _uuid(name: str, value: Any) -> Any:
    return UUID(str(value)) if name == "timestamp" else value
