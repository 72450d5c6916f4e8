"""`tagmill kafka-journal`: replicate a Kafka Journal's topics to Cassandra, purge expired ids, show one
id.
"""

import json
from typing import Annotated, Any

import typer

from tagmill.cli import operations
from tagmill.cli.shared import AsJson, DryRun, Pipeline, Yes, one_line_errors, out, settings, show
from tagmill.operations.kafka_journal import PURGE, REPLICATE, PurgeParameters, ReplicateParameters

app = typer.Typer(
    help="Replicate a Kafka Journal to Cassandra, purge expired ids, show one id.", no_args_is_help=True
)


@app.command()
@operations.command
def replicate(pipeline: Pipeline, parameters: ReplicateParameters, as_json: AsJson = False) -> None:
    """Replicate everything that is in the topics now to Cassandra.

    Safe to stop and to start again at any moment.
    """
    with operations.working(REPLICATE, pipeline, parameters) as work:
        done = work(False)
    if as_json:
        print(done.model_dump_json())
        return
    if done.ranges:
        show([one.model_dump() for one in done.ranges], ("topic", "partition", "first", "end"), as_json=False)
    for warning in done.warnings:
        out.print(f"warning: {warning}")
    out.print(done.message)


@app.command()
@one_line_errors
def status(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """Show how far each partition is replicated, and how many records wait.

    Also what the next replication will stop at.
    """
    from tagmill.kafka_journal.replicate import status as library

    found = library(settings(), pipeline)
    columns = ("topic", "partition", "replicated_to", "first", "end", "waiting", "not_readable")
    show([one.model_dump() for one in found], columns, as_json=as_json)
    if not as_json:
        for problem in dict.fromkeys(one.problem for one in found if one.problem):
            out.print(f"problem: {problem}. The next replication says what to do")


@app.command("purge-expired")
@operations.command
def purge_expired(
    pipeline: Pipeline,
    parameters: PurgeParameters,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Publish a Purge action to Kafka for every id that has expired.

    The next replication deletes them, as every reader does.
    """
    question = f"Purge all ids of {pipeline} that have expired, for good?"
    operations.run(
        PURGE, pipeline, parameters, question, _show_purged, dry_run=dry_run, yes=yes, as_json=as_json
    )


def _show_purged(done: Any) -> None:
    for example in done.examples:
        out.print(example)
    out.print(done.message)


@app.command()
@one_line_errors
def head(
    pipeline: Pipeline,
    key: Annotated[str, typer.Argument(metavar="ID", help="Id of the journal (its key in Kafka).")],
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Events at most.")] = 100,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds", min=0, help="Seconds to look for events at most, where sequence numbers skip far."
        ),
    ] = 30,
    as_json: AsJson = False,
) -> None:
    """Show an id as its readers see it now: seq_nr, delete_to and events.

    They come from Cassandra and, if not replicated yet, from Kafka.
    """
    from tagmill.kafka_journal.head import heads

    found = heads(settings(), pipeline, key, most=limit, seconds=seconds)
    if as_json:
        print(json.dumps([one.model_dump(mode="json") for one in found]))
        return
    if not found:
        out.print(f"{pipeline} knows no id {key!r}")
        raise typer.Exit(1)
    columns = ("topic", "seq_nr", "delete_to", "created", "updated", "expire_on", "unreplicated")
    show([one.model_dump() for one in found], columns, as_json=False)
    for one in (one for one in found if one.events):
        events = [event.model_dump() | {"tags": ", ".join(event.tags)} for event in one.events]
        more = f" (the first {len(events)}: --limit)" if one.more and one.looked_to is None else ""
        show(
            events,
            ("seq_nr", "timestamp", "tags", "payload_type", "payload", "replicated"),
            as_json=False,
            title=f"{one.topic}{more}",
        )
    for one in (one for one in found if one.looked_to is not None):
        out.print(
            f"{one.topic}: sequence numbers skip, and after {seconds:g} s Cassandra's events were looked "
            f"for up to {one.looked_to}. "
            f"Those between that and {one.seq_nr} are not shown: --seconds",
        )
