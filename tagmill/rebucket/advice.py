"""What has to be changed in the configurations of the application and of Tagmill once a view is in another table. Pure."""

from collections.abc import Iterable
from enum import StrEnum

from tagmill.buckets import View


class Prefix(StrEnum):
    """Where an application's configuration keeps the plugin's settings."""

    PEKKO = "pekko"
    AKKA = "akka"


def application_lines(view: View, prefix: Prefix) -> list[str]:
    """The plugin's settings."""
    plugin = f"{prefix.value}.persistence.cassandra.events-by-tag"
    return [f'{plugin}.table = "{view.table}"', f'{plugin}.bucket-size = "{view.size.value}"']


def tagmill_lines(view: View, pipeline: str) -> list[str]:
    """The keys of a pipeline in Tagmill's own file."""
    return [f"[pipelines.{pipeline}]", f'view_table = "{view.table}"', f'bucket_size = "{view.size.value}"']


def switched(view: View, pipelines: Iterable[str]) -> list[str]:
    """All of it, in the order in which it is done, as lines of text."""
    names = list(pipelines)
    lines = ["# the application, on every node before it starts again"]
    lines += [line for prefix in Prefix for line in application_lines(view, prefix)]
    lines += ["# Tagmill's configuration file, before the next run"]
    lines += [line for name in names for line in tagmill_lines(view, name)]
    return [*lines, "# then", *(f"tagmill audit --pipeline {name}" for name in names)]


def of_another_prefix(line: str, prefix: Prefix | None) -> bool:
    """Whether a line is a setting of the plugin under another prefix than the one asked for."""
    return prefix is not None and any(line.startswith(f"{other.value}.") for other in Prefix if other is not prefix)
