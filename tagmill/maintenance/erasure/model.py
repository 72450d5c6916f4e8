"""The plan of an erasure: what is erased, and figures that can't be counted later.

The ledger keeps it while the erasure is under way (docs/decisions/0083).
"""

from tagmill.domain.documents import Document

# What is counted, in the order of the reports.
PLACES = (
    "events", "snapshots", "view_rows", "not_delivered", "batches", "batch_rows", "clickhouse_rows", "progress", "holds", "files", "pages",
)  # fmt: skip


class TagLoss(Document):
    """What ClickHouse loses of a tag: rows, whole batches, and rows that the view no longer has (cleaned up,
    perhaps).
    """

    tag: str
    rows: int
    batches: int
    unseen: int


class RetiredLeft(Document):
    """Proof of a batch past retention after the erasure; without rows, nothing is left of the batch."""

    run: int
    number: int
    batch_id: str
    generation: int
    tag: str
    rows: int
    checksum: int


class PipelineLoss(Document):
    """What a pipeline loses. `run`: the number that the erasure has among its runs."""

    run: int
    tags: list[TagLoss]
    retired: list[RetiredLeft]


class ErasurePlan(Document):
    """Plan of an erasure.

    Never changed, and removed when the erasure is done: it is the last place that names the persistence ids.
    """

    journal: str
    erasure: int
    persistence_ids: list[str]
    pipelines: dict[str, PipelineLoss]
    counts: dict[str, int]
