"""The plan of an erasure, a document as plans of runs are: what is erased, and all figures that can't be told once it has begun."""

from tagmill.delivery.model import Document

# what is counted, in the order in which it is told
PLACES = (
    "events", "snapshots", "view_rows", "not_delivered", "batches", "batch_rows", "clickhouse_rows", "progress", "holds", "files", "pages",
)  # fmt: skip


class OfTag(Document):
    """What ClickHouse loses of a tag: rows, whole batches, and rows that the view has no more (cleaned up, perhaps)."""

    tag: str
    rows: int
    batches: int
    unseen: int


class RetiredLeft(Document):
    """What proves a batch past retention from now on; no rows: nothing is left of it."""

    run: int
    number: int
    batch_id: str
    generation: int
    tag: str
    rows: int
    checksum: int


class OfPipeline(Document):
    """What a pipeline loses. `run`: the number that the erasure has among its runs."""

    run: int
    tags: list[OfTag]
    retired: list[RetiredLeft]


class ErasurePlan(Document):
    """Never changed, and removed when the erasure is done: it is the last place that names the persistence ids."""

    journal: str
    erasure: int
    persistence_ids: list[str]
    pipelines: dict[str, OfPipeline]
    counts: dict[str, int]
