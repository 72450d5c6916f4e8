"""Seal each small run twice, by this process and by Spark, and compare everything that a seal leaves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pyarrow.parquet as pq

from tagmill.delivery.tag_views import many_rows
from tagmill.delivery.tag_views import seal as seal_module
from tagmill.delivery.tag_views.few_rows.seal import seal as seal_few
from tagmill.delivery.tag_views.many_rows import ManyRows
from tagmill.delivery.tag_views.model import Manifest
from tagmill.delivery.tag_views.sealing import Sealing
from tagmill.domain.batches.layout import NAMES
from tagmill.runs.storage import RunFiles

# Fields that name an attempt, or its files.
OF_ATTEMPT = {"attempt", "sealed_at", "progress_file", "holds_file", "repairs_file", "sha256", "docs_page"}
OF_FILE = {"batch_id", "file", "bytes", "sha256"}


@contextmanager
def compared(spark: Any) -> Iterator[list[Manifest]]:
    """Compare both seals of each run in the block that is sealed without Spark; yield their manifests.

    A run that the quality gate stops is sealed once.
    """
    alike: list[Manifest] = []

    def both(sealing: Sealing) -> Manifest | None:
        if (few := seal_few(sealing)) is not None:
            again = Sealing(sealing.workspace, sealing.plan, sealing.fence)
            # Every other time, Spark also finds the keys in doubt.
            most = many_rows.FEW_SUMMARIES if len(alike) % 2 else -1
            with patch.object(many_rows, "FEW_SUMMARIES", most):
                many = ManyRows(again, spark).seal()
            assert left(sealing.files, few) == left(sealing.files, many)
            alike.append(few)
        return few

    with patch.object(seal_module, "seal_few", both):
        yield alike


def left(files: RunFiles, manifest: Manifest) -> dict[str, Any]:
    """Return all that a seal leaves, but for names: the manifest, the rows of its batches, progress, holds, repairs."""
    found = manifest.model_dump(exclude=OF_ATTEMPT | {"batches"})
    found["batches"] = [batch.model_dump(exclude=OF_FILE) for batch in manifest.batches]
    columns = [*NAMES, "row_checksum"]
    found["rows"] = [_rows(files, [batch.file], columns) for batch in manifest.batches]
    found["progress"] = _sorted(_rows(files, files.parquet(manifest.progress_file)))
    found["holds"] = _sorted(_rows(files, [manifest.holds_file]))
    found["repairs"] = _sorted(_rows(files, [manifest.repairs_file]))
    return found


def _rows(files: RunFiles, names: list[str], columns: list[str] | None = None) -> list[dict[str, Any]]:
    return [row for name in names for row in pq.read_table(files.open(name), columns=columns).to_pylist()]


def _sorted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    key: Callable[[dict[str, Any]], str] = lambda row: repr(sorted(row.items()))  # noqa: E731
    return sorted(rows, key=key)
