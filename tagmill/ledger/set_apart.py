"""Items that were set apart so that a topic's pipeline goes on: records, columns, ids, and the batches of
runs that were given up.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from enum import StrEnum

from tagmill.cassandra.client import Cassandra
from tagmill.domain import identifiers


class Kind(StrEnum):
    """The kind of an item: a record's topic/partition/offset, a column's name, a batch's id, an id of a Kafka
    Journal.

    SINCE: an id that is or was set apart, with the places from which on its events were left out (Since as
    JSON, in place of a reason).
    """

    RECORD = "record"
    COLUMN = "column"
    BATCH = "batch"
    ID = "id"
    SINCE = "id_since"


class SetApart:
    """The items of one pipeline that are set apart."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        self.cassandra, self.pipeline = cassandra, pipeline
        self.table = f"{identifiers.cql(ledger_keyspace)}.set_apart"

    def items(self, kind: Kind) -> dict[str, str]:
        """Return the items of a kind with the reason why each was set apart."""
        rows = self.cassandra.stream(
            f"SELECT item, why FROM {self.table} WHERE pipeline = ? AND kind = ?", self.pipeline, kind.value
        )
        return {row.item: row.why for row in rows}

    def add(self, kind: Kind, items: Iterable[str], run: int, who: str, why: str) -> None:
        """Set items apart; a repetition replaces run, person, time and reason."""
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, kind, item, run, who, at, why) VALUES (?, ?, ?, ?, ?, "
            "?, ?)",
            ((self.pipeline, kind.value, item, run, who, datetime.now(UTC), why) for item in items),
        )

    def remove(self, kind: Kind, item: str) -> None:
        """Delete an item from the record, so that it is no longer set apart."""
        self.cassandra.write_many(
            f"DELETE FROM {self.table} WHERE pipeline = ? AND kind = ? AND item = ?",
            [(self.pipeline, kind.value, item)],
        )
