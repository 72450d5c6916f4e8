"""`tagmill audit`, `tagmill audits` and `tagmill repair`: compare journal, view, progress and ClickHouse, and repair them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagmill.cli import operations
from tagmill.cli.shared import (
    AsJson,
    DryRun,
    MaybePipeline,
    Pipeline,
    Tags,
    Yes,
    confirm,
    err,
    one_line_errors,
    out,
    settings,
    show,
    tag_view_pipelines,
    telling,
)
from tagmill.operations.audit import REPAIR, RepairParameters

if TYPE_CHECKING:
    from tagmill.audit.model import AuditReport
    from tagmill.audit.repair import Outcome, RepairReport

TAG_COLUMNS = ("tag", "journal", "deleted", "cleaned", "view", "pending", "clickhouse", "findings")
BUCKET_COLUMNS = ("tag", "timebucket", "journal", "view", "clickhouse", "findings")
FINDING_COLUMNS = ("kind", "tag", "persistence_id", "sequence_nr", "view_number", "expected_number", "detail")
SHOWN_BUCKETS = 20
ReportFile = Annotated[
    Path | None, typer.Option("--report", help="Write the report as JSON into this file, too.")
]


@one_line_errors
def audit(
    pipeline: Pipeline,
    tag: Tags = None,
    report: ReportFile = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Read again what an earlier audit has proven and what has not changed since."
        ),
    ] = False,
    as_json: AsJson = False,
    repair: Annotated[bool, typer.Option("--repair", hidden=True)] = False,
    why: Annotated[str | None, typer.Option("--why", hidden=True)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", hidden=True)] = False,
    yes: Annotated[bool, typer.Option("--yes", hidden=True)] = False,
    despite_views: Annotated[bool, typer.Option("--despite-views", hidden=True)] = False,
) -> None:
    """Compare journal, tag views, progress and ClickHouse; change nothing.

    Exit status: 0 only if all agree, else 3.
    """
    from tagmill.audit.audit import audit as run_audit
    from tagmill.ledger.lease import this_process
    from tagmill.operations.work_size import few_events, little_to_audit
    from tagmill.spark.session import spark_session

    if repair:
        err.print("warning: the next version has no audit --repair; write: tagmill repair")
        if tag:
            raise typer.BadParameter("--repair is for all tags of the pipeline")
        parameters = RepairParameters(why=why, full=full, despite_views=despite_views)
        _repair(pipeline, parameters, report, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    configured = settings()
    configured.pipeline(pipeline)
    is_small = few_events if full else little_to_audit
    few, name = is_small(configured, pipeline), f"tagmill audit {pipeline}"
    with telling(pipeline, "starting Spark") as tell, spark_session(configured, name, few_rows=few) as spark:
        made = run_audit(
            configured, pipeline, owner=this_process(), spark=spark, tags=tag, full=full, tell=tell
        )
    _write(report, made)
    print(made.model_dump_json()) if as_json else _show(made)
    if not made.agrees:
        raise typer.Exit(3)


@operations.command
def repair(
    pipeline: Pipeline,
    parameters: RepairParameters,
    report: ReportFile = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Audit, repair the view and ClickHouse, and audit again.

    Shows the findings and what a repair would begin, and asks. Exit status: 0 only if all agree in the end, else 3.
    Safe to stop and to start again at any moment.
    """
    _repair(pipeline, parameters, report, dry_run=dry_run, yes=yes, as_json=as_json)


def _repair(
    pipeline: str,
    parameters: RepairParameters,
    report: Path | None,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    shown: Outcome | None = None

    def display(done: Outcome) -> None:
        nonlocal shown
        shown = done
        _show_outcome(done)

    def ask(question: str, yes: bool) -> None:
        if shown is None or not shown.agrees:
            confirm(question, yes)

    question = f"Repair this in the view of {pipeline} and in ClickHouse?"
    how = {"dry_run": dry_run, "yes": yes, "as_json": as_json}
    done = operations.run(REPAIR, pipeline, parameters, question, display, ask=ask, **how)
    _write(report, done)
    if not done.agrees:
        raise typer.Exit(3)


def _write(file: Path | None, report: AuditReport) -> None:
    if file:
        file.write_text(report.model_dump_json(indent=1), encoding="utf-8")


def _show_outcome(done: Outcome) -> None:
    from tagmill.audit.repair import preview

    for repaired in done.repairs:
        out.print(repaired.message)
        _show_left(repaired)
    _show(done)
    if done.dry_run:
        out.print(preview(done))


def _show_left(done: RepairReport) -> None:
    if done.left:
        rows = [{**line.model_dump(), "kind": line.kind.value} for line in done.left]
        show(rows, ("kind", "count", "why", "example"), as_json=False, title="Left as it is:")


def _show(made: AuditReport) -> None:
    from tagmill.audit.audit import message

    show([_line(line) for line in made.tags], TAG_COLUMNS, as_json=False)
    for warning in made.warnings:
        out.print(f"warning: {warning}")
    if made.buckets:
        shown = made.buckets[:SHOWN_BUCKETS]
        show(
            [_line(line) for line in shown],
            BUCKET_COLUMNS,
            as_json=False,
            title="The first buckets with findings:",
        )
    if made.named:
        rows = [{**named.model_dump(), "kind": named.kind.value} for named in made.named]
        show(rows, FINDING_COLUMNS, as_json=False, title="The first findings of each kind:")
    out.print(f"{message(made)}. See {made.docs}")


def _line(line: Any) -> dict[str, Any]:
    from tagmill.ledger.audits import in_words

    return {**line.model_dump(), "findings": in_words(line.findings)}


@one_line_errors
def audits(
    pipeline: MaybePipeline = None,
    limit: Annotated[int, typer.Option(min=1, help="Lines per pipeline at most, the newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the ledger's audits, the newest first."""
    from tagmill.ledger.audits import Audits, in_words
    from tagmill.ledger.runs import Ledger

    configured = settings()
    with Ledger(configured.cassandra) as ledger:
        rows = [
            {
                "pipeline": name,
                "audit": row.audit,
                "tags": None if row.tags is None else ", ".join(sorted(row.tags)),
                "state": row.state.value,
                "agrees": row.agrees,
                "journal": row.journal_rows,
                "view": row.view_rows,
                "clickhouse": row.clickhouse_rows,
                "started_at": row.started_at,
                "done_at": row.done_at,
                "findings": in_words(row.findings),
                "docs": row.docs,
            }
            for name in tag_view_pipelines(configured, pipeline)
            for row in Audits(ledger.cassandra, configured.cassandra.ledger_keyspace, name).newest(limit)
        ]
    columns = (
        "pipeline",
        "audit",
        "tags",
        "state",
        "agrees",
        "journal",
        "view",
        "clickhouse",
        "started_at",
        "done_at",
        "findings",
    )
    show(rows, columns, as_json=as_json)
