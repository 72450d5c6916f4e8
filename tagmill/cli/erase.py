"""`tagmill erase`, and `tagmill erasures`: the record of what was erased."""

import json
from typing import Annotated, Any

import typer

from tagmill.cli import operations
from tagmill.cli.shared import (
    AsJson,
    DespiteViews,
    DryRun,
    MaybePipeline,
    PersistenceIds,
    PersistenceIdsFile,
    Pipeline,
    Yes,
    is_read_twice,
    lists_of_ids,
    must_say_why,
    one_line_errors,
    out,
    person,
    settings,
    show,
    show_and_ask,
    tag_view_pipelines,
    telling,
)
from tagmill.domain.identifiers import quoted
from tagmill.operations.deletion import EraseParameters


@operations.command
def erase(
    pipeline: Pipeline,
    parameters: EraseParameters,
    persistence_id: PersistenceIds = None,
    persistence_ids: PersistenceIdsFile = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
    despite_views: DespiteViews = False,
) -> None:
    """Erase persistence ids everywhere, for good.

    That is journal, snapshots, views, sealed files, ClickHouse and ledger. Shows what would go and asks;
    --dry-run only shows it. Erases them in all pipelines on the journal, delivered or not. Their actors must
    not be running. Safe to stop and to start again at any moment; without persistence ids it finishes an
    unfinished erasure.
    """
    from tagmill.ledger.lease import this_process
    from tagmill.maintenance.erasure.erase import erase as erase_ids

    named = bool(persistence_id or persistence_ids)
    why = (parameters.why or "").strip()
    if named:
        must_say_why(why, dry_run)
    lists = lists_of_ids(persistence_id, persistence_ids)
    configured = settings()
    keyspace = configured.pipeline(pipeline).keyspace

    def work(only_count: bool) -> dict[str, Any]:
        with telling(pipeline, "counting" if only_count else "erasing") as tell:
            return erase_ids(
                configured,
                pipeline,
                next(lists),
                owner=this_process(),
                who=person(),
                why=why,
                delete=not only_count,
                tell=tell,
                despite_views=despite_views,
            )

    which = (
        "ALL that there is of these persistence ids"
        if named
        else "what an erasure that is not finished was to erase"
    )
    question = f"Erase {which} of journal {keyspace}, everywhere and for good?"
    shown = named and not as_json and is_read_twice(persistence_ids)
    done = show_and_ask(question, work, _show, dry_run=dry_run, yes=yes, shown=shown)
    if as_json:
        print(json.dumps(done, default=str))
    else:
        _show(done)


@one_line_errors
def erasures(
    pipeline: MaybePipeline = None,
    limit: Annotated[int, typer.Option(min=1, help="Lines per journal at most, the newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List what was erased, when, by whom and why, the newest first."""
    from tagmill.ledger.erasures import Erasures
    from tagmill.ledger.runs import Ledger

    configured = settings()
    journals = dict.fromkeys(
        configured.pipeline(name).keyspace for name in tag_view_pipelines(configured, pipeline)
    )
    rows = []
    with Ledger(configured.cassandra) as ledger:
        for journal in journals:
            for row in Erasures(ledger.cassandra, configured.cassandra.ledger_keyspace, journal).newest(
                limit
            ):
                counts = (
                    row.counts
                    if as_json
                    else ", ".join(f"{count} {place}" for place, count in row.counts.items() if count)
                )
                rows.append(
                    {
                        "journal": journal,
                        "erasure": row.erasure,
                        "state": row.state.value,
                        "persistence_ids": row.persistence_ids,
                        "who": row.who,
                        "why": row.why,
                        "begun_at": row.begun_at,
                        "done_at": row.done_at,
                        "counts": counts,
                    }
                )
    show(
        rows,
        ("journal", "erasure", "state", "persistence_ids", "who", "why", "begun_at", "done_at", "counts"),
        as_json=as_json,
    )


def _show(done: dict[str, Any]) -> None:
    lines = [{"place": place.replace("_", " "), "count": count} for place, count in done["counts"].items()]
    show(lines, ("place", "count"), as_json=False)
    if done["unknown_ids"]:
        out.print(f"unknown: {quoted(done['unknown_ids'], done['unknown'])}")
    for warning in done["warnings"]:
        out.print(f"warning: {warning}")
    out.print(done["message"])
