"""Find rows of another life: rows of persistence_ids whose numbers began again, so that they look
delivered.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from pyspark.sql import DataFrame

from tagmill.clickhouse.client import ClickHouse
from tagmill.config.tag_views import PipelineSettings
from tagmill.delivery.destination_retention import Expiry
from tagmill.delivery.tag_views.judge import Key
from tagmill.delivery.tag_views.suspects import is_in_doubt
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND

# Rows that ClickHouse is asked about together.
ROWS_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class DoubtfulRow:
    """A row that may be of another life. `ticks`: time of the offset, 100 ns since 1970."""

    tag: str
    persistence_id: str
    sequence_nr: int
    writer_uuid: str
    ticks: int
    offset: str


def in_doubt(rows: DataFrame) -> Iterator[DoubtfulRow]:
    """Yield those of key rows with progress that may be of another life."""
    columns = ("tag", "persistence_id", "sequence_nr", "writer_uuid", "event_time", "offset")
    for row in rows.where(is_in_doubt()).select(*columns).distinct().toLocalIterator():
        yield DoubtfulRow(*row)


def strangers(
    rows: Iterable[DoubtfulRow], clickhouse: ClickHouse, pipeline: PipelineSettings
) -> dict[Key, frozenset[str]]:
    """Return by key the offsets of rows whose events are not in ClickHouse; keys without such rows are left out.

    A row past the destination's retention counts as delivered: ClickHouse may have removed it.
    """
    found = defaultdict[Key, set[str]](set)
    remaining, first = iter(rows), True
    while group := list(islice(remaining, ROWS_AT_ONCE)):
        if first:
            clickhouse.sync_replica(pipeline.destination)
            expiry = Expiry.declared(pipeline, clickhouse)
            cutoff, first = expiry.cutoff_ms * TICKS_PER_MILLISECOND if expiry else None, False
        kept = [row for row in group if cutoff is None or row.ticks >= cutoff]
        asked = {(row.tag, row.persistence_id, row.sequence_nr) for row in kept}
        there = clickhouse.present(pipeline.destination, asked)
        for row in kept:
            if (row.tag, row.persistence_id, row.sequence_nr, row.writer_uuid) not in there:
                found[row.tag, row.persistence_id].add(row.offset)
    return {key: frozenset(offsets) for key, offsets in found.items()}
