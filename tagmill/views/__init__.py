"""Build the tag views of a journal whose application runs with events-by-tag off: from messages to tag_views
and tag_write_progress.
"""
