"""Collect what the tasks that read records note: values that became null, and columns whose path matched
nothing. Pure.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tagmill.config.kafka import TopicSettings
from tagmill.delivery.topics.table_columns import fields
from tagmill.domain.field_path import join, nearest

NULLED = pa.struct({"column": pa.string(), "reason": pa.string(), "count": pa.int64()})
# Limits for one task: events whose fields are listed, levels of fields, and paths.
LISTED_EVENTS, DEEPEST, MOST_PATHS = 50, 8, 1000
VERSION = "schema_version"


@dataclass(slots=True)
class Notes:
    """Notes of one task.

    `nulled`: values that became null, by column and reason; `matched`: columns with a value; `paths`: fields
    of the first events.
    """

    nulled: Counter[tuple[str, str]] = field(default_factory=Counter)
    matched: set[str] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    listed: int = 0

    def list_fields(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Note the paths of the fields of the task's first LISTED_EVENTS events."""
        for event in events:
            if self.listed == LISTED_EVENTS:
                return
            self.listed += 1
            for path in _paths(event, ()):
                if len(self.paths) == MOST_PATHS:
                    break
                self.paths.add(path)

    def match(self, rows: pa.RecordBatch, names: Iterable[str]) -> None:
        """Note which of these columns have a value."""
        for name in names:
            if name not in self.matched and _has_value(rows[name]):
                self.matched.add(name)

    def as_row(self) -> dict[str, Any]:
        """Return the notes as the columns of the task's row in staged_files.FILES."""
        nulled = [
            {"column": column, "reason": reason, "count": count}
            for (column, reason), count in self.nulled.items()
        ]
        return {"nulled": nulled, "matched": sorted(self.matched), "paths": sorted(self.paths)}

    @classmethod
    def from_rows(cls, rows: Iterable[Any]) -> "Notes":
        """Combine the notes of all tasks into one, from the rows of their staged files."""
        notes = cls()
        for row in rows:
            for line in row.nulled:
                notes.nulled[line["column"], line["reason"]] += line["count"]
            notes.matched.update(row.matched)
            notes.paths.update(row.paths)
        return notes


def _has_value(column: pa.Array) -> bool:
    return bool(column.null_count < len(column) and column.drop_null().unique().to_pylist() != [""])


def _paths(event: Mapping[str, Any], within: Sequence[str]) -> Iterator[str]:
    for name, value in event.items():
        yield join([*within, name])
        if isinstance(value, Mapping) and len(within) < DEEPEST:
            yield from _paths(value, [*within, name])


def noted_names(pipeline: TopicSettings) -> list[str]:
    """Return the columns whose paths may match nothing: nullable ones, and the schema's version where a field
    says it.
    """
    return [
        *(one.name for one in fields(pipeline.columns) if one.nullable),
        *([VERSION] if pipeline.version_field else []),
    ]


def warnings(
    notes: Notes, pipeline: TopicSettings, known: Collection[str], set_apart: Collection[str]
) -> Iterator[str]:
    """Yield a line for each column and reason of values that became null, and for each path that matched
    nothing.

    In: the paths that the schemas of the run's events have; columns that a person has set apart.
    """
    for (column, reason), count in sorted(notes.nulled.items()):
        yield f"column {column}: {count} values are null, since each {reason}; the payloads have them"
    matched = notes.matched | {column for column, _ in notes.nulled} | set(set_apart)
    paths = {one.name: one.path for one in fields(pipeline.columns)} | {VERSION: pipeline.version_field or ""}
    for name in noted_names(pipeline):
        path = paths[name]
        if name not in matched and path not in notes.paths and path not in known:
            like = nearest(path, notes.paths | set(known))
            hint = f"; the nearest is {like}" if like else ""
            yield f"column {name}: no event of this run has a field {path}{hint}"
