"""Fixtures of the fault tests: a delivery to seal, push, disturb and inspect, and an undisturbed one to
compare it with.

A kill ends a command that is a process of its own, with its own JVM. A crash raises an exception that nothing
catches, in this process and with the Spark session that all tests share. It takes a fifth of the time. Each
operation is killed at the instants where a kill leaves most behind, and crashes at the others.
"""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from local.fixtures import TABLES
from tagmill.ledger.runs import Ledger
from tagmill.runs import checkpoints
from tagmill.spark import session
from tests.conftest import SettingsFactory
from tests.support import faulty_clickhouse
from tests.support.commands import Command, Ended
from tests.support.delivery import deliver, tagmill
from tests.support.leases import free_lease
from tests.support.stack import own_keyspaces


def dead_process() -> str:
    """Return the owner name of a process of this machine that has ended, so that its lease is free at
    once.
    """
    process = subprocess.Popen(["true"])
    process.wait()
    return f"cli/{socket.gethostname()}/{process.pid}/1"


class Crashed(BaseException):
    """Ends a command like a crash: as a BaseException, it passes every `except Exception`."""


@dataclass
class Delivery:
    """One pipeline over one journal keyspace, with its stores."""

    stack: Any
    spark: Any
    settings: Any
    config: Path
    commands: list[Command] = field(default_factory=list)

    @property
    def pipeline(self) -> str:
        return str(next(iter(self.settings.pipelines)))

    @property
    def table(self) -> str:
        return str(self.settings.pipeline(self.pipeline).destination)

    @property
    def keyspace(self) -> str:
        return str(self.settings.pipeline(self.pipeline).keyspace)

    # -- commands

    def start(self, *arguments: str, at: str | None = None) -> Command:
        """Start a command in the background; with `at`, return once it waits at that instant."""
        command = Command(self.config, *arguments, "--pipeline", self.pipeline, instant=at)
        self.commands.append(command)
        return command.paused() if at else command

    def deliver(self, *arguments: str, at: str | None = None) -> Command:
        """Start `tagmill run deliver` in the background."""
        return self.start("run", "deliver", *arguments, at=at)

    def finish(self) -> None:
        """Deliver to a good end, in this process."""
        deliver(self.settings, self.pipeline, self.spark)

    def said(self, *arguments: str) -> Ended:
        """Run a command that needs no Spark, in this process, and return how it ended."""
        return Ended(*tagmill(self.config, *arguments, "--pipeline", self.pipeline))

    def here(self, *arguments: str) -> Ended:
        """Run a command in this process, with the session that all tests share, and return how it ended."""
        shared = patch.object(session, "session", lambda *_, **__: self.spark)
        with shared, patch.object(self.spark, "stop", lambda: None):
            return self.said(*arguments)

    def crash(self, *arguments: str, at: str) -> None:
        """Run a command in this process and crash it at the instant `at`, then free its lease."""

        def reached(name: str) -> None:
            if name == at:
                raise Crashed

        with patch.object(checkpoints, "reached", reached), pytest.raises(Crashed):
            self.here(*arguments)
        self.spark.catalog.clearCache()  # cached frames would outlive the files that they read
        # The lease names this living process, so it would not count as free.
        free_lease(self.stack.session, self.pipeline)

    def check(self) -> Ended:
        """Run `tagmill check` and return how it ended."""
        return self.said("check")

    # -- the library, in this process

    def sealed(self) -> tuple[int, int]:
        """Plan and seal a run in the name of a process that has ended; return run and fence."""
        from tagmill.delivery.tag_views import steps

        owner = dead_process()
        planned = steps.plan(self.settings, self.pipeline, owner=owner)
        assert planned["state"] == "PLANNED", planned
        steps.seal(
            self.settings,
            self.pipeline,
            planned["run"],
            planned["fence"],
            owner=owner,
            spark=lambda: self.spark,
        )
        return planned["run"], planned["fence"]

    def manifest(self, run: int = 1) -> Any:
        """Return the manifest of a sealed run."""
        from tagmill.delivery.tag_views.run_files import read_manifest
        from tagmill.ledger.runs import Ledger
        from tagmill.runs.storage import RunFiles

        with Ledger(self.settings.cassandra) as ledger:
            row = ledger.run(self.pipeline, run)
        assert row is not None
        return read_manifest(RunFiles(self.settings.storage.root), row)

    def path(self, file: str) -> Path:
        """Return the path of a run's file on this machine."""
        return Path(self.settings.storage.root) / file

    def without_deduplication(self) -> None:
        """Make the destination forget every deduplication token."""
        self.sql(f"ALTER TABLE {self.table} MODIFY SETTING non_replicated_deduplication_window = 0")

    def sql(self, statement: str) -> None:
        """Execute one statement in ClickHouse and wait until its mutations are done."""
        client = self.stack.client(settings={"mutations_sync": 2})
        try:
            client.command(statement)
        finally:
            client.close()

    # -- what the stores hold

    def rows(self) -> list[tuple[Any, ...]]:
        """Return every row of the destination, all columns but batch_id, in the order of its events."""
        found = self.stack.rows(
            f"SELECT * EXCEPT batch_id FROM {self.table} ORDER BY tag, persistence_id, "
            "tag_pid_sequence_nr, sequence_nr"
        )
        return [tuple(row) for row in found]

    def batches(self) -> list[tuple[Any, ...]]:
        """Return number, state and generation of each batch of each run."""
        with Ledger(self.settings.cassandra) as ledger:
            return [
                (run, batch.number, batch.state.value, batch.generation)
                for run in range(1, ledger.last_run(self.pipeline) + 1)
                for batch in ledger.batches(self.pipeline, run)
            ]

    def run_state(self, run: int = 1) -> tuple[str, int]:
        """Return state and fence of a run."""
        with Ledger(self.settings.cassandra) as ledger:
            row = ledger.run(self.pipeline, run)
        return row.state.value, row.fence

    def last_run(self) -> int:
        """Return the number of the newest run."""
        with Ledger(self.settings.cassandra) as ledger:
            return ledger.last_run(self.pipeline)

    def progress(self) -> list[tuple[Any, ...]]:
        """Return the progress of every tag and persistence_id."""
        columns = 'tag, persistence_id, tag_pid_sequence_nr, sequence_nr, "offset", missing'
        rows = self.stack.session.execute(
            f"SELECT {columns} FROM tagmill_test.progress WHERE pipeline = %s ALLOW FILTERING",
            (self.pipeline,),
        )
        return sorted(tuple(row) for row in rows)

    def marks(self) -> list[tuple[Any, ...]]:
        """Return the delivered rows that the watermarks count, by tag."""
        with Ledger(self.settings.cassandra) as ledger:
            marks = ledger.delivered.watermarks(self.pipeline)
        return sorted((tag, mark.delivered) for tag, mark in marks.items())

    def view(self) -> list[tuple[Any, ...]]:
        """Return all rows of the journal's view."""
        rows = self.stack.session.execute(f"SELECT * FROM {self.keyspace}.tag_views")
        return sorted(tuple(map(repr, row)) for row in rows)

    def left_behind(self) -> None:
        """Kill the commands that a failed test left running."""
        for command in self.commands:
            if command.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(command.process.pid, signal.SIGKILL)
                command.process.wait()


@pytest.fixture
def delivery(
    stack: Any, spark: Any, keyspace: Callable[..., str], settings: SettingsFactory
) -> Iterator[Callable[..., Delivery]]:
    """Return delivery(case, tables, **pipeline keys), which makes a pipeline over them with nothing delivered
    yet.

    Without `tables` the case is loaded whole.
    """
    from tagmill.ledger import schema

    made: list[Delivery] = []

    def make(case: str = "gap-middle", tables: Sequence[str] = TABLES, **keys: Any) -> Delivery:
        configured = settings(keyspace(case, tables), case=case, **keys)
        schema.apply(configured)
        made.append(Delivery(stack, spark, configured, settings.file(next(iter(configured.pipelines)))))
        return made[-1]

    yield make
    for one in made:
        one.left_behind()
    if stack.clickhouse.running():
        faulty_clickhouse.reset(stack.clickhouse.port)


@dataclass(frozen=True)
class Undisturbed:
    """Rows, progress, watermarks and view after a run that nothing disturbed."""

    rows: list[tuple[Any, ...]]
    progress: list[tuple[Any, ...]]
    marks: list[tuple[Any, ...]]
    view: list[tuple[Any, ...]]

    def equals(self, delivery: Delivery) -> None:
        """Assert that a delivery has the same rows, each once, the same progress, watermarks and view."""
        assert delivery.rows() == self.rows
        assert delivery.progress() == self.progress
        assert delivery.marks() == self.marks
        assert delivery.view() == self.view


@pytest.fixture(scope="session")
def undisturbed(
    stack: Any, spark: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Undisturbed]]:
    """Return undisturbed(case), which delivers a case once without disturbance and remembers what the run
    left.
    """
    from local.fixtures import load_case
    from tagmill.delivery.tag_views import steps
    from tagmill.ledger import schema

    known: dict[str, Undisturbed] = {}
    factory = SettingsFactory(stack, tmp_path_factory.mktemp("undisturbed"))

    def deliver(case: str) -> Undisturbed:
        if case not in known:
            keyspace = create()
            load_case(stack.session, case, keyspace)
            configured = factory(keyspace, case=case)
            schema.apply(configured)
            one = Delivery(stack, spark, configured, factory.file(next(iter(configured.pipelines))))
            run, fence = one.sealed()
            for step in (steps.push, steps.close):
                step(configured, one.pipeline, run, fence, owner=dead_process())
            known[case] = Undisturbed(one.rows(), one.progress(), one.marks(), one.view())
        return known[case]

    with own_keyspaces(stack.session) as create:
        yield deliver
    shutil.rmtree(factory.folder, ignore_errors=True)
