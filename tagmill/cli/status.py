"""Commands that only look: status, runs, batches, holds, check."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from tagmill.cli.shared import (
    AsJson,
    MaybePipeline,
    deliverable_pipelines,
    err,
    one_line_errors,
    settings,
    show,
    tag_view_pipelines,
)
from tagmill.cli.verdicts import end, level_of, lines_of
from tagmill.config.settings import Settings
from tagmill.domain.verdict import Level

Rows = list[dict[str, Any]]
Limit = Annotated[int, typer.Option(min=1, help="Lines per pipeline at most, the newest first.")]


def _streams(configured: Settings, pipeline: str | None, *, verify: bool) -> Rows:
    from tagmill.delivery.topics.status import topic_line
    from tagmill.kafka_journal.status import replication_line

    rows = lines_of(
        configured.streams, lambda name: [topic_line(configured, name, verify=verify)], named=pipeline
    )
    return rows + lines_of(
        configured.kafka_journals,
        lambda name: [replication_line(configured, name, verify=verify)[0]],
        named=pipeline,
    )


def _of_views(configured: Settings, pipeline: str | None, *, count_view: bool, verify: bool) -> Rows:
    from tagmill.delivery.tag_views.verification import tag_table

    def read(name: str) -> Rows:
        table = tag_table(configured, name, count_view=count_view, verify=verify)
        return [{"pipeline": name, **line} for line in table]

    return lines_of(configured.pipelines, read, named=pipeline)


def _show_both(rows: Rows, streams: Rows, *, count_view: bool, as_json: bool) -> None:
    """Show lines of tag views, then those of topics and Kafka Journals, whose columns are others."""
    if as_json:
        show([*rows, *streams], (), as_json=True)
        return
    if rows or not streams:
        counted = ["in_view", "cleaned"] if count_view else []
        columns = [
            "pipeline",
            "tag",
            *counted,
            "delivered",
            "held",
            "batches",
            "clickhouse_rows",
            "expired",
            "verdict",
        ]
        show(rows, _without_unused(columns, rows), as_json=False)
    if streams:
        from tagmill.delivery.topics.status import COLUMNS

        show(streams, _without_unused(COLUMNS, streams), as_json=False)


def _without_unused(columns: Iterable[str], rows: Rows) -> list[str]:
    """Return the columns without `expired` where no row has any."""
    return [column for column in columns if column != "expired" or any(row.get(column) for row in rows)]


def _must_be_known(configured: Settings, pipeline: str | None) -> None:
    """Raise before anything is read if the pipeline is unknown, or the ledger, which all verdicts need, can't
    be opened.
    """
    from tagmill.ledger.runs import Ledger

    if pipeline not in configured.kafka_journals:
        deliverable_pipelines(configured, pipeline)
    Ledger(configured.cassandra).cassandra.close()


@one_line_errors
def status(
    pipeline: MaybePipeline = None,
    as_json: AsJson = False,
    count_view: Annotated[
        bool, typer.Option("--count-view/--no-count-view", help="Count the rows of the views, too.")
    ] = False,
) -> None:
    """Show how far each pipeline is, by the ledger and the stores.

    Exit status: 0 when all is well, waits or is held back; 3 when something differs, failed, or is held for
    too long. Otherwise it is that of a pipeline that could not be read (2: an operator has to act, 75: try
    again).
    """
    configured = settings()
    _must_be_known(configured, pipeline)
    streams = _streams(configured, pipeline, verify=False)
    rows = _of_views(configured, pipeline, count_view=count_view, verify=False)
    _show_both(rows, streams, count_view=count_view, as_json=as_json)
    end([*rows, *streams], worst=Level.HELD)


@one_line_errors
def check(pipeline: MaybePipeline = None, as_json: AsJson = False) -> None:
    """Compare every delivered row in ClickHouse with the sealed batches.

    Keeps the result for `status`. For a replicated Kafka Journal, Kafka's offsets are compared with what is
    replicated.

    Exit status: 0 only when everything is delivered exactly once (dead letters are named); 3 when anything
    differs, waits or is held. Otherwise it is that of a pipeline that could not be read (2: an operator has
    to act, 75: try again).
    """
    configured = settings()
    _must_be_known(configured, pipeline)
    rows = _of_views(configured, pipeline, count_view=True, verify=True)
    streams = _streams(configured, pipeline, verify=True)
    _show_both(rows, streams, count_view=True, as_json=as_json)
    if wrong := [row for row in (*rows, *streams) if level_of(row) > Level.APART]:
        kinds = " and ".join(name for name, lines in (("tags", rows), ("topics", streams)) if lines)
        done = "replicated" if pipeline in configured.kafka_journals else "delivered exactly once"
        err.print(f"{len(wrong)} of {len(rows) + len(streams)} {kinds} are not {done}")
    end([*rows, *streams], worst=Level.APART)


@one_line_errors
def runs(pipeline: MaybePipeline = None, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List the ledger's runs, the newest first."""
    show(
        list(_runs(pipeline, limit)),
        ("pipeline", "run", "kind", "state", "batches", "rows", "planned_at", "closed_at", "reason"),
        as_json=as_json,
    )


@one_line_errors
def batches(pipeline: MaybePipeline = None, limit: Limit = 50, as_json: AsJson = False) -> None:
    """List the ledger's batches, the newest first."""
    columns = (
        "pipeline",
        "run",
        "batch",
        "batch_id",
        "tag",
        "state",
        "generation",
        "rows",
        "bytes",
        "verified_at",
    )
    show(list(_batches(pipeline, limit)), columns, as_json=as_json)


@one_line_errors
def holds(pipeline: MaybePipeline = None, as_json: AsJson = False) -> None:
    """List the holds, with the numbers that each of them waits for."""
    from tagmill.ledger.runs import Ledger

    configured = settings()
    rows = []
    with Ledger(configured.cassandra) as ledger:
        for name in tag_view_pipelines(configured, pipeline):
            for hold in ledger.delivered.holds(name, configured.pipeline(name).tags):
                rows.append(
                    {
                        "pipeline": name,
                        "tag": hold.tag,
                        "persistence_id": hold.persistence_id,
                        "reason": hold.reason,
                        "first_missing": hold.gap.first,
                        "last_missing": hold.gap.last,
                        "after_sequence_nr": hold.gap.after_sequence_nr,
                        "before_sequence_nr": hold.gap.before_sequence_nr,
                        "held_rows": hold.held_rows,
                        "since_run": hold.since_run,
                        "since": hold.since,
                    }
                )
    columns = (
        "pipeline",
        "tag",
        "persistence_id",
        "reason",
        "first_missing",
        "last_missing",
        "held_rows",
        "since_run",
        "since",
    )
    show(rows, columns, as_json=as_json)


def _runs(pipeline: str | None, limit: int) -> Iterator[dict[str, Any]]:
    from tagmill.ledger.failures import Failures
    from tagmill.ledger.runs import Ledger

    configured = settings()
    with Ledger(configured.cassandra) as ledger:
        for name in deliverable_pipelines(configured, pipeline):
            newest = ledger.last_run(name)
            failure = Failures(ledger.cassandra, configured.cassandra.ledger_keyspace, name).current()
            for number in range(newest, max(newest - limit, 0), -1):
                row = ledger.run(name, number)
                if row is None:
                    continue
                failing = str(failure) if failure and failure.run == number and row.state.is_open else ""
                found = ledger.batches(name, number)
                yield {
                    "pipeline": name,
                    "run": number,
                    "kind": row.kind,
                    "state": row.state.value,
                    "batches": len(found),
                    "rows": sum(batch.rows for batch in found),
                    "planned_at": row.planned_at,
                    "closed_at": row.closed_at,
                    "owner": row.owner,
                    "fence": row.fence,
                    "reason": row.reason or failing,
                }


def _batches(pipeline: str | None, limit: int) -> Iterator[dict[str, Any]]:
    from tagmill.ledger.retired_batches import Retired
    from tagmill.ledger.runs import Ledger

    configured = settings()
    with Ledger(configured.cassandra) as ledger:
        for name in deliverable_pipelines(configured, pipeline):
            shown, retired = 0, Retired(ledger.cassandra, configured.cassandra.ledger_keyspace, name).up_to()
            for number in range(ledger.last_run(name), retired, -1):
                for batch in ledger.batches(name, number):
                    if shown == limit:
                        break
                    shown += 1
                    yield {
                        "pipeline": name,
                        "run": number,
                        "batch": batch.number,
                        "batch_id": str(batch.batch_id),
                        "tag": batch.tag,
                        "state": batch.state.value,
                        "generation": batch.generation,
                        "rows": batch.rows,
                        "bytes": batch.bytes,
                        "verified_at": batch.verified_at,
                    }
                if shown == limit:
                    break
