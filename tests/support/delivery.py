"""Deliver a pipeline on the test stack, and read the results: rows in ClickHouse, sealed files, holds,
findings.
"""

import json
import re
import socket
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch
from uuid import UUID

import pyarrow.parquet as pq
import structlog
from typer import Typer, testing
from typer.main import get_command

from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.delivery.tag_views import steps
from tagmill.delivery.tag_views.model import Manifest
from tagmill.delivery.tag_views.run_files import read_manifest
from tagmill.delivery.tag_views.verification import tag_table
from tagmill.domain.timeuuid import ticks
from tagmill.ledger import schema
from tagmill.ledger.progress import HoldRow
from tagmill.ledger.runs import Ledger
from tagmill.runs.storage import RunFiles

# The owner is a process that has ended, so that other owners may take over its unfinished work at once.
OWNER = f"cli/{socket.gethostname()}/{2**30}/1"


class Row(NamedTuple):
    """A row of the destination: the columns of tag_views under the destination's names; `event_time` in
    ticks.
    """

    tag: str
    persistence_id: str
    sequence_nr: int
    tag_pid_sequence_nr: int
    event_time: int
    offset: str
    timebucket: int
    writer_uuid: str
    ser_id: int
    ser_manifest: str
    event_manifest: str
    event: bytes
    meta_ser_id: int | None = None
    meta_ser_manifest: str | None = None
    meta: bytes | None = None
    late: int = 0


def as_row(record: dict[str, Any], *, late: int = 0) -> Row:
    """Return the row that a row of tag_views has to become in ClickHouse."""
    offset = str(record["timestamp"])
    columns = {
        **record,
        "tag": record["tag_name"],
        "offset": offset,
        "event_time": ticks(UUID(offset)),
        "late": late,
    }
    return Row(**{name: columns[name] for name in Row._fields})


def only(settings: Settings) -> str:
    """Return the name of the only pipeline."""
    (name,) = settings.pipelines
    return name


def deliver(
    settings: Settings, pipeline: str, spark: Any, *, most: int = 20, **options: Any
) -> list[dict[str, Any]]:
    """Plan, seal, push and close runs until nothing is left to do (a re-read: once); return each run's
    result.
    """
    done: list[dict[str, Any]] = []
    while True:
        planned = steps.plan(settings, pipeline, owner=OWNER, **options)
        if planned["run"] is None:
            return done
        assert len(done) < most, f"still something to do after {most} runs: {done[-1]}"
        done.append(finish(settings, pipeline, spark, planned))
        if "reread" in options:
            return done


def finish(settings: Settings, pipeline: str, spark: Any, planned: dict[str, Any]) -> dict[str, Any]:
    """Seal, push and close a planned run; return the result of the close."""
    run, fence = planned["run"], planned["fence"]
    steps.seal(settings, pipeline, run, fence, owner=OWNER, spark=lambda: spark)
    steps.push(settings, pipeline, run, fence, owner=OWNER)
    return steps.close(settings, pipeline, run, fence, owner=OWNER)


def delivered_first(settings: Settings, spark: Any) -> list[dict[str, Any]]:
    """Apply the schema, deliver the only pipeline, and return each run's result."""
    schema.apply(settings)
    return deliver(settings, only(settings), spark)


def clickhouse_rows(settings: Settings, table: str) -> list[Row]:
    """Return all rows of a destination, with all columns, sorted."""
    shown = {
        "event_time": "intDiv(toUnixTimestamp64Nano(CAST(event_time AS DateTime64(9, 'UTC'))), 100)",
        "offset": "toString(`offset`)",
        "event": "hex(event)",
        "meta": "hex(meta)",
    }
    columns = ", ".join(shown.get(name, f"`{name}`") for name in Row._fields)
    with ClickHouse(settings.clickhouse) as clickhouse:
        rows = [Row(*row) for row in clickhouse.rows(f"SELECT {columns} FROM `{table}`")]
    return sorted(
        row._replace(
            event=bytes.fromhex(str(row.event)),
            meta=None if row.meta is None else bytes.fromhex(str(row.meta)),
        )
        for row in rows
    )


def ids(rows: Iterable[Row]) -> list[tuple[str, str, int]]:
    """Return (tag, persistence_id, number) of each row, sorted, to compare which events are present."""
    return sorted((row.tag, row.persistence_id, row.tag_pid_sequence_nr) for row in rows)


def manifests(settings: Settings, pipeline: str) -> list[Manifest]:
    """Return the manifests of all sealed runs."""
    files = RunFiles(settings.storage.root)
    with Ledger(settings.cassandra) as ledger:
        runs = [ledger.run(pipeline, number) for number in range(1, ledger.last_run(pipeline) + 1)]
        return [read_manifest(files, run) for run in runs if run and run.manifest_file]


def in_order(settings: Settings, pipeline: str) -> list[tuple[str, str, int, int, str]]:
    """Return (tag, persistence_id, number, late, offset) of all batches' rows, in the order in which they
    were pushed.
    """
    found = []
    for manifest in manifests(settings, pipeline):
        for batch in manifest.batches:
            table = pq.read_table(
                Path(settings.storage.root) / batch.file,
                partitioning=None,
                columns=["tag", "persistence_id", "tag_pid_sequence_nr", "late", "offset"],
            )
            found += [tuple(row.values()) for row in table.to_pylist()]
    return found


def assert_in_order(settings: Settings, pipeline: str) -> None:
    """Assert that, except for late rows, the numbers of each tag and persistence_id were pushed in rising
    order.
    """
    last: dict[tuple[str, str], int] = {}
    for tag, persistence_id, number, late, _ in in_order(settings, pipeline):
        if not late:
            assert number > last.get((tag, persistence_id), 0), (tag, persistence_id, number)
            last[tag, persistence_id] = number


def holds(settings: Settings, pipeline: str) -> dict[tuple[str, str], HoldRow]:
    """Return the open holds by (tag, persistence_id)."""
    with Ledger(settings.cassandra) as ledger:
        return {
            (row.tag, row.persistence_id): row
            for row in ledger.delivered.holds(pipeline, settings.pipeline(pipeline).tags)
        }


def state(settings: Settings, pipeline: str, run: int) -> str:
    """Return the state of a run."""
    with Ledger(settings.cassandra) as ledger:
        row = ledger.run(pipeline, run)
        assert row
        return row.state.value


def verdicts(settings: Settings, pipeline: str) -> dict[str, str]:
    """Return what `tagmill check` says of each tag, without the time of the check."""
    return {line["tag"]: without_moment(line["verdict"]) for line in tag_table(settings, pipeline)}


def without_moment(verdict: str) -> str:
    """Return the verdict without the time of the check."""
    return re.sub(r", checked at [0-9: -]{19}", "", verdict)


def quality(settings: Settings, pipeline: str, run: int) -> dict[str, Any]:
    """Read verdict.json of a run's quality page."""
    file = Path(settings.storage.root) / pipeline / "docs" / f"run-{run:08d}" / "verdict.json"
    content: dict[str, Any] = json.loads(file.read_text())
    return content


class Unstoppable:
    """The session that all tests share, with a `stop` that does nothing."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spark, name)

    def stop(self) -> None:
        """Do nothing, so that a command does not stop the shared session."""


class AtTerminal:
    """Module sys with a person at standard input."""

    stdin = SimpleNamespace(isatty=lambda: True)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


def shown_first(file: Path, *arguments: str) -> tuple[int, str, str]:
    """Run a command with --dry-run in place of --yes, then as it is; return what `tagmill` does of the latter.

    Asserts that the dry run changes nothing, and is refused with the same words and exit status.
    """
    option = next(option for option in ("--pipeline", "-p") if option in arguments)
    settings, name = Settings.load(file), arguments[arguments.index(option) + 1]
    before = stored(settings, name)
    looked = tagmill(file, *(argument for argument in arguments if argument != "--yes"), "--dry-run")
    assert stored(settings, name) == before
    done = tagmill(file, *arguments)
    assert looked[0] == done[0] and looked[2] == done[2] and (looked[1] or done[0]), (looked, done)
    assert looked[1] != done[1] or done[0], done
    return done


def stored(settings: Settings, name: str) -> dict[str, Any]:
    """Return what there is of a pipeline: its rows of the ledger, sums of its tables, all files."""
    kept: dict[str, Any] = {}
    chosen = {**settings.pipelines, **settings.streams, **settings.kafka_journals}[name]
    keys = {"pipeline": name}
    if keyspace := getattr(chosen, "keyspace", None):
        keys["journal"] = keyspace
    with Ledger(settings.cassandra) as ledger, ClickHouse(settings.clickhouse) as clickhouse:
        session = ledger.cassandra.session
        for table in (ledger.cassandra.tables(settings.cassandra.ledger_keyspace) or {}).values():
            for key in keys.keys() & table.columns.keys():
                query = f"SELECT * FROM {ledger.keyspace}.{table.name} WHERE {key} = %s ALLOW FILTERING"
                kept[f"{table.name} {key}"] = sorted(map(str, session.execute(query, (keys[key],))))
        for (table,) in clickhouse.rows(
            "SELECT name FROM system.tables WHERE database = {of:String} AND engine LIKE '%MergeTree' "
            "AND startsWith(name, {name:String})",
            {"of": settings.clickhouse.database, "name": name},
        ):
            kept[table] = clickhouse.rows(f"SELECT count(), sum(cityHash64(*)) FROM `{table}`")
    root = Path(settings.storage.root)
    kept["files"] = sorted((str(file), file.stat().st_size) for file in root.rglob("*") if file.is_file())
    return kept


@cache
def _commands(app: Typer) -> Any:
    """Return the commands, which Typer's runner makes anew for each call."""
    return get_command(app)


def tagmill(file: Path, *arguments: str, answer: str | None = None) -> tuple[int, str, str]:
    """Run a `tagmill` command in this process; return exit status, stdout and stderr.

    `answer`: what a person at the terminal types.
    """
    from tagmill.cli import shared
    from tagmill.cli.main import app

    try:
        with (
            patch.object(shared, "sys", sys if answer is None else AtTerminal()),
            patch.object(testing, "_get_command", _commands),
        ):
            result = testing.CliRunner().invoke(app, ["--config", str(file), *arguments], input=answer)
    finally:
        structlog.reset_defaults()  # the command's logging writes to a stderr that is now closed
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr
