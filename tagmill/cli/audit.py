"""`tagmill audit` and `tagmill audits`: compare journal, view, progress and ClickHouse."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from tagmill.cli.shared import (
    AsJson,
    DespiteViews,
    DryRun,
    MaybePipeline,
    Pipeline,
    Tags,
    Yes,
    confirm,
    must_be_answerable,
    one_line_errors,
    out,
    person,
    settings,
    show,
    tag_view_pipelines,
    telling,
)

TAG_COLUMNS = ("tag", "journal", "deleted", "cleaned", "view", "pending", "clickhouse", "findings")
BUCKET_COLUMNS = ("tag", "timebucket", "journal", "view", "clickhouse", "findings")
FINDING_COLUMNS = ("kind", "tag", "persistence_id", "sequence_nr", "view_number", "expected_number", "detail")
SHOWN_BUCKETS = 20


@one_line_errors
def audit(
    pipeline: Pipeline,
    tag: Tags = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write the report as JSON into this file, too.")
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full", help="Read again what an earlier audit has proven and what has not changed since."
        ),
    ] = False,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Repair the view, deliver what is missing or wrong, and audit again; shows the findings and "
            "asks first.",
        ),
    ] = False,
    why: Annotated[
        str | None, typer.Option("--why", help="Reason, with --repair; the ledger records it.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    despite_views: DespiteViews = False,
) -> None:
    """Compare journal, tag views, progress and ClickHouse.

    Exit status: 0 only if all agree, else 3. Changes nothing, unless --repair is given without --dry-run.
    """
    from tagmill.audit.audit import audit as run_audit
    from tagmill.audit.audit import message
    from tagmill.audit.repair import audit_and_repair, preview
    from tagmill.ledger.lease import this_process
    from tagmill.operations.work_size import few_events, little_to_audit
    from tagmill.spark.session import spark_session

    configured = settings()
    configured.pipeline(pipeline)
    if repair and (tag or not (why or dry_run)):
        raise typer.BadParameter("--repair needs --why or --dry-run, and is for all tags of the pipeline")
    changes = repair and not dry_run
    if changes:
        must_be_answerable(yes)
    owner, repairs = this_process(), list[Any]()
    with ExitStack() as stack:
        with telling(pipeline, "starting Spark") as tell:
            is_small = few_events if full else little_to_audit
            few, name = is_small(configured, pipeline), f"tagmill audit {pipeline}"
            spark = stack.enter_context(spark_session(configured, name, few_rows=few))
            made = run_audit(configured, pipeline, owner=owner, spark=spark, tags=tag, full=full, tell=tell)
        if changes and not made.agrees:
            if not yes and not as_json:
                _show(made)
                out.print(preview(made), markup=False)
            confirm(f"Repair this in the view of {pipeline} and in ClickHouse?", yes)
            with telling(pipeline, "repairing") as tell:
                made, repairs = audit_and_repair(
                    configured,
                    pipeline,
                    spark=spark,
                    owner=owner,
                    who=person(),
                    why=str(why),
                    tell=tell,
                    despite_views=despite_views,
                    first=made,
                )
    if report:
        report.write_text(made.model_dump_json(indent=1), encoding="utf-8")
    if as_json:
        repaired = {"repairs": [done.model_dump(mode="json") for done in repairs]} if changes else {}
        print(json.dumps({**made.model_dump(mode="json"), **repaired}))
    else:
        for done in repairs:
            out.print(done.message, markup=False)
            _show_left(done)
        _show(made)
        if repair and dry_run:
            out.print(preview(made), markup=False)
        out.print(f"{message(made)}. See {made.docs}", markup=False)
    if not made.agrees:
        raise typer.Exit(3)


def _show_left(done: Any) -> None:
    if done.left:
        rows = [{**line.model_dump(), "kind": line.kind.value} for line in done.left]
        show(rows, ("kind", "count", "why", "example"), as_json=False, title="Left as it is:")


def _show(made: Any) -> None:
    show([_line(line) for line in made.tags], TAG_COLUMNS, as_json=False)
    for warning in made.warnings:
        out.print(f"warning: {warning}", markup=False)
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
