"""Rows of the ledger and parts of manifests, as tests of rules need them."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from tagmill.delivery.tag_views.model import Manifest
from tagmill.domain.batches.states import BatchState, RunState
from tagmill.domain.continuity.model import Gap
from tagmill.domain.documents import Batch
from tagmill.ledger.progress import HoldRow
from tagmill.ledger.runs import BatchRow, RunRow

NOW = datetime(2026, 5, 2, tzinfo=UTC)


def run_row(state: RunState, run: int = 3) -> RunRow:
    """Return a run of pipeline `p`."""
    return RunRow("p", run, state, "deliver", 1, uuid4(), "o", *[None] * 5, NOW, None, None)


def batch_row(number: int, state: BatchState = BatchState.IN_CLICKHOUSE, tag: str = "t", rows: int = 10):
    """Return a batch of the ledger; its id is its number."""
    return BatchRow(number, UUID(int=number), state, 1, tag, rows, 100, None)


def sealed_batch(number: int, tag: str = "t", *, mended: bool = False) -> Batch:
    """Return a batch of a manifest."""
    return Batch(
        number=number,
        batch_id=str(UUID(int=number)),
        tag=tag,
        file=f"{number}.parquet",
        rows=10,
        bytes=100,
        sha256="",
        checksum=0,
        first_offset="",
        last_offset="",
        mended=mended,
    )


def manifest(*batches: Batch) -> Manifest:
    """Return the manifest of run 3 of pipeline `p`."""
    return Manifest.unsealed("p", 3, "a", batches=batches)


def hold_row(persistence_id: str = "p-1", **changes: Any) -> HoldRow:
    """Return a hold that waits for number 2 since run 1."""
    fields: dict[str, Any] = {
        "tag": "t",
        "persistence_id": persistence_id,
        "reason": "hole",
        "gap": Gap(2, 2, 1, 3),
        "from_ticks": 50,
        "held_rows": 4,
        "since_run": 1,
        "since": NOW,
        "seen": "f",
    }
    return HoldRow(**{**fields, **changes})
