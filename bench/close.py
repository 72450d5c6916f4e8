"""Measure what a run costs by persistence id and by tag, and what looks cost behind a long history.

    bench/close                            100,000 ids, 200 tags, 20,000 runs
    bench/close --only tags --tags 50

ids: progress of so many persistence ids, written and read back as `close` does it. tags: plan, seal, push, close and
the next plan of a run with one row a tag, beside those of a run with one tag, in a process that is up. history: status
and check of closed runs whose rows ClickHouse no longer has, each a whole process, without and with a declared
retention. The history's rows in the ledger and manifests are copies of one real run.

Starts its own stack under build/bench and stops it. Prints a table and writes build/bench/close.json.
"""

import argparse
import hashlib
import json
import logging
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import psutil
import pyarrow as pa
import structlog

from bench.deliver import HOME, PORTS, stack_up
from bench.measure import measure
from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.delivery.tag_views import steps
from tagmill.domain.timeuuid import GREGORIAN_TICKS
from tagmill.ledger.batch_times import BatchTimes, Times
from tagmill.ledger.progress_rows import SCHEMA
from tagmill.ledger.runs import Ledger
from tagmill.ledger.schema import apply, create_journal

PIPELINE, OWNER, BATCH = "p", "bench", 50_000
HOUR_MS = 3_600_000
Line: TypeAlias = dict[str, Any]


def main() -> None:
    """Measure the parts and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ids", type=int, default=100_000)
    parser.add_argument("--tags", type=int, default=200)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("ids", "tags", "history"), nargs="+")
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    stack, lines = stack_up(), list[Line]()
    parts: dict[str, Callable[[], Iterable[Line]]] = {
        "ids": lambda: _ids(args.ids, args.rounds),
        "tags": lambda: _tags(args.tags, args.rounds),
        "history": lambda: _history(args.runs),
    }
    try:
        print("| what | s | processor s | Cassandra's processor s |\n|---|---|---|---|", flush=True)
        for name in args.only or parts:
            for line in parts[name]():
                lines.append(line)
                print(
                    f"| {line['what']} | {line['seconds']:.2f} | {line['processor']:.2f} | "
                    f"{line.get('cassandra', 0):.2f} |",
                    flush=True,
                )
        (HOME / "close.json").write_text(json.dumps(lines, indent=1), encoding="utf-8")
    finally:
        stack.down(("cassandra", "clickhouse"), lambda _: None)
        shutil.rmtree(HOME / "local", ignore_errors=True)


def _ids(count: int, rounds: int) -> Iterator[Line]:
    settings = _settings("ids", 1)
    with Ledger(settings.cassandra) as ledger:
        for round_ in range(1, rounds + 1):
            with _measured(f"progress of {count:,} ids, round {round_}") as line:
                written = ledger.delivered.write_progress_rows(PIPELINE, round_, _progress(count, round_))
            if written != count:
                raise RuntimeError(f"{written} rows of {count} written")
            yield line


def _progress(count: int, number: int) -> Iterator[pa.Table]:
    for begin in range(0, count, BATCH):
        ids = range(begin, min(count, begin + BATCH))
        columns = [
            [f"tag-{one % 4}" for one in ids],
            [f"p-{one:09d}" for one in ids],
            [number] * len(ids),
            [number] * len(ids),
            [str(_time_uuid(one)) for one in ids],
            [""] * len(ids),
        ]
        yield pa.table(columns, SCHEMA)


def _tags(count: int, rounds: int) -> Iterator[Line]:
    for round_ in range(1, rounds + 1):
        for tags in (1, count):
            settings = _settings(f"tags{tags}_{round_}", tags)
            _deliver_new(settings, tags)  # connects, and imports what a run needs
            yield from _deliver_new(settings, tags, f"{tags} tags, round {round_}: ")


def _deliver_new(settings: Settings, tags: int, title: str = "warm-up") -> list[Line]:
    """Deliver what is new of a pipeline, one row a tag, and return a line for each step."""
    _add_rows(settings, tags)
    lines, work = list[Line](), dict[str, Any]()

    def step(name: str, do: Callable[[], Any]) -> Any:
        with _measured(f"{title}{name}") as line:
            done = do()
        lines.append(line)
        return done

    planned = step("plan", lambda: steps.plan(settings, PIPELINE, owner=OWNER))
    work = {"run": planned["run"], "fence": planned["fence"], "owner": OWNER}
    step("seal", lambda: steps.seal(settings, PIPELINE, **work, spark=_no_spark))
    step("push", lambda: steps.push(settings, PIPELINE, **work))
    closed = step("close", lambda: steps.close(settings, PIPELINE, **work))
    step("the next plan", lambda: steps.plan(settings, PIPELINE, owner=OWNER))
    delivered = sum(line["delivered"] for line in closed["tags"])
    if delivered != tags:
        raise RuntimeError(f"{delivered} rows delivered of {tags}")
    return lines


def _no_spark() -> Any:
    raise RuntimeError("a run of few rows started Spark")


def _add_rows(settings: Settings, tags: int) -> None:
    """Write a row of now to each tag, and wait until a run may read it."""
    journal, now = settings.pipeline(PIPELINE), datetime.now(UTC)
    milliseconds = int(now.timestamp() * 1000)
    with Cassandra(settings.cassandra) as cassandra:
        create_journal(cassandra, journal.keyspace)
        cassandra.write_many(
            f"INSERT INTO {journal.keyspace}.tag_views (tag_name, timebucket, timestamp, persistence_id, "
            "tag_pid_sequence_nr, sequence_nr, event, event_manifest, ser_id, ser_manifest, writer_uuid)"
            " VALUES (?, ?, ?, ?, 1, 1, ?, '', 20, '', '5b11713a-0000-4000-8000-00000000000b')",
            (
                (
                    f"tag-{tag}",
                    milliseconds // HOUR_MS * HOUR_MS,
                    _time_uuid(tag, milliseconds),
                    f"p-{milliseconds}-{tag}",
                    b"x" * 200,
                )
                for tag in range(tags)
            ),
        )
    time.sleep(journal.eventual_consistency_delay_seconds + 1)


def _time_uuid(node: int, milliseconds: int = 1_767_225_600_000) -> uuid.UUID:
    ticks = milliseconds * 10_000 + GREGORIAN_TICKS
    return uuid.UUID(fields=(ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 | 0x1000, 0x80, 0, node))


def _history(runs: int) -> Iterator[Line]:
    settings = _settings("history", 1)
    _deliver_new(settings, 1)
    _copy_run(settings, runs)
    config = HOME / "close_history.toml"
    retained = HOME / "close_history_retained.toml"
    retained.write_text(
        config.read_text(encoding="utf-8") + "destination_retention_days = 1\n", encoding="utf-8"
    )
    # In this order, since status repeats what the last check found.
    looks = (("not declared", config, ("status", "check")), ("declared", retained, ("check", "status")))
    for title, file, commands in looks:
        for command in commands:
            tagmill = [str(Path(sys.executable).with_name("tagmill")), "--config", str(file)]
            # Exit status 3 is right where nothing is declared: rows are missing.
            run = measure(
                ["sh", "-c", '"$@" 2>/dev/null || test $? -eq 3', "sh", *tagmill, command, "--json"]
            )
            wrong = json.loads(run.output)[0]["verdict"].startswith("differs")
            if wrong != (file is config):
                raise RuntimeError(run.output)
            yield {
                "what": f"{command} of {runs:,} runs whose rows are gone, retention {title}",
                "seconds": run.seconds,
                "processor": run.processor_seconds,
            }


def _copy_run(settings: Settings, runs: int) -> None:
    """Copy the first run, as one of a batch that ClickHouse does not have, past any retention of a day."""
    with Ledger(settings.cassandra) as ledger:
        cassandra, table, root = ledger.cassandra, f"{ledger.keyspace}.runs", Path(settings.storage.root)
        last = ledger.last_run(PIPELINE)
        first = cassandra.execute(f"SELECT * FROM {table} WHERE pipeline = ? AND run = ?", PIPELINE, last)[0]
        manifest = json.loads((root / first.manifest_file).read_text(encoding="utf-8"))
        names = first._fields

        def copies() -> Iterator[tuple[Any, ...]]:
            for run in range(last + 1, runs + 1):
                batch = uuid.uuid5(uuid.NAMESPACE_OID, str(run))
                sealed = {**manifest["batches"][0], "batch_id": str(batch)}
                content = json.dumps({**manifest, "run": run, "batches": [sealed]}).encode()
                file = root / PIPELINE / f"run-{run:08d}" / "copy" / "manifest.json"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
                changed = first._asdict() | {
                    "run": run,
                    "batch_id": batch,
                    "manifest_file": str(file.relative_to(root)),
                    "manifest_sha256": hashlib.sha256(content).hexdigest(),
                }
                yield tuple(changed[name] for name in names)

        cassandra.write_many(
            f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})", copies()
        )
        times = BatchTimes(cassandra, settings.cassandra.ledger_keyspace, PIPELINE)
        for run in range(last + 1, runs + 1):
            times.write(run, [(first.batch_no, Times(0, HOUR_MS))])
        cassandra.execute(
            f"UPDATE {ledger.keyspace}.pipelines SET last_run = ? WHERE pipeline = ?", runs, PIPELINE
        )
        mark = ledger.delivered.watermarks(PIPELINE)["tag-0"]
        copied = runs - last
        ledger.delivered.write_watermark(
            PIPELINE,
            replace(mark, run=runs, delivered=mark.delivered + copied, batches=mark.batches + copied),
        )


def _settings(name: str, tags: int) -> Settings:
    """Write the configuration of a pipeline with a journal, a ledger and a table of its own; create them."""
    shutil.rmtree(HOME / f"data-close-{name}", ignore_errors=True)
    first = datetime.now(UTC) - timedelta(hours=2)
    file = HOME / f"close_{name}.toml"
    file.write_text(
        f'[cassandra]\nport = {PORTS["cassandra"]}\nledger_keyspace = "tagmill_close_{name}"\n'
        f"[clickhouse]\nport = {PORTS['clickhouse']}\n"
        f'[spark]\n[storage]\nroot = "{HOME}/data-close-{name}"\n'
        f'[pipelines.{PIPELINE}]\nkeyspace = "close_{name}"\nbucket_size = "Hour"\n'
        f"tags = {json.dumps([f'tag-{tag}' for tag in range(tags)])}\n"
        f'first_time_bucket = "{first:%Y%m%dT%H}:00"\ndestination = "close_{name}"\n',
        encoding="utf-8",
    )
    settings = Settings.load(file)
    with Cassandra(settings.cassandra) as cassandra:
        create_journal(cassandra, settings.pipeline(PIPELINE).keyspace)
    apply(settings)
    return settings


@contextmanager
def _measured(name: str) -> Iterator[Line]:
    """Measure wall seconds, and the processor seconds of this process and of Cassandra."""
    here, server, line = psutil.Process(), _cassandra(), Line(what=name)
    begun, used, served = time.monotonic(), sum(here.cpu_times()[:2]), sum(server.cpu_times()[:2])
    yield line
    line |= {
        "seconds": time.monotonic() - begun,
        "processor": sum(here.cpu_times()[:2]) - used,
        "cassandra": sum(server.cpu_times()[:2]) - served,
    }


@cache
def _cassandra() -> psutil.Process:
    """Return the process of the stack's Cassandra."""
    of_stack = str(HOME / "local")
    return next(
        process
        for process in psutil.process_iter(["cmdline"])
        if "java" in (process.info["cmdline"] or [""])[0] and of_stack in " ".join(process.info["cmdline"])
    )


if __name__ == "__main__":
    main()
