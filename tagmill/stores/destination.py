"""Facts of a destination table from system.tables, and what of them the delivery protocol can't work with."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ENGINES = re.compile(r"(Replicated|Shared)?MergeTree")
RIGHT_ENGINES = "MergeTree, ReplicatedMergeTree or SharedMergeTree"
# batches whose deduplication tokens a destination remembers
WINDOW = 100_000
MERGING = re.compile(r".*(Replacing|Summing|Aggregating|Coalescing|Collapsing|Graphite).*MergeTree")
PASSING = {"Distributed", "Buffer", "Merge", "View", "MaterializedView", "LiveView", "WindowView", "Dictionary", "Alias"}
QUERY = (
    "SELECT engine, engine_full, (SELECT any(value) FROM system.merge_tree_settings WHERE name = {setting:String}) "
    "FROM system.tables WHERE database = {database:String} AND name = {table:String}"
)
Rows = Callable[[str, dict[str, Any]], list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Table:
    """Engine of a destination table, with its clauses and settings as ClickHouse prints them, and its deduplication window."""

    engine: str
    engine_full: str
    window_setting: str
    window: int


def find_table(rows: Rows, database: str, table: str) -> Table | None:
    """Return the facts of a table; None: there is no such table."""
    found = rows(QUERY, {"database": database, "table": table, "setting": "non_replicated_deduplication_window"})
    if not found:
        return None
    engine, full, default = (str(value or "") for value in found[0])
    plain = engine == "MergeTree"
    setting = "non_replicated_deduplication_window" if plain else "replicated_deduplication_window"
    stated = re.search(rf"\b{setting} = (\d+)", full)
    # a replicated table has a window unless its settings say 0
    window = int(stated.group(1)) if stated else int(default or 0) if plain else WINDOW
    return Table(engine, full, setting, window)


def engine_fault(engine: str) -> str | None:
    """Return why batches can't be delivered to a table with this engine, as a clause; None: they can."""
    if ENGINES.fullmatch(engine):
        return None
    if MERGING.fullmatch(engine):
        return "which drops, replaces or adds up rows when parts merge"
    if engine in PASSING:
        return "which stores no rows itself but passes them on or reads them elsewhere"
    if engine == "Null":
        return "which stores no rows"
    return "which knows neither deduplication of inserts nor removal of a batch"
