"""The stores: Cassandra, the ledger in it, ClickHouse, Kafka, and the files of a run. They import no rules of continuity."""
