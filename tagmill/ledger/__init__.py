"""Tables of the ledger, one module a table."""
