"""Each pipeline for the page in Airflow's UI: tags by ledger and ClickHouse, newest runs. Counts the view only when asked."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from tagmill.airflow.pages import run_page
from tagmill.batches.states import BatchState
from tagmill.delivery.report import EXACTLY_ONCE, tag_table
from tagmill.settings import Settings
from tagmill.stores.ledger import Ledger

SHOWN_RUNS = 20


@dataclass(frozen=True)
class TagLine:
    """A tag: rows in the application's view (None: not counted), delivered by the ledger, held back, and in ClickHouse."""

    tag: str
    in_view: int | None
    delivered: int
    held: int
    batches: int
    clickhouse_rows: int
    verdict: str

    @property
    def whole(self) -> bool:
        """Nothing held, nothing missing, nothing too many."""
        return self.verdict == EXACTLY_ONCE


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


def overview(settings: Settings, *, count_view: bool = False) -> list[PipelineView]:
    """All pipelines of the configuration; raises StoreUnavailable or ConfigurationError."""
    with Ledger(settings.cassandra) as ledger:
        return [
            PipelineView(
                name=name,
                dag_id=f"deliver_{name}",
                destination=f"{settings.clickhouse.database}.{pipeline.destination}",
                tags=tuple(TagLine(**line) for line in tag_table(settings, name, count_view=count_view, verify=False)),
                runs=tuple(_runs(ledger, settings, name)),
            )
            for name, pipeline in settings.pipelines.items()
        ]


def _runs(ledger: Ledger, settings: Settings, name: str) -> Iterator[RunLine]:
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
