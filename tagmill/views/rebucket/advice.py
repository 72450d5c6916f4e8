"""List what to change in the configurations of the application and of Tagmill once a view is in another
table. Pure functions.
"""

from collections.abc import Iterable
from enum import StrEnum

from tagmill.domain.time_buckets import View


class Prefix(StrEnum):
    """Where an application's configuration keeps the plugin's settings."""

    PEKKO = "pekko"
    AKKA = "akka"


def application_lines(view: View, prefix: Prefix) -> list[str]:
    """Return the plugin's settings for a view, as lines of the application's configuration."""
    plugin = f"{prefix.value}.persistence.cassandra.events-by-tag"
    return [f'{plugin}.table = "{view.table}"', f'{plugin}.bucket-size = "{view.size.value}"']


def tagmill_lines(view: View, pipeline: str) -> list[str]:
    """Return a pipeline's settings for a view, as lines of Tagmill's configuration file."""
    return [f"[pipelines.{pipeline}]", f'view_table = "{view.table}"', f'bucket_size = "{view.size.value}"']


def switched(view: View, pipelines: Iterable[str]) -> list[str]:
    """Return all lines to change after a switch, and the audits to run, in the order in which to do it."""
    names = list(pipelines)
    lines = ["# the application, on every node before it starts again"]
    lines += [line for prefix in Prefix for line in application_lines(view, prefix)]
    lines += ["# Tagmill's configuration file, before the next run"]
    lines += [line for name in names for line in tagmill_lines(view, name)]
    return [*lines, "# then", *(f"tagmill audit --pipeline {name}" for name in names)]


def of_another_prefix(line: str, prefix: Prefix | None) -> bool:
    """Return whether a line is a setting of the plugin under another prefix than the given one; never for
    None.
    """
    return prefix is not None and any(
        line.startswith(f"{other.value}.") for other in Prefix if other is not prefix
    )
