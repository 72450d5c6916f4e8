"""Commands that only look: status, runs, batches, holds, check."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from tagmill.cli.shared import AsJson, MaybePipeline, chosen, err, one_line_errors, settings, show, tag_view_pipelines
from tagmill.settings import Settings

Rows = list[dict[str, Any]]
Limit = Annotated[int, typer.Option(min=1, help="At most so many lines a pipeline, the newest first.")]


def _topics(configured: Settings, pipeline: str | None, *, verify: bool) -> Rows:
    from tagmill.topics.report import topic_line

    return [topic_line(configured, name, verify=verify) for name in configured.streams if pipeline in (None, name)]


def _show_both(rows: Rows, columns: Sequence[str], topics: Rows, *, as_json: bool) -> None:
    """Those of tag views, and those of topics and Kafka Journals, whose columns are others."""
    if as_json:
        show([*rows, *topics], (), as_json=True)
        return
    if rows or not topics:
        show(rows, columns, as_json=False)
    if topics:
        from tagmill.topics.report import COLUMNS

        show(topics, COLUMNS, as_json=False)


@one_line_errors
def status(pipeline: MaybePipeline = None, as_json: AsJson = False, count_view: bool = False) -> None:
    """How far each tag is delivered, by the ledger and by ClickHouse. --count-view counts the rows of the view too."""
    from tagmill.delivery.report import tag_table

    configured = settings()
    topics = _topics(configured, pipeline, verify=False)
    rows = [
        {"pipeline": name, **line}
        for name in tag_view_pipelines(configured, pipeline)
        for line in tag_table(configured, name, count_view=count_view, verify=False)
    ]
    columns = [
        "pipeline",
        "tag",
        *(["in_view", "cleaned"] if count_view else []),
        "delivered",
        "held",
        "batches",
        "clickhouse_rows",
        "verdict",
    ]
    _show_both(rows, columns, topics, as_json=as_json)


@one_line_errors
def check(pipeline: MaybePipeline = None, as_json: AsJson = False) -> None:
    """Read every delivered row in ClickHouse again and hold it against the sealed batches. Exit status 0 only if all agree."""
    from tagmill.delivery.report import EXACTLY_ONCE, tag_table

    configured = settings()
    rows = [
        {"pipeline": name, **line} for name in tag_view_pipelines(configured, pipeline) for line in tag_table(configured, name)
    ]
    topics = _topics(configured, pipeline, verify=True)
    columns = ("pipeline", "tag", "in_view", "cleaned", "delivered", "held", "batches", "clickhouse_rows", "verdict")
    _show_both(rows, columns, topics, as_json=as_json)
    if wrong := [row for row in (*rows, *topics) if row["verdict"] != EXACTLY_ONCE]:
        what = " and ".join(name for name, there in (("tags", rows), ("topics", topics)) if there)
        err.print(f"{len(wrong)} of {len(rows) + len(topics)} {what} are not delivered exactly once", markup=False)
        raise typer.Exit(3)


@one_line_errors
def runs(pipeline: MaybePipeline = None, limit: Limit = 20, as_json: AsJson = False) -> None:
    """Runs of the ledger, the newest first."""
    show(
        list(_runs(pipeline, limit)),
        ("pipeline", "run", "kind", "state", "batches", "rows", "planned_at", "closed_at", "reason"),
        as_json=as_json,
    )


@one_line_errors
def batches(pipeline: MaybePipeline = None, limit: Limit = 50, as_json: AsJson = False) -> None:
    """Batches of the ledger, the newest first."""
    columns = ("pipeline", "run", "batch", "batch_id", "tag", "state", "generation", "rows", "bytes", "verified_at")
    show(list(_batches(pipeline, limit)), columns, as_json=as_json)


@one_line_errors
def holds(pipeline: MaybePipeline = None, as_json: AsJson = False) -> None:
    """What is kept back, and the numbers that it waits for."""
    from tagmill.stores.ledger import Ledger

    configured = settings()
    rows = []
    with Ledger(configured.cassandra) as ledger:
        for name in tag_view_pipelines(configured, pipeline):
            for hold in ledger.delivered.holds(name, configured.pipeline(name).tags):
                rows.append(
                    {"pipeline": name, "tag": hold.tag, "persistence_id": hold.persistence_id, "reason": hold.reason,
                     "first_missing": hold.hole.first, "last_missing": hold.hole.last, "after_sequence_nr": hold.hole.after_sequence_nr,
                     "before_sequence_nr": hold.hole.before_sequence_nr, "held_rows": hold.held_rows, "since_run": hold.since_run,
                     "since": hold.since}
                )  # fmt: skip
    columns = ("pipeline", "tag", "persistence_id", "reason", "first_missing", "last_missing", "held_rows", "since_run", "since")
    show(rows, columns, as_json=as_json)


def _runs(pipeline: str | None, limit: int) -> Iterator[dict[str, Any]]:
    from tagmill.stores.ledger import Ledger

    configured = settings()
    with Ledger(configured.cassandra) as ledger:
        for name in chosen(configured, pipeline):
            newest = ledger.last_run(name)
            for number in range(newest, max(newest - limit, 0), -1):
                row = ledger.run(name, number)
                if row is None:
                    continue
                found = ledger.batches(name, number)
                yield {
                    "pipeline": name, "run": number, "kind": row.kind, "state": row.state.value, "batches": len(found),
                    "rows": sum(batch.rows for batch in found), "planned_at": row.planned_at, "closed_at": row.closed_at,
                    "owner": row.owner, "fence": row.fence, "reason": row.reason or "",
                }  # fmt: skip


def _batches(pipeline: str | None, limit: int) -> Iterator[dict[str, Any]]:
    from tagmill.stores.ledger import Ledger
    from tagmill.stores.retired import Retired

    configured = settings()
    with Ledger(configured.cassandra) as ledger:
        for name in chosen(configured, pipeline):
            shown, retired = 0, Retired(ledger.cassandra, configured.cassandra.ledger_keyspace, name).up_to()
            for number in range(ledger.last_run(name), retired, -1):
                for batch in ledger.batches(name, number):
                    if shown == limit:
                        break
                    shown += 1
                    yield {
                        "pipeline": name, "run": number, "batch": batch.number, "batch_id": str(batch.batch_id), "tag": batch.tag,
                        "state": batch.state.value, "generation": batch.generation, "rows": batch.rows, "bytes": batch.bytes,
                        "verified_at": batch.verified_at,
                    }  # fmt: skip
                if shown == limit:
                    break
