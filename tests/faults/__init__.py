"""Tests that kill processes, lose answers and restart servers."""
