"""`tagmill init`: ask one's own servers, and write the configuration file."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tagmill.cli.shared import Tags, Yes, err, must_be_answerable, one_line_errors, out
from tagmill.errors import ConfigurationError

if TYPE_CHECKING:
    from tagmill.onboarding.draft import Draft
    from tagmill.onboarding.questions import Ask, Question


@one_line_errors
def init(
    cassandra: Annotated[
        str | None, typer.Option(help="Cassandra, as HOST[:PORT]; several hosts with commas.")
    ] = None,
    keyspace: Annotated[
        str | None, typer.Option(help="Keyspace of the journal, of the application or of a Kafka Journal.")
    ] = None,
    username: Annotated[
        str | None,
        typer.Option(help="User name for Cassandra; its password is TAGMILL_CASSANDRA__PASSWORD."),
    ] = None,
    ledger_keyspace: Annotated[str, typer.Option(help="Keyspace of Tagmill's own tables.")] = "tagmill",
    clickhouse: Annotated[str | None, typer.Option(help="ClickHouse, as HOST[:PORT][/DATABASE].")] = None,
    kafka: Annotated[str | None, typer.Option(help="Kafka, as HOST:PORT[,HOST:PORT].")] = None,
    topic: Annotated[str | None, typer.Option(help="Topic to deliver.")] = None,
    tag: Tags = None,
    schema_file: Annotated[
        list[str] | None,
        typer.Option(
            "--schema-file",
            help="Topic: Avro schema or Protobuf descriptor set, as VERSION=FILE; with a registry's frame "
            "ID=FILE. Repeatable.",
        ),
    ] = None,
    message_type: Annotated[
        str | None, typer.Option(help="Topic: full name of the Protobuf message.")
    ] = None,
    unique_id: Annotated[
        list[str] | None,
        typer.Option("--unique-id", help="Topic: field that makes an event unique. Repeatable."),
    ] = None,
    storage: Annotated[
        str | None, typer.Option(help="Folder or URL of plans, sealed batches and reports.")
    ] = None,
    output: Annotated[Path, typer.Option(help="File to write.", dir_okay=False)] = Path("tagmill.toml"),
    yes: Yes = False,
) -> None:
    """Ask your servers what they hold, and write a configuration file for it.

    Reads samples only, and changes nothing on any server. Asks what the servers can't say; --yes takes the
    proposals. An existing file is never overwritten without asking.
    """
    from tagmill.onboarding.init import Wanted, propose, write

    must_be_answerable(yes)
    overwrite = _may_overwrite(output, yes)
    wanted = Wanted(
        output=output,
        cassandra=cassandra,
        keyspace=keyspace,
        username=username,
        ledger_keyspace=ledger_keyspace,
        clickhouse=clickhouse,
        kafka=kafka,
        topic=topic,
        tags=tag or (),
        schema_files=dict(map(_schema_file, schema_file or ())),
        message_type=message_type,
        unique_id=unique_id or (),
        storage=storage,
    )
    proposal = propose(wanted, _asking(yes))
    written = write(proposal, output, overwrite=overwrite)
    _show(proposal.draft, written, username)


def _may_overwrite(output: Path, yes: bool) -> bool:
    """Return whether the file exists and may be replaced; exit with 2 if it may not."""
    if not output.exists():
        return False
    if yes:
        raise ConfigurationError(
            f"{output} exists, and --yes does not overwrite it. Nothing was written; give --output another "
            "file, or move it away"
        )
    if not typer.confirm(f"{output} exists. Overwrite it?"):
        err.print("nothing was written")
        raise typer.Exit(2)
    return True


def _schema_file(text: str) -> tuple[str, Path]:
    version, separator, file = text.partition("=")
    return (version, Path(file)) if separator else ("1", Path(text))


def _asking(yes: bool) -> "Ask":
    """Return a function that answers with proposals, or that asks on the terminal."""
    from tagmill.onboarding.questions import take_proposal

    if yes:
        return take_proposal

    def ask(question: "Question") -> str:
        choices = f" ({', '.join(question.choices)})" if question.choices else ""
        while True:
            answer = str(typer.prompt(f"{question.text}{choices}", default=question.proposal)).strip()
            if answer and (not question.choices or answer in question.choices):
                return answer
            err.print(f"{answer!r} is none of {', '.join(question.choices)}")

    return ask


def _show(draft: "Draft", written: list[Path], username: str | None) -> None:
    for heading, lines in (
        ("seen", draft.facts),
        ("warning", draft.warnings),
        ("not told by the servers, so check it", draft.not_told),
    ):
        for line in lines:
            out.print(f"{heading}: {line}")
    out.print(f"written: {', '.join(map(str, written))}")
    config = "" if written[0] == Path("tagmill.toml") else f"--config {shlex.quote(str(written[0]))} "
    out.print("next:")
    if username:
        out.print(f"  export TAGMILL_CASSANDRA__USERNAME={shlex.quote(username)}")
    for command in draft.commands:
        out.print(f"  tagmill {config}{command}")
