"""A Kafka Journal: its records, its tables in Cassandra, and the replication from one to the other."""
