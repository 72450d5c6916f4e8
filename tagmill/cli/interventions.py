"""Commands that change the ledger by hand: `holds close`, `progress rebase` and `restart`, `batches resend`
and `withdraw`.

Each shows what it would change, asks, does it, and records why.
"""

from functools import partial
from typing import Annotated
from uuid import UUID

import typer

from tagmill.cli import status
from tagmill.cli.run import interventions, release, ways_out
from tagmill.cli.shared import (
    AsJson,
    DespiteViews,
    DryRun,
    MaybePipeline,
    Pipeline,
    Why,
    Yes,
    confirm_from_now_on,
    decide,
    one_line_errors,
)

holds = typer.Typer(
    help="List what is kept back (without a command); close or release a hold.", invoke_without_command=True
)
progress = typer.Typer(help="Go on with a persistence_id whose numbers have changed.", no_args_is_help=True)
batches = typer.Typer(
    help="List batches (without a command); resend, withdraw or accept one.", invoke_without_command=True
)

BatchId = Annotated[UUID, typer.Argument(help="Id of the batch, as `tagmill batches` lists it.")]
Tag = Annotated[str, typer.Option("--tag", help="The tag.")]
Run = Annotated[int, typer.Option(min=1, help="Run that sealed the batch.")]
PersistenceId = Annotated[str, typer.Option("--persistence-id", help="The persistence_id.")]


@holds.callback()
def list_holds(context: typer.Context, pipeline: MaybePipeline = None, as_json: AsJson = False) -> None:
    """List the holds."""
    if context.invoked_subcommand is None:
        status.holds(pipeline, as_json)


@holds.command("close")
@one_line_errors
def close_hold(
    pipeline: Pipeline,
    tag: Tag,
    persistence_id: PersistenceId,
    why: Why = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Give up the missing numbers of a hold.

    The next run delivers what is behind them. Numbers that turn up later come flagged late.
    """
    decide(
        f"Give up the missing numbers of {persistence_id!r}, tag {tag!r}?",
        lambda look: interventions(pipeline, why, look).close_hold(tag, persistence_id),
        why=why,
        dry_run=dry_run,
        yes=yes,
    )


@holds.command("release")
@one_line_errors
def release_hold(
    pipeline: Pipeline,
    tag: Tag,
    persistence_id: PersistenceId,
    why: Why = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Release a persistence_id that `run give-up --set-apart` holds.

    The next run delivers what can be delivered of it.
    """
    decide(
        f"Release {persistence_id!r}, tag {tag!r}?",
        lambda look: release(pipeline, why, look, tag, persistence_id),
        why=why,
        dry_run=dry_run,
        yes=yes,
        ask=confirm_from_now_on,
    )


@progress.command("rebase")
@one_line_errors
def rebase(
    pipeline: Pipeline,
    tag: Tag,
    persistence_id: PersistenceId,
    why: Why = "",
    number: Annotated[
        int | None, typer.Option(min=1, help="The number that the last delivered event has now.")
    ] = None,
    sequence_nr: Annotated[int | None, typer.Option(min=1, help="The sequence_nr of that event.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Continue a persistence_id of a renumbered view behind its last event.

    That is the last delivered one; its new number is looked up by its sequence_nr.
    """
    if (number is None) != (sequence_nr is None):
        raise typer.BadParameter("give both --number and --sequence-nr, or neither")
    decide(
        f"Rebase the progress of {persistence_id!r}, tag {tag!r}?",
        lambda look: interventions(pipeline, why, look).rebase(tag, persistence_id, number, sequence_nr),
        why=why,
        dry_run=dry_run,
        yes=yes,
    )


@progress.command("restart")
@one_line_errors
def restart(
    pipeline: Pipeline,
    tag: Tag,
    persistence_id: PersistenceId,
    why: Why = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Deliver a persistence_id that was deleted and began again.

    Its numbers began again at 1, or only its sequence_nrs did. ClickHouse keeps the earlier life; what the view still
    has of it is not read again.
    """
    decide(
        f"Deliver {persistence_id!r}, tag {tag!r}, as a new life?",
        lambda look: interventions(pipeline, why, look).restart(tag, persistence_id),
        why=why,
        dry_run=dry_run,
        yes=yes,
    )


@batches.callback()
def list_batches(
    context: typer.Context, pipeline: MaybePipeline = None, limit: status.Limit = 50, as_json: AsJson = False
) -> None:
    """List batches, the newest first."""
    if context.invoked_subcommand is None:
        status.batches(pipeline, limit, as_json)


@batches.command("resend")
@one_line_errors
def resend(
    batch_id: BatchId,
    pipeline: Pipeline,
    run: Run,
    why: Why = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    despite_views: DespiteViews = False,
) -> None:
    """Remove a batch's rows from ClickHouse and push the sealed bytes again.

    They go under the next generation.
    """
    action = partial(ways_out, pipeline, why, despite_views=despite_views)
    decide(
        f"Remove batch {batch_id} from ClickHouse and send it again?",
        lambda look: action(look).resend(batch_id, run),
        why=why,
        dry_run=dry_run,
        yes=yes,
    )


@batches.command("withdraw")
@one_line_errors
def withdraw(
    batch_id: BatchId,
    pipeline: Pipeline,
    run: Run,
    why: Why = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    despite_views: DespiteViews = False,
) -> None:
    """Remove a batch from ClickHouse for good.

    Its events are noted as undelivered; when they are read again, they are delivered, flagged late.
    Of a VOIDED batch that ClickHouse has again after a restore, only the rows are removed; of a topic or a Kafka
    Journal that is the only use.
    """
    action = partial(ways_out, pipeline, why, despite_views=despite_views)
    decide(
        f"Remove batch {batch_id} from ClickHouse, so that its events are delivered again from the view?",
        lambda look: action(look).withdraw(batch_id, run),
        why=why,
        dry_run=dry_run,
        yes=yes,
    )


@batches.command("accept")
@one_line_errors
def accept(
    batch_id: BatchId,
    pipeline: Pipeline,
    run: Run,
    why: Why = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Record that the destination's views have a batch whose insert failed.

    They had it, or you completed them.
    """
    decide(
        f"Do all views that depend on the destination of {pipeline} have batch {batch_id}?",
        lambda look: ways_out(pipeline, why, look).accept(batch_id, run),
        why=why,
        dry_run=dry_run,
        yes=yes,
    )
