"""Builds the tag views of a journal whose application runs with events-by-tag off: messages to tag_views and tag_write_progress."""
