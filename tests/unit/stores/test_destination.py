"""Engines that batches can be delivered to, and deduplication windows as ClickHouse prints them."""

import pytest

from tagmill.stores.destination import engine_fault, find_table

MERGE_TREES = ("MergeTree", "ReplicatedMergeTree", "SharedMergeTree")


@pytest.mark.parametrize("engine", MERGE_TREES)
def test_engine_fault_of_plain_merge_trees_is_none(engine):
    """Open source, replicated, and ClickHouse Cloud's."""
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
    """Also engines that the local server can't create."""
    assert words in str(engine_fault(engine))


@pytest.mark.parametrize(
    ("row", "window"),
    [
        (("MergeTree", "MergeTree ORDER BY a SETTINGS index_granularity = 8192", "0"), 0),
        (("MergeTree", "MergeTree ORDER BY a SETTINGS index_granularity = 8192", "100"), 100),
        (("MergeTree", "MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 7", "0"), 7),
        (("ReplicatedMergeTree", "ReplicatedMergeTree('/p', 'r') ORDER BY a", "0"), 100_000),
        (("SharedMergeTree", "SharedMergeTree('/p', 'r') ORDER BY a SETTINGS replicated_deduplication_window = 0", "0"), 0),
    ],
)
def test_find_table_reads_the_deduplication_window(row, window):
    """Stated in the table's settings, else the server's default."""
    found = find_table(lambda query, values: [row], "d", "t")
    assert found is not None and found.window == window
