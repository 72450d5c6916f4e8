"""The stores: Cassandra, the ledger in it, ClickHouse, and the files of a run. They import no rules of continuity."""
