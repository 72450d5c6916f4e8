"""`tagmill deadletters`: records of Kafka that could not be read."""

import json
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagmill.cli.shared import (
    AsJson,
    DryRun,
    Pipeline,
    Why,
    Yes,
    decide,
    one_line_errors,
    out,
    person,
    settings,
    show,
)
from tagmill.config.settings import Settings
from tagmill.errors import ConfigurationError

if TYPE_CHECKING:
    from tagmill.ledger.dead_letters import DeadLetter

app = typer.Typer(
    help="List records of Kafka that could not be read, read them again, or discard them.",
    no_args_is_help=True,
)
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "bytes", "reason")


@app.callback()
def deadletters() -> None:
    """List dead letters, read them again, or discard them."""


@app.command("list")
@one_line_errors
def list_letters(
    pipeline: Pipeline,
    limit: Annotated[int, typer.Option("--limit", min=1, max=100_000, help="Lines at most.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List where each dead letter came from, and why it could not be read.

    --json adds its bytes (in hexadecimal).
    """
    from tagmill.cassandra.client import Cassandra
    from tagmill.ledger.dead_letters import DeadLetters

    configured = settings()
    _of_kafka(configured, pipeline)
    with Cassandra(configured.cassandra) as cassandra:
        found = islice(DeadLetters(cassandra, configured.cassandra.ledger_keyspace, pipeline).listed(), limit)
        if as_json:
            _print_all(found)
            return
        rows = [_row(one) for one in found]  # without their bytes
    if rows:
        show(rows, COLUMNS, as_json=False)
    else:
        out.print(f"{pipeline} has no dead letters")


def _row(letter: "DeadLetter") -> dict[str, Any]:
    record = letter.record
    key = None if record.key is None else record.key.decode("utf-8", "backslashreplace")
    return {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "key": key,
        "bytes": len(record.value or b""),
        "reason": letter.reason,
    }


def _print_all(letters: "Iterable[DeadLetter]") -> None:
    """Print the dead letters as a JSON array, one at a time, since each may have megabytes."""
    before = "["
    for letter in letters:
        value = None if letter.record.value is None else letter.record.value.hex()
        print(before + json.dumps(_row(letter) | {"value": value}, default=str), end="")
        before = ", "
    print("[]" if before == "[" else "]")


@app.command()
@one_line_errors
def replay(pipeline: Pipeline, as_json: AsJson = False) -> None:
    """Read a topic's dead letters again, and deliver those that can be read.

    The topic's settings of today apply. The other dead letters stay.
    """
    from tagmill.cli import topics

    configured = settings()
    if pipeline in configured.kafka_journals:
        raise ConfigurationError(
            f"{pipeline} is a Kafka Journal: what came behind a record that could not be read was "
            "replicated without it, and it can't be "
            "put in front any more. Nothing was done"
        )
    runs = topics.deliver(configured, pipeline, letters=True)
    topics.shown(pipeline, runs, as_json=as_json)


@app.command()
@one_line_errors
def discard(
    pipeline: Pipeline,
    topic: Annotated[str, typer.Option("--topic", help="Topic whose dead letters go.")],
    why: Why = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete a topic's dead letters for good.

    Records of the topic that are set apart, but not read yet, will be read as others are. A topic that was created again needs both
    before `run deliver --recreated`.
    """
    from tagmill.ledger.lease import this_process
    from tagmill.runs.dead_letters import DeadLetterDiscard

    configured = settings()
    _of_kafka(configured, pipeline)
    who = (configured, pipeline, this_process(), person(), why)
    decide(
        f"Discard the dead letters of topic {topic} of pipeline {pipeline}?",
        lambda look: DeadLetterDiscard(*who, dry_run=look).run(topic),
        why=why,
        dry_run=dry_run,
        yes=yes,
    )


def _of_kafka(configured: Settings, pipeline: str) -> None:
    """Raise ConfigurationError for a pipeline that reads no records of Kafka."""
    known = {**configured.topics, **configured.kafka_journals}
    if pipeline not in known:
        raise configured.not_there(pipeline, "topic or kafka_journal", known)
