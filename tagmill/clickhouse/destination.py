"""Facts about a destination table from system.tables: engine, deduplication window, TTL, and the views that
depend on it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ENGINES = re.compile(r"(Replicated|Shared)?MergeTree")
RIGHT_ENGINES = "MergeTree, ReplicatedMergeTree or SharedMergeTree"
# Number of batches whose deduplication tokens a destination remembers.
WINDOW = 100_000
MERGING = re.compile(r".*(Replacing|Summing|Aggregating|Coalescing|Collapsing|Graphite).*MergeTree")
PASSING = {
    "Distributed",
    "Buffer",
    "Merge",
    "View",
    "MaterializedView",
    "LiveView",
    "WindowView",
    "Dictionary",
    "Alias",
}
QUERY = (
    "SELECT engine, engine_full, (SELECT any(value) FROM system.merge_tree_settings WHERE name = "
    "{setting:String}) "
    "FROM system.tables WHERE database = {database:String} AND name = {table:String}"
)
DEPENDENTS = (
    "SELECT database, name, engine, create_table_query, dependencies_database, dependencies_table FROM "
    "system.tables "
    "WHERE database IN {databases:Array(String)} AND name IN {tables:Array(String)}"
)
_NAME = r"(`(?:[^`\\]|\\.)+`|[^\s.`(]+)"
TARGET = re.compile(rf"CREATE MATERIALIZED VIEW {_NAME}\.{_NAME}(?: UUID '[^']*')? TO {_NAME}\.{_NAME}\s")
REFRESHED = re.compile(r"\sREFRESH (EVERY|AFTER)\s")
TTL = re.compile(r"\sTTL (.+?)(?: SETTINGS |$)", re.S)
# Rules of a TTL that keep every row.
KEEPING = re.compile(r"\sTO (DISK|VOLUME)\s|\sRECOMPRESS\s")
INTERVAL = re.compile(r"\+ toInterval(Second|Minute|Hour|Day|Week|Month|Quarter|Year)\((\d+)\)")
# Days that one unit of an interval has at least.
DAYS = {
    "Second": 1 / 86_400,
    "Minute": 1 / 1440,
    "Hour": 1 / 24,
    "Day": 1,
    "Week": 7,
    "Month": 28,
    "Quarter": 90,
    "Year": 365,
}
Name = tuple[str, str]
Rows = Callable[[str, dict[str, Any]], list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Table:
    """Engine of a destination table, with its clauses and settings as ClickHouse prints them, and its
    deduplication window.
    """

    engine: str
    engine_full: str
    window_setting: str
    window: int

    @property
    def ttl(self) -> str | None:
        """The TTL that removes or changes rows, as ClickHouse prints it; None if the table has none."""
        clause = TTL.search(self.engine_full)
        rules = re.split(r",\s*(?![^()]*\))", clause[1]) if clause else []
        return next((rule for rule in rules if not KEEPING.search(rule)), None)

    def ttl_fault(self, days: int | None) -> str | None:
        """Return what is wrong with the TTL for a destination_retention_days, as a clause; None: nothing is
        wrong.
        """
        if self.ttl is None:
            return None
        if days is None:
            return (
                f"has the TTL {self.ttl}, which removes delivered rows, and no "
                "destination_retention_days is declared. "
                "Declare it (days that rows stay at least), or remove the TTL"
            )
        removes = INTERVAL.search(self.ttl)
        kept = int(removes[2]) * DAYS[removes[1]] if removes else days
        if kept < days:
            return (
                f"has the TTL {self.ttl}, which removes rows after {kept:g} days, and "
                f"destination_retention_days is {days}. "
                + (f"Lower it to {int(kept)}, or raise the TTL" if kept >= 1 else "Raise the TTL")
            )
        return None


def find_table(rows: Rows, database: str, table: str) -> Table | None:
    """Return the facts of a table; None: the table does not exist."""
    found = rows(
        QUERY, {"database": database, "table": table, "setting": "non_replicated_deduplication_window"}
    )
    if not found:
        return None
    engine, full, default = (str(value or "") for value in found[0])
    plain = engine == "MergeTree"
    setting = "non_replicated_deduplication_window" if plain else "replicated_deduplication_window"
    stated = re.search(rf"\b{setting} = (\d+)", full)
    # A replicated table has a window unless its settings say 0.
    window = int(stated.group(1)) if stated else int(default or 0) if plain else WINDOW
    return Table(engine, full, setting, window)


def engine_fault(engine: str) -> str | None:
    """Return why batches can't be delivered to a table with this engine, as a clause; None: they can be."""
    if ENGINES.fullmatch(engine):
        return None
    if MERGING.fullmatch(engine):
        return "which drops, replaces or adds up rows when parts merge"
    if engine in PASSING:
        return "which stores no rows itself but passes them on or reads them elsewhere"
    if engine == "Null":
        return "which stores no rows"
    return "which knows neither deduplication of inserts nor removal of a batch"


def dependent_views(rows: Rows, database: str, table: str) -> list[str]:
    """Return the names of the materialized views that an insert into a table reaches, also through the tables
    of other views.

    Views that refresh on a schedule read the table again, so an insert does not reach them.
    """
    views: list[str] = []
    seen: set[Name] = set()
    level = {(database, table)}
    while level := level - seen:
        seen |= level
        values = {
            "databases": sorted({name for name, _ in level}),
            "tables": sorted({name for _, name in level}),
        }
        following: set[Name] = set()
        for its_database, name, engine, created, databases, tables in rows(DEPENDENTS, values):
            if (its_database, name) not in level:
                continue
            if engine == "MaterializedView" and (its_database, name) != (database, table):
                if REFRESHED.search(created):
                    continue
                views.append(f"{its_database}.{name}")
                target = TARGET.match(created)
                following |= {(_unquoted(target[3]), _unquoted(target[4]))} if target else set()
            following |= set(zip(databases, tables, strict=True))
        level = following
    return sorted(views)


def _unquoted(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name[1:-1]) if name.startswith("`") else name
