"""What was set apart of a topic's pipeline so that it goes on: records, columns, and the batches of runs that were given up."""

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum

from tagmill import names
from tagmill.stores.cassandra import Cassandra


class Kind(StrEnum):
    """What an item is: a record's topic/partition/offset, a column's name, a batch's id, an id of a Kafka Journal.

    SINCE: an id that is set apart, or was, with the places from which on its events were left out (Since as JSON, in place of a reason).
    """

    RECORD = "record"
    COLUMN = "column"
    BATCH = "batch"
    ID = "id"
    SINCE = "id_since"


class SetApart:
    """Those of one pipeline."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        self.cassandra, self.pipeline = cassandra, pipeline
        self.table = f"{names.cql(ledger_keyspace)}.set_apart"

    def items(self, kind: Kind) -> dict[str, str]:
        """Return the items of a kind, and why each was set apart."""
        rows = self.cassandra.stream(
            f"SELECT item, why FROM {self.table} WHERE pipeline = ? AND kind = ?", self.pipeline, kind.value
        )
        return {row.item: row.why for row in rows}

    def add(self, kind: Kind, items: Iterable[str], run: int, who: str, why: str) -> None:
        """Set items apart; doing it again changes nothing but the reason."""
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, kind, item, run, who, at, why) VALUES (?, ?, ?, ?, ?, ?, ?)",
            ((self.pipeline, kind.value, item, run, who, datetime.now(UTC), why) for item in items),
        )

    def remove(self, kind: Kind, item: str) -> None:
        """Take an item back."""
        self.cassandra.write_many(
            f"DELETE FROM {self.table} WHERE pipeline = ? AND kind = ? AND item = ?", [(self.pipeline, kind.value, item)]
        )
