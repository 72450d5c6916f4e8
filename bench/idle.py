"""Measure a run of a DAG from its trigger to its end: without anything to do, or with new rows.

bin/run                            in another terminal, until it says that everything stays up
bench/idle [ROUNDS]                nothing to do
bench/idle --rows 5000 [ROUNDS]    so many new rows of one tag in each round, of 100 events a persistence id

Shown are Airflow's wall time, its parts, and how many JVMs were started.
"""

import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.util import uuid_from_time

from local import layout
from local.airflow_api import FINAL, AirflowApi
from local.cql import session
from local.processes import marked
from local.stack import Stack
from tagmill.config.settings import Settings
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import from_datetime

PIPELINE, TAG, EVENTS = "orders", "order", 100
DAG = f"deliver_{PIPELINE}"
# Seconds before now that the newest row has, so that a run reads it.
OLD = 30
PAYLOAD = {
    "event": b"x" * 200,
    "event_manifest": "",
    "ser_id": 9001,
    "ser_manifest": "OrderPlaced",
    "writer_uuid": "w",
}


def main(
    rounds: Annotated[int, typer.Argument(help="Runs, one after the other.")] = 3,
    rows: Annotated[int, typer.Option(help="New rows in each round.")] = 0,
) -> None:
    """Trigger the DAG `rounds` times, one run after the other, and print a table."""
    stack, walls = Stack(layout.resolve()), []
    airflow = stack.airflow
    api = airflow.api()
    api.pause(DAG, False)  # bin/run switches another DAG on
    while not set(api.runs(DAG).values()) <= FINAL:
        time.sleep(0.5)
    print(
        f"| round | {'new rows | ' if rows else ''}parts: s waiting + s at work | in all s | JVMs started |"
    )
    print(f"|---|---|---|---|{'---|' if rows else ''}")
    for round_ in range(1, rounds + 1):
        if rows:
            append(stack, rows)
        begun, started = time.monotonic(), set[int]()
        run = api.trigger(DAG)
        while (state := api.run_state(DAG, run)) not in FINAL:
            started |= jvms(airflow.mark)
            time.sleep(0.1)
        walls.append(time.monotonic() - begun)
        shown = ", ".join(parts(api, run))
        new = f"{rows} | " if rows else ""
        print(
            f"| {round_} | {new}{shown} ({state}) | {walls[-1]:.1f} | {len(started)} |",
            flush=True,
        )
    print(f"\nmedian {statistics.median(walls):.1f} s")


def jvms(mark: str) -> set[int]:
    """Return the pids of the JVMs that Airflow's tasks run now."""
    found = set[int]()
    for process in marked(mark):
        with suppress(psutil.NoSuchProcess):
            if process.name() == "java":
                found.add(process.pid)
    return found


def parts(api: AirflowApi, run: str) -> Iterator[str]:
    """Yield for each task that ran how long it waited since the one before it ended, and how long it worked."""
    before = moment(api.call("GET", f"/dags/{DAG}/dagRuns/{run}")["queued_at"])
    ran = [task for task in api.tasks(DAG, run) if task["start_date"] and task["state"] == "success"]
    for task in sorted(ran, key=lambda task: task["start_date"]):
        waited = (moment(task["start_date"]) - before).total_seconds()
        yield f"{task['task_id']} {waited:.1f} + {task['duration']:.1f}"
        before = moment(task["end_date"])


def moment(text: str) -> datetime:
    """Return the moment that Airflow writes as a text."""
    return datetime.fromisoformat(text)


def append(stack: Stack, rows: int) -> None:
    """Write events as an application would: to the journal, and with their numbers to the view."""
    keyspace = Settings.load(Path(stack.layout.config)).pipeline(PIPELINE).keyspace
    newest = datetime.now(tz=UTC) - timedelta(seconds=OLD)
    name = f"bench-{uuid.uuid4().hex[:8]}"
    events, numbered = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for row in range(rows):
        at = newest - timedelta(milliseconds=rows - row)
        offset, bucket = uuid_from_time(at.timestamp()), BucketSize.HOUR.start(from_datetime(at))
        persistence_id, number = f"{name}-{row // EVENTS}", row % EVENTS + 1
        events.append((persistence_id, 0, number, offset, str(bucket), {TAG}, *PAYLOAD.values()))
        numbered.append((TAG, bucket, offset, persistence_id, number, number, *PAYLOAD.values()))
    keys = "persistence_id, partition_nr, sequence_nr, timestamp, timebucket, tags"
    of_view = "tag_name, timebucket, timestamp, persistence_id, tag_pid_sequence_nr, sequence_nr"
    with session(stack.layout.ports.cassandra) as connected:
        for table, columns, values in (("messages", keys, events), ("tag_views", of_view, numbered)):
            names = [*columns.split(", "), *PAYLOAD]
            marks = ", ".join("?" for _ in names)
            insert = connected.prepare(
                f"INSERT INTO {keyspace}.{table} ({', '.join(names)}) VALUES ({marks})"
            )
            for success, outcome in execute_concurrent_with_args(connected, insert, values):
                assert success, outcome


if __name__ == "__main__":
    typer.run(main)
