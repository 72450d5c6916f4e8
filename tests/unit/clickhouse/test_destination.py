"""Engines that batches can be delivered to, and deduplication windows as ClickHouse prints them."""

import pytest

from tagmill.clickhouse.destination import Table, dependent_views, engine_fault, find_table

MERGE_TREES = ("MergeTree", "ReplicatedMergeTree", "SharedMergeTree")


@pytest.mark.parametrize("engine", MERGE_TREES)
def test_engine_fault_of_plain_merge_trees_is_none(engine):
    """Accept the MergeTree engines of open source, replicated and ClickHouse Cloud's tables."""
    assert engine_fault(engine) is None


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("SharedReplacingMergeTree", "when parts merge"),
        ("ReplicatedVersionedCollapsingMergeTree", "when parts merge"),
        ("Distributed", "stores no rows itself"),
        ("Null", "stores no rows"),
        ("StripeLog", "removal of a batch"),
    ],
)
def test_engine_fault_names_the_reason(engine, words):
    """Name the reason also for engines that the local server can't create."""
    assert words in str(engine_fault(engine))


@pytest.mark.parametrize(
    ("row", "window"),
    [
        (("MergeTree", "MergeTree ORDER BY a SETTINGS index_granularity = 8192", "0"), 0),
        (("MergeTree", "MergeTree ORDER BY a SETTINGS index_granularity = 8192", "100"), 100),
        (("MergeTree", "MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 7", "0"), 7),
        (("ReplicatedMergeTree", "ReplicatedMergeTree('/p', 'r') ORDER BY a", "0"), 100_000),
        (
            (
                "SharedMergeTree",
                "SharedMergeTree('/p', 'r') ORDER BY a SETTINGS replicated_deduplication_window = 0",
                "0",
            ),
            0,
        ),
    ],
)
def test_find_table_reads_the_deduplication_window(row, window):
    """Read the window from the table's settings, or else take the server's default."""
    found = find_table(lambda query, values: [row], "d", "t")
    assert found is not None and found.window == window


def described(ttl: str) -> Table:
    """Return a table with this TTL clause, as ClickHouse prints it."""
    full = (
        f"MergeTree PARTITION BY toYYYYMM(t) ORDER BY a{ttl} SETTINGS "
        "non_replicated_deduplication_window = 1000"
    )
    return Table("MergeTree", full, "non_replicated_deduplication_window", 1000)


@pytest.mark.parametrize(
    ("ttl", "days", "fault"),
    [
        ("", None, None),
        (" TTL toDateTime(event_time) + toIntervalDay(30)", 30, None),
        (
            " TTL toDateTime(event_time) + toIntervalDay(30)",
            None,
            "no destination_retention_days is declared",
        ),
        (
            " TTL toDateTime(event_time) + toIntervalDay(30)",
            31,
            "after 30 days, and destination_retention_days is 31",
        ),
        (" TTL toDateTime(event_time) + toIntervalMonth(3)", 84, None),
        (" TTL toDateTime(event_time) + toIntervalMonth(3)", 90, "after 84 days"),
        (" TTL toDateTime(event_time) + toIntervalDay(7) TO VOLUME 'cold'", None, None),
        (" TTL t + toIntervalDay(7) TO DISK 'cold', t + toIntervalDay(9)", 8, None),
        (
            " TTL t + toIntervalDay(7) TO DISK 'cold', t + toIntervalDay(9)",
            None,
            "the TTL t + toIntervalDay(9), which",
        ),
        (" TTL t + toIntervalDay(7) RECOMPRESS CODEC(ZSTD(17))", None, None),
        (
            " TTL t + toIntervalMinute(90)",
            1,
            "after 0.0625 days, and destination_retention_days is 1. Raise the TTL",
        ),
        (" TTL expires_at", None, "no destination_retention_days is declared"),
        (" TTL expires_at", 10, None),
    ],
)
def test_ttl_fault_compares_ttl_and_declared_days(ttl, days, fault):
    """Moves and compression keep rows. The declared days are believed for an interval that can't be read."""
    text = described(ttl).ttl_fault(days)
    assert text is None if fault is None else fault in str(text)


def test_dependent_views_follow_targets_and_inner_tables():
    """Views of views are found by the target table or the view itself; views that refresh by themselves are
    not.
    """
    created = "CREATE MATERIALIZED VIEW d.{} {}(`a` Int32) AS SELECT a FROM d.t"
    tables = {
        "t": ("MergeTree", "", ["v1", "v2", "v3"]),
        "v1": ("MaterializedView", created.format("v1", "TO d.`odd name` "), []),
        "odd name": ("MergeTree", "", ["v4"]),
        "v2": ("MaterializedView", created.format("v2", ""), ["v5"]),
        "v3": ("MaterializedView", created.format("v3", "REFRESH EVERY 1 HOUR TO d.other "), []),
        "v4": ("MaterializedView", created.format("v4", "TO d.t "), []),
        "v5": ("MaterializedView", created.format("v5", "TO d.other "), []),
    }

    def rows(query, values):
        names = [name for name in values["tables"] if name in tables]
        return [
            ("d", name, engine, text, ["d"] * len(to), to)
            for name in names
            for engine, text, to in [tables[name]]
        ]

    assert dependent_views(rows, "d", "t") == ["d.v1", "d.v2", "d.v4", "d.v5"]
