"""Each pipeline for the page in Airflow's UI: tags by ledger and ClickHouse, newest runs, last audit. Counts the view only when asked."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from tagmill.airflow.pages import page_of
from tagmill.batches.states import BatchState
from tagmill.delivery.report import EXACTLY_ONCE, tag_table
from tagmill.settings import Settings
from tagmill.stores.audits import Audits, in_words
from tagmill.stores.ledger import Ledger

SHOWN_RUNS = 20


@dataclass(frozen=True)
class TagLine:
    """A tag: rows in the view and cleaned from it (None: not counted), delivered by the ledger, held back, and in ClickHouse."""

    tag: str
    in_view: int | None
    cleaned: int | None
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
class AuditLine:
    """The last audit that came to its end: when, what it says, and its page."""

    audit: int
    done_at: datetime | None
    agrees: bool
    verdict: str
    page: str | None


@dataclass(frozen=True)
class PipelineView:
    """A pipeline with its tags, its newest runs and its last audit (None: there was none)."""

    name: str
    dag_id: str
    destination: str
    tags: tuple[TagLine, ...]
    runs: tuple[RunLine, ...]
    audit: AuditLine | None


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
                audit=_audit(ledger, settings, name),
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
            page=page_of(settings, name, f"run-{number:08d}"),
        )


def _audit(ledger: Ledger, settings: Settings, name: str) -> AuditLine | None:
    row = Audits(ledger.cassandra, settings.cassandra.ledger_keyspace, name).last_done()
    if row is None:
        return None
    return AuditLine(
        audit=row.audit,
        done_at=row.done_at,
        agrees=bool(row.agrees),
        verdict="agrees" if row.agrees else f"does not agree: {in_words(row.findings)}",
        page=page_of(settings, name, f"audit-{row.audit:08d}"),
    )
