"""Build each small view by this process and by Spark, and compare what both find and number."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from typing import Any
from unittest.mock import patch

from tagmill.views import few_rows, many_rows
from tagmill.views.numbered import NewEvents, Numbered

Rows = list[dict[str, Any]]


@contextmanager
def compared() -> Iterator[list[Numbered]]:
    """Compare both ways for each small build in the block; yield what was numbered."""
    number, alike = few_rows.number, list[Numbered]()

    @wraps(number)
    def both(new: NewEvents) -> Numbered | None:
        here = number(new)
        if here is not None:
            by_spark = replace(new, folder=f"{new.folder}-by-spark")
            assert _plain(here) == _plain(many_rows.number(by_spark))
            for folder in ("records", "rows"):
                assert _rows(new, folder) == _rows(by_spark, folder), folder
            new.attempt.files.remove_folder(by_spark.folder)
            alike.append(here)
        return here

    with patch.object(few_rows, "number", both):
        yield alike


def _plain(numbered: Numbered) -> Numbered:
    """Return what was numbered without its write time, in one order."""
    return replace(numbered, written_at=0, stopped=sorted(numbered.stopped))


def _rows(new: NewEvents, folder: str) -> Rows:
    """Return the rows in files of this folder, sorted."""
    parts = new.attempt.files.record_batches(f"{new.folder}/{folder}", 10_000)
    rows = [row for part in parts for row in part.to_pylist()]
    return sorted(({name: _value(row[name]) for name in sorted(row)} for row in rows), key=repr)


def _value(value: Any) -> Any:
    """Return a value that is a list in one order."""
    return sorted(value, key=repr) if isinstance(value, list) else value
