"""Find rows of another life: rows of persistence_ids whose numbers began again, so that they look
delivered.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from pyspark.sql import DataFrame

from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.tag_views.judge import Key
from tagmill.delivery.tag_views.suspects import is_in_doubt
from tagmill.domain import identifiers

# Rows that one run looks up in ClickHouse; a key with more is held until another run.
MAX_ROWS = 20_000
OFFSETS_AT_ONCE = 1000


def strangers(rows: DataFrame, clickhouse: ClickHouse, destination: str) -> dict[Key, frozenset[str]]:
    """Return by key the offsets of rows that count as delivered by their number but are not in ClickHouse.

    In: key rows with progress. Only rows that are later than the last delivered one, or in its place, are
    looked up in ClickHouse.
    """
    doubtful = (
        rows.where(is_in_doubt())
        .select("tag", "persistence_id", "offset")
        .distinct()
        .limit(MAX_ROWS)
        .collect()
    )
    wanted: dict[Key, set[str]] = defaultdict(set)
    for row in doubtful:
        wanted[row.tag, row.persistence_id].add(row.offset)
    return undelivered(wanted, clickhouse, destination)


def undelivered(
    wanted: Mapping[Key, Collection[str]], clickhouse: ClickHouse, destination: str
) -> dict[Key, frozenset[str]]:
    """Return by key those of these offsets that are not in ClickHouse; keys without such ones are left out."""
    if not wanted:
        return {}
    delivered = _delivered(
        clickhouse, destination, {offset for offsets in wanted.values() for offset in offsets}
    )
    found = {
        key: frozenset(offset for offset in offsets if (*key, offset) not in delivered)
        for key, offsets in wanted.items()
    }
    return {key: offsets for key, offsets in found.items() if offsets}


def _delivered(clickhouse: ClickHouse, destination: str, offsets: Iterable[str]) -> set[tuple[str, str, str]]:
    """Return (tag, persistence_id, offset) of the rows in ClickHouse that have one of these offsets."""
    clickhouse.sync_replica(destination)
    ordered, found = sorted(offsets), set[tuple[str, str, str]]()
    query = (
        f"SELECT toString(`tag`), `persistence_id`, toString(`offset`) FROM {identifiers.sql(destination)} "
        "WHERE `offset` IN %(offsets)s"
    )
    for begin in range(0, len(ordered), OFFSETS_AT_ONCE):
        rows = clickhouse.rows(query, {"offsets": tuple(ordered[begin : begin + OFFSETS_AT_ONCE])})
        found |= {(str(tag), str(persistence_id), str(offset)) for tag, persistence_id, offset in rows}
    return found
