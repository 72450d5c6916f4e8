"""The body of bin/run: start the stack, load schema and journal, run the DAG, and show a table of what
arrived.
"""

import fcntl
import json
import os
import shlex
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from local import products
from local.config import write_config
from local.cql import session
from local.dag_runner import DagRunner
from local.errors import explained
from local.guard import Guard
from local.journal import Generated, Journal, Orders, OrdersWithoutViews
from local.layout import StackLayout, resolve
from local.processes import alive
from local.stack import Stack
from local.verify import differences
from tagmill.config.settings import CONFIG_VARIABLE, Settings
from tagmill.delivery.tag_views.verification import tag_table
from tagmill.delivery.topics import destination_table
from tagmill.delivery.topics.status import COLUMNS as TOPIC_COLUMNS
from tagmill.domain.verdict import EXACTLY_ONCE
from tagmill.errors import LeaseTaken, TagmillError
from tagmill.ledger import schema
from tagmill.runs.privacy import make_folder
from tagmill.spark.session import FIRST_COMPILER

COLUMNS = ("tag", "in_view", "delivered", "held", "batches", "clickhouse_rows", "verdict")
BASE_TIMEOUT_SECONDS = 1200
PARTS = ("cassandra", "clickhouse", "kafka", "airflow")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
console = Console(
    markup=False,
    emoji=False,
    highlight=False,
    soft_wrap=True,
    width=None if sys.stdout.isatty() else 140,
)
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Outcome:
    """The demo's result per tag; for the recorded orders also that of the view that Tagmill built, and of the
    topic.
    """

    ok: bool
    seconds: float
    tags: list[dict[str, Any]]
    built: list[dict[str, Any]]
    topics: list[dict[str, Any]]

    def write(self, file: Path) -> None:
        """Write the result of the plugin's own view as JSON; its `ok` covers the built view and the topic,
        too.
        """
        file.parent.mkdir(parents=True, exist_ok=True)
        content = {"ok": self.ok, "seconds": self.seconds, "tags": self.tags}
        file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@app.command()
def run(
    once: Annotated[
        bool, typer.Option("--once", help="Stop by itself; exit code 0 only if all arrived, row for row.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write the result as JSON into this file.")] = None,
    events: Annotated[
        int | None, typer.Option(help="Generate so many tagged events instead of the recorded orders.")
    ] = None,
    home: Annotated[
        Path | None, typer.Option(help="Folder of the stack; default $TAGMILL_HOME, else build/local.")
    ] = None,
) -> None:
    """Deliver a journal of tagged events to ClickHouse on this machine, and show what arrived."""
    code = 1
    try:
        _stop_on_signals()
        outcome = demo(resolve(home), once, report, events)
        code = 0 if outcome.ok else 1
    except KeyboardInterrupt:  # Ctrl-C before the delivery was done
        print("stopped before it was done; nothing is left running", file=sys.stderr)
        code = 130
    except TagmillError as error:
        print(f"error: {error}", file=sys.stderr)
        code = error.exit_code
    except OSError as error:
        print(f"error: {explained(error)}", file=sys.stderr)
        code = 2
    raise typer.Exit(code)


def demo(layout: StackLayout, once: bool, report: Path | None, events: int | None) -> Outcome:
    """Start the stack, deliver, show the result and wait for Ctrl-C unless `once`; leave no process
    behind.
    """
    began = time.monotonic()
    journal: Journal = Orders() if events is None else Generated(events, layout.home)
    layout = layout if events is None else replace(layout, config_name=f"{journal.name}.toml")
    stack = Stack(layout)
    if report:
        remove_old(report)
    with alone(layout) as lock, _stopped_at_the_end(stack, lock):
        settings, journals = _prepared(stack, journal)
        dags = _dags(settings)
        runner = DagRunner(stack.airflow.api(), dags, console, stack.require_alive)
        console.print(f"Airflow delivers ({', '.join(runner.dags)}) …")
        runner.deliver(BASE_TIMEOUT_SECONDS + (events or 0) / 1000)
        outcome = _outcome(settings, journals, began)
        if report:
            outcome.write(report)
        _show(stack, settings, journal, outcome)
        if not once:
            with suppress(KeyboardInterrupt):
                console.print("\nEverything stays up. Ctrl-C stops it and leaves no process behind.")
                threading.Event().wait()
    return outcome


def _prepared(stack: Stack, journal: Journal) -> tuple[Settings, list[Journal]]:
    """Start the stack, apply the schema and load the journals while Airflow starts; return the settings and
    the journals.
    """
    layout = stack.layout
    write_config(layout, pipeline=journal.name, first_time_bucket=journal.first_time_bucket)
    os.environ[CONFIG_VARIABLE] = str(layout.config)
    os.environ["TAGMILL_CASSANDRA__PORT"] = str(layout.ports.cassandra)
    os.environ["TAGMILL_CLICKHOUSE__PORT"] = str(layout.ports.clickhouse)
    os.environ["TAGMILL_KAFKA__BOOTSTRAP_SERVERS"] = json.dumps([f"127.0.0.1:{layout.ports.kafka}"])
    settings = Settings.load()
    for server in (stack.cassandra, stack.kafka):
        # For so few rows, the second compiler costs more than it saves.
        server.flags = (*server.flags, FIRST_COMPILER)
    stack.airflow.stop()  # an Airflow that was left running may have another configuration
    stack.up(("cassandra", "clickhouse", *(["kafka"] if _topics(settings) else [])), console.print)
    with _starting_beside(stack, "airflow"):
        schema.apply(settings)
        destination_table.apply(settings)
        journals = [journal]
        if (
            OrdersWithoutViews.name in settings.pipelines
        ):  # an older configuration, or that of generated events, lacks it
            journals.append(OrdersWithoutViews())
        with session(layout.ports.cassandra) as connected:
            for one in journals:
                console.print(f"loading the journal {one.name} …")
                one.load(connected)
        for name in _topics(settings):
            console.print(f"filling the topic {name} …")
            products.load(settings)
    return settings, journals


def _dags(settings: Settings) -> list[str]:
    """Return the DAGs that deliver: one for all pipelines where they share a session."""
    if settings.airflow.shared_session:
        return ["deliver_all"]
    return [f"deliver_{name}" for name in (*settings.pipelines, *settings.streams)]


def _topics(settings: Settings) -> list[str]:
    """Return the demo's topic if it is configured: an older configuration, or that of generated events, lacks
    it.
    """
    return [products.NAME] if products.NAME in settings.topics else []


@contextmanager
def _starting_beside(stack: Stack, name: str) -> Iterator[None]:
    """Start a part while the body runs; abort that start if the body fails."""
    (part,) = stack.parts((name,))
    with ThreadPoolExecutor(1) as pool:
        start = pool.submit(stack.up, (name,), console.print)
        try:
            yield
            start.result()
        except BaseException:
            while not start.done():
                part.stop()
                time.sleep(0.2)
            raise


def _outcome(settings: Settings, journals: list[Journal], began: float) -> Outcome:
    ok, tables = True, []
    for journal in journals:
        tables.append([{name: row[name] for name in COLUMNS} for row in tag_table(settings, journal.name)])
        found = differences(settings, journal)
        for tag, lines in found.items():
            for line in lines:
                console.print(f"{journal.name}, {tag}: {line}", style="red")
        ok = ok and {row["tag"] for row in tables[-1]} == set(journal.tags) and not any(found.values())
    topics = [products.line(settings) for _ in _topics(settings)]
    for _ in topics:
        for line in products.differences(settings):
            console.print(f"{products.NAME}: {line}", style="red")
            ok = False
    ok = ok and all(str(row["verdict"]).startswith(EXACTLY_ONCE) for row in topics)
    return Outcome(
        ok, round(time.monotonic() - began, 1), tables[0], tables[1] if len(tables) > 1 else [], topics
    )


def _show(stack: Stack, settings: Settings, journal: Journal, outcome: Outcome) -> None:
    console.print(_table(outcome.tags, COLUMNS))
    if outcome.built:
        console.print(
            _table(outcome.built, COLUMNS, "the same journal without views: built by Tagmill, then delivered")
        )
    if outcome.topics:
        columns = [name for name in TOPIC_COLUMNS if name != "expired"]
        console.print(
            _table(
                outcome.topics, columns, "a plain topic, where some events come twice and some can't be read"
            )
        )
    verdict = (
        ("what arrived equals the journal, row for row", "green")
        if outcome.ok
        else ("what arrived differs from the journal", "red")
    )
    console.print(Text.assemble(verdict, f" ({outcome.seconds} s)\n"))
    user, password = stack.airflow.login()
    base = f"http://127.0.0.1:{stack.airflow.port}"
    docs = Path(settings.storage.root) / journal.name / "docs" / "index.html"
    query = (
        f"SELECT tags, count() AS events FROM {journal.name}_events GROUP BY tags ORDER BY tags "
        "FORMAT PrettyCompact"
    )
    console.print(f"Airflow    {base}/dags/{_dags(settings)[0]}   login {user} / {password}")
    console.print(
        f"Data Docs  {docs}\n           {base}/tagmill/docs/{journal.name}/index.html (behind the login)"
    )
    console.print(
        f"config     {stack.layout.config}   (export "
        f"{CONFIG_VARIABLE}={shlex.quote(str(stack.layout.config))})"
    )
    console.print(f'SQL        curl -s http://127.0.0.1:{stack.clickhouse.port}/ --data-binary "{query}"\n')
    console.print(_answer(stack.clickhouse.port, query))


def _table(rows: list[dict[str, Any]], columns: Sequence[str], title: str | None = None) -> Table:
    table = Table(*(name.replace("_", " ") for name in columns), title=title, title_justify="left")
    for row in rows:
        table.add_row(
            *(f"{row[name]:,}" if isinstance(row[name], int) else str(row[name]) for name in columns)
        )
    return table


def _answer(port: int, query: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", data=query.encode(), timeout=60) as answer:
        return str(answer.read().decode())


def remove_old(report: Path) -> None:
    """Remove an earlier run's report and check that the new one can be written, before anything starts."""
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text("{}")
    report.unlink()


def _tell(text: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        console.print(text)


@contextmanager
def _stopped_at_the_end(stack: Stack, lock: IO[str]) -> Iterator[None]:
    """Stop the stack when the body ends, by itself or by a signal.

    If this process is killed, the guard stops the stack, and keeps the lock until it is done.
    """
    stack.require(PARTS)
    guard = Guard(stack.parts(), lock.fileno())
    try:
        yield
    except Exception:
        stack.require_alive()  # if a server has ended, raise that instead of a client's error about it
        raise
    finally:
        _ignore_signals()
        _tell("stopping …")
        stack.down(tell=_tell)
        guard.release()


@contextmanager
def alone(layout: StackLayout) -> Iterator[IO[str]]:
    """Yield the home's lock file, locked for this demo; wait while the guard of a killed demo stops its
    stack.

    Raises:
        LeaseTaken: another demo uses the home.
    """
    make_folder(layout.home)
    with open(layout.home / "demo.lock", "a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            if alive(int(lock.read() or 0)):
                raise LeaseTaken(
                    f"another bin/run uses {layout.home}; it was left alone. Stop it with Ctrl-C, or "
                    "choose another folder "
                    "with TAGMILL_HOME and other ports with TAGMILL_LOCAL_CASSANDRA_PORT, "
                    "…_CLICKHOUSE_PORT, …_KAFKA_PORT, …_AIRFLOW_PORT"
                ) from None
            console.print("waiting until what a killed bin/run left is stopped …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield lock


def _stop_on_signals() -> None:
    def stop(number: int, _: Any) -> None:
        _ignore_signals()  # a second Ctrl-C must not interrupt the stop
        raise KeyboardInterrupt(number)

    for number in SIGNALS:
        signal.signal(number, stop)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
