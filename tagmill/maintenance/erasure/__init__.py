"""Erasing: takes persistence ids out of everything that Tagmill has written or knows of, and keeps a record
of it.
"""
