"""Examine everything that a first run needs, without changing anything, and name a cure for what is wrong."""
