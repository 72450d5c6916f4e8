"""Clean up views and journals, erase persistence ids, and bring a ledger forward."""
