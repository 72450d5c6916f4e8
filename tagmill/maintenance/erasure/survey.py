"""Counts what exists of persistence ids, place by place, before anything is erased; changes nothing."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from tagmill.clickhouse.client import ClickHouse, OfBatch
from tagmill.domain.timeuuid import ticks
from tagmill.journal.event_store import ROWS_AT_ONCE
from tagmill.journal.tag_view_reader import ViewRow
from tagmill.maintenance.erasure.batches import SealedBatches
from tagmill.maintenance.erasure.files import Evidence, SharedEvidence
from tagmill.maintenance.erasure.journal import JournalOfIds
from tagmill.maintenance.erasure.model import PLACES, PipelineLoss, TagLoss
from tagmill.runs.workspace import Workspace

Key = tuple[str, str]


@dataclass(slots=True)
class Found:
    """What exists: counts by place (model.PLACES), the persistence ids that are known, and what each pipeline
    would lose.
    """

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PLACES, 0))
    known: set[str] = field(default_factory=set)
    pipelines: dict[str, PipelineLoss] = field(default_factory=dict)

    def add(self, **counts: int) -> None:
        """Add counts by place."""
        for place, count in counts.items():
            self.counts[place] += count


@dataclass(slots=True)
class _Shared:
    """How many rows of a pipeline's tag are in the view and in ClickHouse, and how many in the view only."""

    both: int = 0
    view_only: int = 0


class ErasureSurvey:
    """Counts what exists in all pipelines on one journal."""

    def __init__(self, workspace: Workspace, clickhouse: ClickHouse, names: Sequence[str]) -> None:
        self.workspace, self.settings, self.ledger = workspace, workspace.settings, workspace.ledger
        self.clickhouse, self.names = clickhouse, names
        self.journal = JournalOfIds(workspace.of(names[0]))

    def found(self, persistence_ids: Sequence[str], runs: dict[str, int]) -> Found:
        """Count what exists of the persistence ids in every place.

        `runs`: the number that each pipeline's next run has. Raises GuardRefused, SealedFileDamaged.
        """
        found = Found()
        for name in self.names:
            self.clickhouse.sync_replica(self.settings.pipeline(name).destination)
        counts, found.known = self.journal.look(persistence_ids)
        found.add(**counts)
        shared = self._rows(persistence_ids, found)
        for name in self.names:
            found.pipelines[name] = self._pipeline(name, persistence_ids, runs[name], shared, found)
        found.add(files=SharedEvidence(self.settings, persistence_ids).look())
        return found

    # -- the view

    def _rows(self, persistence_ids: Sequence[str], survey: Found) -> dict[Key, _Shared]:
        """Count the rows in all views; return by pipeline and tag how many rows of the view in force are in
        ClickHouse.
        """
        shared: dict[Key, _Shared] = {}
        remaining = self.journal.rows(persistence_ids)
        while group := list(islice(remaining, ROWS_AT_ONCE)):
            survey.add(view_rows=len(group))
            survey.known.update(row.persistence_id for _, row in group)
            in_force = [row for table, row in group if table == self.journal.view_table]
            for name in self.names:
                self._delivered(name, in_force, shared)
        survey.add(not_delivered=sum(one.view_only for one in shared.values()))
        return shared

    def _delivered(self, name: str, rows: Iterable[ViewRow], shared: dict[Key, _Shared]) -> None:
        pipeline = self.settings.pipeline(name)
        events = {
            row.event
            for row in rows
            if row.tag in pipeline.tags and ticks(row.timestamp) >= pipeline.start_ticks(row.tag)
        }
        asked = {event[:3] for event in events}
        there = self.clickhouse.present(pipeline.destination, asked) if asked else set()
        for event in events:
            one = shared.setdefault((name, event[0]), _Shared())
            if event in there:
                one.both += 1
            else:
                one.view_only += 1

    # -- a pipeline

    def _pipeline(
        self, name: str, persistence_ids: Sequence[str], run: int, shared: dict[Key, _Shared], survey: Found
    ) -> PipelineLoss:
        known, delivered = self.clickhouse.of_ids(self.settings.pipeline(name).destination, persistence_ids)
        sealed = SealedBatches(self.workspace.of(name), persistence_ids).look(delivered)
        files, pages, named = Evidence(self.settings, name, persistence_ids).look()
        survey.known |= known | sealed.known | named
        survey.add(
            clickhouse_rows=sum(part.rows for part in delivered),
            batches=sealed.batches,
            batch_rows=sealed.rows,
            files=files - sealed.batches,
            pages=pages,
        )
        keys = list(of_ledger(self.workspace.of(name), persistence_ids))
        for (_, one), progress in zip(keys, self.ledger.delivered.progress(name, keys), strict=True):
            if progress is not None:
                survey.known.add(one)
                survey.add(progress=1)
        for tag, one in keys:
            if self.ledger.delivered.hold(name, tag, one):
                survey.known.add(one)
                survey.add(holds=1)
        return PipelineLoss(
            run=run, tags=_of_tags(name, delivered, sealed.emptied, shared), retired=sealed.retired
        )


def of_ledger(workspace: Workspace, persistence_ids: Iterable[str]) -> Iterator[Key]:
    """Yield each (tag, persistence_id) that may have progress or holds in the ledger, also for tags that were
    configured once.
    """
    tags = sorted({*workspace.pipeline.tags, *workspace.ledger.delivered.watermarks(workspace.name)})
    return ((tag, one) for one in persistence_ids for tag in tags)


def _of_tags(
    name: str, delivered: Sequence[OfBatch], emptied: dict[str, int], shared: dict[Key, _Shared]
) -> list[TagLoss]:
    rows: dict[str, int] = {}
    for part in delivered:
        rows[part.tag] = rows.get(part.tag, 0) + part.rows
    return [
        TagLoss(
            tag=tag,
            rows=rows.get(tag, 0),
            batches=emptied.get(tag, 0),
            unseen=max(0, rows.get(tag, 0) - shared.get((name, tag), _Shared()).both),
        )
        for tag in sorted({*rows, *emptied})
    ]
