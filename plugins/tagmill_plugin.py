"""Registers Tagmill's plugin where Tagmill is on the path but not installed: an installed package has an entry
point for it, and Airflow refuses a plugin that comes twice.
"""

from importlib.metadata import entry_points

if not entry_points(group="airflow.plugins", name="tagmill"):
    from tagmill.airflow.plugin import TagmillPlugin as TagmillPlugin
