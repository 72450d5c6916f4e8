"""`tagmill events`: show events of a journal, by tag or by persistence_id."""

import base64
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tagmill.cli.shared import Pipeline, one_line_errors, settings, show, telling
from tagmill.errors import TerminalError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tagmill.queries import ReadJournal

SHOWN = (
    "persistence_id",
    "sequence_nr",
    "tag_pid_sequence_nr",
    "event_time",
    "offset",
    "ser_manifest",
    "event",
)

# Characters of a payload that the table shows.
LONGEST_CELL = 200


@one_line_errors
def events(
    pipeline: Pipeline,
    tag: Annotated[
        str | None, typer.Option("--tag", "-t", help="Only this tag, in the order of offsets.")
    ] = None,
    persistence_id: Annotated[
        str | None, typer.Option("--persistence-id", help="Only this persistence_id, by sequence_nr.")
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from", help="Begin behind this offset, or at this moment (ISO 8601, UTC) or sequence_nr."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Events at most.")] = 20,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON instead of a table, a line for each event.")
    ] = False,
) -> None:
    """Show events in the plugin's order, gaps or not.

    Give one of --tag and --persistence-id.
    """
    from tagmill.operations.work_size import few_events
    from tagmill.queries import ReadJournal
    from tagmill.spark.errors import explained
    from tagmill.spark.session import spark_session

    if (tag is None) == (persistence_id is None):
        raise TerminalError("give one of --tag and --persistence-id. Nothing was read")
    configured = settings()
    configured.pipeline(pipeline)
    with (
        telling(pipeline, "starting Spark"),
        spark_session(
            configured, f"tagmill events {pipeline}", few_rows=few_events(configured, pipeline)
        ) as spark,
    ):
        journal = ReadJournal(spark, configured, pipeline)
        with explained(journal.where, "Nothing was shown"):
            rows = [
                _plain(row.asDict())
                for row in _events(journal, tag, persistence_id, begin).limit(limit).collect()
            ]
    if as_json:
        for row in rows:
            print(json.dumps(row, default=str, ensure_ascii=False))
    else:
        cut = [{name: _cut(value) for name, value in row.items()} for row in rows]
        show(cut, [name for name in SHOWN if not rows or name in rows[0]], as_json=False)


def _events(
    journal: "ReadJournal", tag: str | None, persistence_id: str | None, begin: str | None
) -> "DataFrame":
    if tag is not None:
        return journal.current_events_by_tag(tag, begin, gaps="keep")
    if begin is not None and not begin.isdecimal():
        raise TerminalError(f"--from {begin}: of a persistence_id it is a sequence_nr. Nothing was read")
    return journal.current_events_by_persistence_id(persistence_id or "", int(begin or 0), gaps="keep")


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row with bytes as text, or as base64 if they are not UTF-8, and moments in UTC."""
    return {name: _shown(value) for name, value in row.items()}


def _cut(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= LONGEST_CELL:
        return value
    return f"{value[:LONGEST_CELL]}… ({len(value)} characters; --json has all)"


def _shown(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if not isinstance(value, bytes | bytearray):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(value).decode()}"
