"""Compare what arrived in ClickHouse with what had to arrive, row for row and column for column."""

from collections import Counter
from typing import Any

import clickhouse_connect

from local.journal import Journal, Row
from tagmill.config.settings import Settings
from tagmill.domain.identifiers import sql

AS_BYTES = {"event": "bytes", "meta": "bytes"}
SHOWN = 3


def differences(settings: Settings, journal: Journal) -> dict[str, list[str]]:
    """Return the differences per tag: missing, unexpected, altered or doubled rows; an empty list means
    equality.

    Every column of tag_views counts. If the plugin's own reading was recorded, the delivered set has to equal
    it, too.
    """
    found: dict[str, list[str]] = {tag: [] for tag in journal.tags}
    rows_expected: Counter[str] = Counter()
    identities: dict[str, set[tuple[str, int, str]]] = {tag: set() for tag in journal.tags}
    with _Destination(settings, journal.name) as destination:
        for tag, bucket, expected in journal.expected():
            arrived = destination.rows(tag, bucket)
            found[tag] += _compared(expected, arrived)
            rows_expected[tag] += len(expected)
            if journal.delivered_by_the_plugin(tag) is not None:
                identities[tag].update((row.persistence_id, row.sequence_nr, row.offset) for row in arrived)
        counts = destination.counts()
    for tag in journal.tags:
        if counts.get(tag, 0) != rows_expected[tag]:
            found[tag].append(f"{counts.get(tag, 0)} rows arrived, {rows_expected[tag]} were expected")
        recorded = journal.delivered_by_the_plugin(tag)
        if recorded is not None and recorded != identities[tag]:
            found[tag].append(f"the plugin delivered other events: {len(recorded ^ identities[tag])} differ")
    for tag in counts.keys() - set(journal.tags):
        found[tag] = [f"{counts[tag]} rows of a tag that nobody asked for"]
    return found


def _compared(expected: list[Row], arrived: list[Row]) -> list[str]:
    if sorted(expected, key=_key) == sorted(arrived, key=_key):
        return []
    missing, extra = Counter(expected) - Counter(arrived), Counter(arrived) - Counter(expected)
    lines = [f"missing or altered: {_named(row)}" for row in list(missing)[:SHOWN]]
    lines += [f"unexpected or doubled: {_named(row)}" for row in list(extra)[:SHOWN]]
    return [
        *lines,
        f"bucket {(expected or arrived)[0].timebucket}: {missing.total()} rows missing, {extra.total()} "
        "unexpected",
    ]


def _key(row: Row) -> tuple[str, int, int, str]:
    return row.persistence_id, row.sequence_nr, row.tag_pid_sequence_nr, row.offset


def _named(row: Row) -> str:
    return f"{row.persistence_id} sequence_nr {row.sequence_nr} number {row.tag_pid_sequence_nr}"


class _Destination:
    """The destination table of a pipeline, read over the connection of the settings."""

    def __init__(self, settings: Settings, pipeline: str) -> None:
        self._table = sql(settings.pipeline(pipeline).destination)
        store = settings.clickhouse
        self._client: Any = clickhouse_connect.get_client(
            host=store.host, port=store.port, database=store.database
        )

    def __enter__(self) -> "_Destination":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def rows(self, tag: str, timebucket: int) -> list[Row]:
        """Return all rows of a tag's bucket."""
        columns = ", ".join(_column(name) for name in Row._fields)
        query = (
            f"SELECT {columns} FROM {self._table} AS t WHERE t.tag = {{tag:String}} AND t.timebucket "
            f"= {{bucket:Int64}}"
        )
        result = self._client.query(
            query, parameters={"tag": tag, "bucket": timebucket}, column_formats=AS_BYTES
        )
        return [Row(*row) for row in result.result_rows]

    def counts(self) -> dict[str, int]:
        """Return the number of rows per tag."""
        return {
            str(tag): int(rows)
            for tag, rows in self._client.query(
                f"SELECT tag, count() FROM {self._table} GROUP BY tag"
            ).result_rows
        }


def _column(name: str) -> str:
    if name == "event_time":  # intDiv keeps whole ticks of 100 ns; a division with / would use floating point
        return (
            "intDiv(toUnixTimestamp64Nano(CAST(t.event_time AS DateTime64(9, 'UTC'))), 100) AS "
            "event_time_ticks"
        )
    return "toString(t.`offset`) AS offset_text" if name == "offset" else f"t.`{name}`"
