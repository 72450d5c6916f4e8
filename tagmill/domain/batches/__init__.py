"""Batches: their states, their columns and checksum, their manifest. Pure: no I/O."""
