"""`tagmill run`: deliver by hand what Airflow delivers on schedule; abandon and void."""

import json
from functools import partial
from typing import Annotated, Any

import typer

from tagmill.cli import topics
from tagmill.cli.shared import (
    AsJson,
    DespiteViews,
    DryRun,
    Pipeline,
    Tags,
    Why,
    Yes,
    confirm_from_now_on,
    decide,
    deliverable_pipelines,
    delivering,
    one_line_errors,
    out,
    person,
    settings,
    show,
)
from tagmill.cli.verdicts import lines_of
from tagmill.config.settings import Settings

app = typer.Typer(help="Deliver, and end runs that cannot go on.", no_args_is_help=True)


@app.command()
@one_line_errors
def deliver(
    pipeline: Annotated[
        str | None, typer.Option("--pipeline", "-p", help="Pipeline of the configuration.")
    ] = None,
    every: Annotated[
        bool,
        typer.Option(
            "--all", help="Each pipeline that delivers, in one Spark session; built views are built first."
        ),
    ] = False,
    tag: Tags = None,
    reread_from: Annotated[
        str | None, typer.Option(help="Read again from this moment (ISO 8601, UTC).")
    ] = None,
    reread_until: Annotated[
        str | None, typer.Option(help="Read again until this moment (ISO 8601, UTC).")
    ] = None,
    accept_lost: Annotated[
        bool,
        typer.Option(
            "--accept-lost",
            help="Topics: go on although records are gone from Kafka that were never delivered.",
        ),
    ] = False,
    recreated: Annotated[
        bool,
        typer.Option(
            "--recreated", help="Topics: read a topic that was created again from its first record."
        ),
    ] = False,
    max_runs: Annotated[int, typer.Option(min=1, help="Runs at most; a backlog takes several.")] = 1000,
    as_json: AsJson = False,
) -> None:
    """Deliver all that is new, run by run, and finish what was left unfinished.

    Safe to stop and to start again at any moment.
    """
    configured = settings()
    if (reread_from is None) != (reread_until is None):
        raise typer.BadParameter("give both --reread-from and --reread-until, or neither")
    reread = (reread_from, reread_until) if reread_from and reread_until else None
    if (pipeline is None) != every:
        raise typer.BadParameter("give --pipeline or --all")
    if pipeline is None:
        if tag or reread or accept_lost or recreated or max_runs != 1000:
            raise typer.BadParameter("--all has no other options than --json: those are for one --pipeline")
        _deliver_all(configured, as_json=as_json)
    elif pipeline in configured.streams:
        if tag or reread:
            raise typer.BadParameter(
                f"{pipeline} is no pipeline of tag views: what was read once is not read again, and tags "
                "are configured"
            )
        runs = topics.deliver(
            configured, pipeline, accept_lost=accept_lost, recreated=recreated, max_runs=max_runs
        )
        topics.shown(pipeline, runs, as_json=as_json)
        if runs and not as_json:
            _print_verdict_of_topic(configured, pipeline)
    elif accept_lost or recreated:
        raise typer.BadParameter(f"{pipeline} reads no topic: --accept-lost and --recreated are for topics")
    else:
        runs = _deliver_views(configured, pipeline, tag, reread, max_runs)
        _show_runs(configured, pipeline, runs, as_json=as_json)


def _deliver_all(configured: Settings, *, as_json: bool) -> None:
    """Deliver each pipeline in one session, show the outcomes, and end with the exit status of the failures."""
    from tagmill.delivery.together import deliver_together, exit_code

    with delivering(configured, "all pipelines", "tagmill deliver --all") as by:
        outcomes = deliver_together(configured, deliverable_pipelines(configured, None), **by)
    lines = [{**outcome.as_json(), "outcome": outcome.message.partition(": ")[2]} for outcome in outcomes]
    show(lines, ("pipeline", "runs", "rows", "held", "seconds", "outcome"), as_json=as_json)
    if code := exit_code(outcomes):
        raise typer.Exit(code)


def _deliver_views(
    configured: Settings, pipeline: str, tags: list[str] | None, reread: tuple[str, str] | None, max_runs: int
) -> list[dict[str, Any]]:
    from tagmill.delivery.tag_views.deliver import deliver as deliver_runs

    with delivering(configured, pipeline, f"tagmill deliver {pipeline}") as by:
        return deliver_runs(configured, pipeline, tags=tags, reread=reread, max_runs=max_runs, **by)


def _show_runs(configured: Settings, pipeline: str, runs: list[dict[str, Any]], *, as_json: bool) -> None:
    from tagmill.delivery.tag_views.verification import tag_table

    if as_json:
        print(json.dumps({"pipeline": pipeline, "runs": runs}, default=str))
        return
    for run in runs:
        out.print(run["message"])
    if not runs:
        out.print(f"pipeline {pipeline}: nothing to do")
        return
    judged = lines_of([pipeline], lambda name: tag_table(configured, name, count_view=False, verify=False))
    verdicts = {line.get("tag"): line["verdict"] for line in judged}
    lines = [{**line, "verdict": verdicts.get(line["tag"]) or verdicts.get(None, "")} for line in _sums(runs)]
    show(lines, ("tag", "delivered", "late", "dropped", "held", "verdict"), as_json=False)
    out.print(f"quality report: {runs[-1]['docs']}")


def _print_verdict_of_topic(configured: Settings, pipeline: str) -> None:
    from tagmill.delivery.topics.status import topic_line

    (line,) = lines_of([pipeline], lambda name: [topic_line(configured, name, verify=False)])
    out.print(f"pipeline {pipeline}: {line['verdict']}")


@app.command()
@one_line_errors
def abandon(pipeline: Pipeline, why: Why = "", dry_run: DryRun = False, yes: Yes = False) -> None:
    """Abandon the run that is PLANNED.

    Nothing of it was delivered; the next run plans its range again.
    """
    question, action = f"Abandon the planned run of pipeline {pipeline}?", partial(ways_out, pipeline, why)
    decide(question, lambda look: action(look).abandon(), why=why, dry_run=dry_run, yes=yes)


@app.command()
@one_line_errors
def void(pipeline: Pipeline, why: Why = "", dry_run: DryRun = False, yes: Yes = False) -> None:
    """Void the batches of the SEALED run that ClickHouse does not have.

    Their absence is proven first. A later run delivers their events.
    """
    question = f"Void the batches of pipeline {pipeline} that are not in ClickHouse?"
    action = partial(ways_out, pipeline, why)
    decide(question, lambda look: action(look).void(), why=why, dry_run=dry_run, yes=yes)


@app.command("give-up")
@one_line_errors
def give_up(
    pipeline: Pipeline,
    why: Why = "",
    set_apart: Annotated[
        list[str] | None,
        typer.Option(
            "--set-apart",
            help="Go on without this: a persistence_id; a record of a topic or a replication "
            "(topic/partition/offset); a nullable column of a topic; an id of a Kafka Journal. "
            "Repeatable.",
        ),
    ] = None,
    despite_views: DespiteViews = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Give up the open run, whatever state it and its files are in.

    The next run reads again what it did not deliver.

    Without an open run: a view's build or a replication that is sealed and cannot be finished, or lost files
    of a closed run.
    """
    action = partial(_giving_up, pipeline, why, despite_views=despite_views)
    decide(
        f"Give up the open run of pipeline {pipeline}?",
        lambda look: action(look).run(set_apart or []),
        why=why,
        dry_run=dry_run,
        yes=yes,
    )


@app.command("take-back")
@one_line_errors
def take_back(
    pipeline: Pipeline,
    why: Why = "",
    column: Annotated[
        str | None, typer.Option("--column", help="A column of a topic that was set apart.")
    ] = None,
    key: Annotated[
        str | None, typer.Option("--id", help="An id of a Kafka Journal that was set apart.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Deliver again what was set apart: a topic's column, a Kafka Journal's id.

    For a persistence_id use `holds release`.
    """
    configured = settings()
    of_topic = pipeline not in configured.kafka_journal_events
    item = column if of_topic else key
    if of_topic:
        configured.topic(pipeline)
    if item is None or None not in (column, key):
        raise typer.BadParameter("give --column of a topic, or --id of a Kafka Journal")
    decide(
        f"Deliver {item!r} of pipeline {pipeline} again?",
        lambda look: _giving_up(pipeline, why, look).take_back(item),
        why=why,
        dry_run=dry_run,
        yes=yes,
        ask=confirm_from_now_on,
    )


def _giving_up(pipeline: str, why: str, dry_run: bool, *, despite_views: bool = False) -> Any:
    from tagmill.delivery.tag_views.give_up import GiveUp
    from tagmill.delivery.topics.give_up import TopicGiveUp
    from tagmill.kafka_journal.give_up import ReplicationGiveUp
    from tagmill.ledger.lease import this_process

    configured = settings()
    who = (configured, pipeline, this_process(), person(), why)
    if pipeline in configured.kafka_journals:
        return ReplicationGiveUp(*who, dry_run=dry_run)
    of_kind = TopicGiveUp if pipeline in configured.streams else GiveUp
    return of_kind(*who, despite_views=despite_views, dry_run=dry_run)


def release(pipeline: str, why: str, dry_run: bool, tag: str, persistence_id: str) -> str:
    """End the hold of a persistence_id that was set apart; return a sentence that says what was done."""
    from tagmill.delivery.tag_views.give_up import GiveUp
    from tagmill.ledger.lease import this_process

    give_up = GiveUp(settings(), pipeline, this_process(), person(), why, dry_run=dry_run)
    return give_up.release(tag, persistence_id)


def interventions(pipeline: str, why: str, dry_run: bool, *, despite_views: bool = False) -> Any:
    """Return the interventions in one pipeline of tag views, to be recorded under the current user's name."""
    from tagmill.delivery.tag_views.interventions import Interventions
    from tagmill.ledger.lease import this_process

    who = (this_process(), person(), why)
    return Interventions(settings(), pipeline, *who, despite_views=despite_views, dry_run=dry_run)


def ways_out(pipeline: str, why: str, dry_run: bool, *, despite_views: bool = False) -> Any:
    """Return the interventions in the runs of any pipeline that delivers: of tag views, a topic or a Kafka
    Journal.
    """
    from tagmill.delivery.topics.interventions import TopicInterventions
    from tagmill.ledger.lease import this_process

    configured = settings()
    if pipeline in configured.streams:
        who = (this_process(), person(), why)
        return TopicInterventions(configured, pipeline, *who, despite_views=despite_views, dry_run=dry_run)
    return interventions(pipeline, why, dry_run, despite_views=despite_views)


def _sums(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sum up what the runs did, by tag; `held` is that of the last run."""
    sums: dict[str, dict[str, Any]] = {}
    for run in runs:
        for line in run["tags"]:
            known = sums.setdefault(
                line["tag"], {"tag": line["tag"], "delivered": 0, "late": 0, "dropped": 0}
            )
            for name in ("delivered", "late", "dropped"):
                known[name] += line[name]
            known["held"] = line["held"]
    return list(sums.values())
