"""Reads each pipeline for the page in Airflow's UI: what is delivered by ledger and ClickHouse, newest runs,
last audits.

Views are counted only when asked.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from datetime import datetime

from tagmill.airflow.pages import page_of
from tagmill.config.settings import Settings
from tagmill.delivery.tag_views.verification import tag_table
from tagmill.delivery.topics.status import topic_line
from tagmill.domain.batches.states import BatchState
from tagmill.kafka_journal.model import PartitionStatus
from tagmill.ledger.audits import Audits, in_words
from tagmill.ledger.runs import Ledger
from tagmill.runs import trace_log
from tagmill.runs.workspace import Workspace
from tagmill.spark.errors import tell, was_interrupted

SHOWN_RUNS = 20


@dataclass(frozen=True)
class TagLine:
    """A tag: rows in the view and cleaned from it (None: not counted), delivered by the ledger, held back,
    and in ClickHouse.
    """

    tag: str
    in_view: int | None
    cleaned: int | None
    delivered: int
    held: int
    batches: int
    clickhouse_rows: int
    verdict: str
    level: str
    expired: int = 0


@dataclass(frozen=True)
class StreamLine:
    """A topic, or the tables of a Kafka Journal: offsets that wait, delivered by the ledger, in ClickHouse,
    and what can't be read.
    """

    waiting: int
    delivered: int
    batches: int
    clickhouse_rows: int
    dead_letters: int
    verdict: str
    level: str


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
    """The last completed audit of a tag: its tags if these are not all, when it was done, what it says, and its page."""

    audit: int
    tags: tuple[str, ...]
    done_at: datetime | None
    agrees: bool
    verdict: str
    page: str | None


@dataclass(frozen=True)
class PipelineView:
    """A pipeline with its newest runs; of tag views its tags and their last audits, the newest first.

    Of a topic or a Kafka Journal `stream`; of a replicated Kafka Journal `partitions`, `verdict` and `level`.
    `problem`: why they can't be read now.
    """

    name: str
    dag_id: str
    destination: str
    tags: tuple[TagLine, ...] = ()
    runs: tuple[RunLine, ...] = ()
    audits: tuple[AuditLine, ...] = ()
    stream: StreamLine | None = None
    partitions: tuple[PartitionStatus, ...] = ()
    verdict: str = ""
    level: str = ""
    problem: str = ""


def overview(settings: Settings, *, count_view: bool = False) -> list[PipelineView]:
    """Return all pipelines of the configuration; for one that cannot be read, `problem` says why.

    Raises StoreUnavailable or ConfigurationError if the ledger cannot be read.
    """
    with Ledger(settings.cassandra) as ledger:
        names = settings.pipelines
        of_views = [_of_views(Workspace(settings, name, ledger), count_view=count_view) for name in names]
        return [
            *of_views,
            *(_stream(Workspace(settings, name, ledger)) for name in settings.streams),
            *_replicated(settings),
        ]


def _of_views(workspace: Workspace, *, count_view: bool) -> PipelineView:
    settings, name = workspace.settings, workspace.name
    view = _without_lines(workspace)
    try:
        # The newest runs and the audits need no other store than the ledger.
        view = replace(view, runs=tuple(_runs(workspace)))
        view = replace(view, audits=tuple(_audits(workspace)))
        lines = tag_table(settings, name, count_view=count_view, verify=False)
    except Exception as error:
        return _unread(settings, view, error)
    return replace(view, tags=tuple(TagLine(**line) for line in lines))


def _stream(workspace: Workspace) -> PipelineView:
    view = _without_lines(workspace)
    try:
        view = replace(view, runs=tuple(_runs(workspace)))
        line = topic_line(workspace.settings, workspace.name, verify=False)
    except Exception as error:
        return _unread(workspace.settings, view, error)
    return replace(view, stream=StreamLine(**{field.name: line[field.name] for field in fields(StreamLine)}))


def _without_lines(workspace: Workspace) -> PipelineView:
    table = f"{workspace.settings.clickhouse.database}.{workspace.delivering.destination}"
    return PipelineView(workspace.name, f"deliver_{workspace.name}", table)


def _unread(settings: Settings, view: PipelineView, error: Exception) -> PipelineView:
    """Return a pipeline with the line that says why it cannot be read; the trace of a defect goes to a log."""
    if was_interrupted(error):
        raise error
    told = tell(error, trace_log.folder_of(settings.storage.root), f"page {view.name}")
    return replace(view, problem=told.line)


def _replicated(settings: Settings) -> Iterator[PipelineView]:
    from tagmill.kafka_journal.status import replication_line

    for name, chosen in settings.kafka_journals.items():
        view = PipelineView(name, f"replicate_{name}", f"keyspace {chosen.keyspace}")
        try:
            line, partitions = replication_line(settings, name)
            yield replace(view, partitions=tuple(partitions), verdict=line["verdict"], level=line["level"])
        except Exception as error:
            yield _unread(settings, view, error)


def _runs(workspace: Workspace) -> Iterator[RunLine]:
    ledger, name = workspace.ledger, workspace.name
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
            page=page_of(workspace.settings, name, f"run-{number:08d}"),
        )


def _audits(workspace: Workspace) -> Iterator[AuditLine]:
    """Yield the last audit of each tag, the newest first; one of several tags once."""
    last = workspace.store(Audits).last_done_of(workspace.pipeline.tags).values()
    for row in sorted({row.audit: row for row in last}.values(), key=lambda row: -row.audit):
        yield AuditLine(
            audit=row.audit,
            tags=tuple(sorted(row.tags or ())),
            done_at=row.done_at,
            agrees=bool(row.agrees),
            verdict="agrees" if row.agrees else f"does not agree: {in_words(row.findings)}",
            page=page_of(workspace.settings, workspace.name, f"audit-{row.audit:08d}"),
        )
