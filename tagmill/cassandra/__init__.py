"""Talk to Cassandra: sessions, pages, the encoding of values, and writes in bulk."""
