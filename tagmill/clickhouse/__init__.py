"""Talk to ClickHouse, and know a destination table's engine and views."""
