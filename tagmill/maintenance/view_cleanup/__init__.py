"""Cleanup: deletes view partitions that are proven delivered, and files and ledger rows of runs past
retention.
"""
