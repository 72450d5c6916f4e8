"""What the ledger says about each pipeline, for the page in Airflow's UI. Reads a few rows; counts nothing that grows."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from tagmill import timeuuid
from tagmill.airflow.pages import run_page
from tagmill.batches.states import BatchState
from tagmill.settings import PipelineSettings, Settings

if TYPE_CHECKING:
    from tagmill.stores.ledger import Ledger

SHOWN_RUNS = 20


@dataclass(frozen=True)
class TagLine:
    """A tag: rows and batches delivered, rows held back, and the time up to which it is delivered (UTC)."""

    tag: str
    delivered: int
    held: int
    batches: int
    until: datetime | None


@dataclass(frozen=True)
class RunLine:
    """A run: its state, who worked on it last, its rows and batches, and the page of its quality gate."""

    run: int
    state: str
    kind: str
    owner: str
    batches: int
    in_clickhouse: int
    rows: int
    planned_at: datetime | None
    closed_at: datetime | None
    page: str | None


@dataclass(frozen=True)
class PipelineView:
    """A pipeline with its tags and its newest runs."""

    name: str
    dag_id: str
    destination: str
    tags: tuple[TagLine, ...]
    runs: tuple[RunLine, ...]


def overview(settings: Settings) -> list[PipelineView]:
    """All pipelines of the configuration; raises StoreUnavailable or ConfigurationError."""
    from tagmill.stores.ledger import Ledger

    with Ledger(settings.cassandra) as ledger:
        return [
            PipelineView(
                name=name,
                dag_id=f"deliver_{name}",
                destination=f"{settings.clickhouse.database}.{pipeline.destination}",
                tags=tuple(_tags(ledger, name, pipeline)),
                runs=tuple(_runs(ledger, settings, name)),
            )
            for name, pipeline in settings.pipelines.items()
        ]


def _tags(ledger: "Ledger", name: str, pipeline: PipelineSettings) -> Iterator[TagLine]:
    marks = ledger.watermarks(name)
    held = dict.fromkeys(pipeline.tags, 0)
    for hold in ledger.holds(name, pipeline.tags):
        held[hold.tag] += hold.held_rows
    for tag in pipeline.tags:
        mark = marks.get(tag)
        until = timeuuid.to_datetime(mark.ticks) if mark else None
        yield TagLine(tag, mark.delivered if mark else 0, held[tag], mark.batches if mark else 0, until)


def _runs(ledger: "Ledger", settings: Settings, name: str) -> Iterator[RunLine]:
    newest = ledger.last_run(name)
    for number in range(newest, max(newest - SHOWN_RUNS, 0), -1):
        row = ledger.run(name, number)
        if row is None:  # its number was claimed, and nothing planned yet
            continue
        batches = ledger.batches(name, number)
        arrived = [batch for batch in batches if batch.state is BatchState.IN_CLICKHOUSE]
        yield RunLine(
            run=number,
            state=row.state.value,
            kind=row.kind,
            owner=row.owner,
            batches=len(batches),
            in_clickhouse=len(arrived),
            rows=sum(batch.rows for batch in arrived),
            planned_at=row.planned_at,
            closed_at=row.closed_at,
            page=run_page(settings, name, number),
        )
