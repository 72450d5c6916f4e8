"""Measure builds, rebuilds and migrations of tag views, next to the connector writing the same rows
ready-made.

    bench/views    everything: 500,000 and 2 million tag rows, three rounds, the history, the long persistence_id
    bench/views --build 100000 --rebuild --repair --migrate --rounds 1 --history 0 --long 0
    PEER=/path/to/peer.sh bench/views …    rebuilds and migrations also with the plugin's own, up to --plugin rows

The connector writes with its default settings, and in our batches. Each measurement is a whole process, from
its start to its end, including Spark's session. Starts its own stack under build/bench and stops it. Prints
tables and writes build/bench/views.json.

--repair: a rebuild of a view that lacks one row in a hundred. The plugin has to empty the view first, or the
    missing rows stay missing.
--history: an incremental build over a journal that is the given number of times longer than another with the
    same persistence ids and the same new events.
--long: one persistence_id with the given number of events next to 5000 with 20 events each.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import data
from bench.deliver import HOME, ROOT, stack_up
from bench.measure import Measured, measure, medians
from local import class_archive

PORTS = {"cassandra": 19352, "clickhouse": 18333}
# The connector with its default settings, and with the batches and the concurrency of a build.
READY = {"ready-made": "plain", "ready-made, in our batches": "tuned"}
PLUGIN = "the plugin's"
# Events of each persistence_id in the journals of --history: those before the first round, and new ones per
# round.
BEFORE, NEW = 40, 10


def main() -> None:
    """Run the measurements that the options ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for operation in OPERATIONS:
        parser.add_argument(
            f"--{operation.name}", type=int, nargs="*", default=[500_000, 2_000_000], metavar="ROWS"
        )
    parser.add_argument("--plugin", type=int, default=500_000, metavar="ROWS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--history", type=int, default=10, help="0: not measured")
    parser.add_argument("--long", type=int, default=1_000_000, help="0: not measured")
    args = parser.parse_args()
    stack = stack_up(PORTS)
    results: list[dict[str, Any]] = []
    try:
        for operation in OPERATIONS:
            for rows in getattr(args, operation.name):
                results += _whole(
                    operation, rows, args.rounds, plugin="PEER" in os.environ and rows <= args.plugin
                )
        if args.history:
            results += _history(args.history, args.rounds)
        if args.long:
            results += _long(args.long)
        (HOME / "views.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    finally:
        stack.down(("cassandra", "clickhouse"), lambda _: None)
        shutil.rmtree(HOME / "local", ignore_errors=True)
    _print(results)


def _whole(operation: "Operation", rows: int, rounds: int, *, plugin: bool) -> list[dict[str, Any]]:
    """Measure an operation on a whole view, the same rows written ready-made, and the plugin's operation, in
    alternating order.
    """
    name = f"{operation.name}_{rows}"
    last = -(-rows * data.UNTAGGED_EVERY // (2 * data.PERSISTENCE_IDS * (data.UNTAGGED_EVERY - 1)))
    rows = data.rows_of(data.PERSISTENCE_IDS, 1, last)
    prepare(name, f"{data.PERSISTENCE_IDS} 1 {last} {last}", views=operation.views, append=operation.append)
    ready = HOME / "ready"
    results = []
    # The first run produces the rows to write ready-made. It isn't counted, since Cassandra's own code is
    # still cold.
    operation.run(name, rows)
    job("ready", name, str(ready))
    for round_ in range(1, rounds + 1):
        for what in (operation.name, *READY, *([PLUGIN] if plugin and operation.plugin else []))[
            :: 1 if round_ % 2 else -1
        ]:
            if what == operation.name:
                job(operation.reset, name)
                measured = operation.run(name, rows)
            elif what in READY:
                job("create", name, f"{name}_ready")
                write = ["write", str(config(name)), f"{name}_ready", str(ready), READY[what]]
                measured = measure([sys.executable, "-m", "bench.views_data", *write])
            else:
                job(operation.reset, name)
                measured = _plugin(name, *operation.plugin)
            # The number of rows that the plugin wrote is reported, not asserted.
            came = count_view(name) if what == PLUGIN else rows
            results.append(_line(f"{operation.name}, {rows:,} rows", what, round_, came, measured))
    job("drop", name, name, f"{name}_ready")
    shutil.rmtree(ready)
    return results


def _rebuilt(name: str, rows: int) -> Measured:
    """Measure a rebuild of a view that lacks every row."""
    return _added(name, rows, lambda found: found, "rebuild")


def _repaired(name: str, rows: int) -> Measured:
    """Measure a rebuild of a view that lacks some rows."""
    return _added(name, rows - count_view(name), lambda found: found, "rebuild")


def _migrated(name: str, rows: int) -> Measured:
    """Measure a migration of tags in tag1 to tag3."""
    return _added(name, rows, lambda found: found["tags"], "migrate", "--step", "tags")


def _added(name: str, rows: int, view: Callable[[Any], Any], *command: str) -> Measured:
    """Measure a command on all persistence ids; raise RuntimeError unless it adds `rows` rows.

    `view` picks the part of the command's report that has the rows per tag.
    """
    measured = measure([*tagmill(name), "views", *command, "-p", "bench", "--offline", "--yes", "--json"])
    found = view(json.loads(next(line for line in measured.output.splitlines() if line.startswith("{"))))
    if (added := sum(tag["added"] for tag in found["tags"])) != rows:
        raise RuntimeError(f"{added} rows came, {rows} were expected: {found}")
    return measured


def _plugin(name: str, *command: str) -> Measured:
    """Measure the plugin's Reconciliation or its EventsByTagMigration, either of which starts from an empty
    view.
    """
    where = ["--keyspace", name, "--port", str(PORTS["cassandra"]), "--bucket", "Hour", "--timeout", "3600"]
    return measure([os.environ["PEER"], *command, *where], timeout=3600)


def count_view(name: str) -> int:
    """Count the rows of the view."""
    count = [sys.executable, "-m", "bench.views_data", "count", str(config(name))]
    return int(
        subprocess.run(count, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    )  # noqa: S603


def _history(longer: int, rounds: int) -> list[dict[str, Any]]:
    """Measure builds of new events on a short and on a longer history."""
    results = []
    lengths = {f"history {BEFORE}": BEFORE, f"history {BEFORE * longer}": BEFORE * longer}
    of = BEFORE * longer + NEW * rounds
    for before in lengths.values():
        prepare(f"history_{before}", f"{data.PERSISTENCE_IDS} 1 {before} {of}")
        built(f"history_{before}", data.rows_of(data.PERSISTENCE_IDS, 1, before))
    for round_ in range(1, rounds + 1):
        for what, before in list(lengths.items())[:: 1 if round_ % 2 else -1]:
            first, last = before + NEW * (round_ - 1) + 1, before + NEW * round_
            job("append", f"history_{before}", f"{data.PERSISTENCE_IDS} {first} {last} {of}")
            rows = data.rows_of(data.PERSISTENCE_IDS, first, last)
            results.append(_line("new events", what, round_, rows, built(f"history_{before}", rows)))
    for before in lengths.values():
        job("drop", f"history_{before}", f"history_{before}")
    return results


def _long(events: int) -> list[dict[str, Any]]:
    """Measure a build and a rebuild of one persistence_id of many events among small ones."""
    rows = data.rows_of(data.PERSISTENCE_IDS, 1, 20) + data.rows_of(1, 1, events)
    results = []
    for operation in OPERATIONS[:2]:
        prepare(
            "long", f"{data.PERSISTENCE_IDS} 1 20 20", f"1 1 {events} {events} long-", views=operation.views
        )
        results.append(
            _line(
                "one long",
                f"{operation.name}, {events:,} events of one",
                1,
                rows,
                operation.run("long", rows),
            )
        )
        job("drop", "long", "long")
    return results


def config(name: str) -> Path:
    """Return the path of the configuration of a journal."""
    return HOME / f"{name}.toml"


def tagmill(name: str) -> list[str]:
    """Return how a command of Tagmill begins for a journal."""
    return [str(Path(sys.executable).with_name("tagmill")), "--config", str(config(name))]


def prepare(name: str, *parts: str, views: str = "tagmill", append: str = "append") -> None:
    """Create a journal without views from `parts`, and a pipeline; journal, ledger and table are named
    `name`.
    """
    config(name).write_text(
        f'[cassandra]\nport = {PORTS["cassandra"]}\nledger_keyspace = "tagmill_{name}"\n'
        f"[clickhouse]\nport = {PORTS['clickhouse']}\n"
        f"[spark]\nclass_archive = "
        f'"{class_archive.FILE}"\ndriver_memory = "1500m"\n'
        f'[storage]\nroot = "{HOME}/data-{name}"\n'
        f'[pipelines.bench]\nkeyspace = "{name}"\nbucket_size = "Hour"\ntags = ["tag-0"]\n'
        f'first_time_bucket = "20260101T00:00"\ndestination = "{name}"\nviews = "{views}"\n',
        encoding="utf-8",
    )
    job("create", name, name)
    job(append, name, *parts)
    subprocess.run([*tagmill(name), "schema", "apply"], check=True, stdout=subprocess.DEVNULL)  # noqa: S603


def built(name: str, rows: int) -> Measured:
    """Measure a build; raise RuntimeError unless it builds `rows` rows."""
    measured = measure([*tagmill(name), "views", "build", "-p", "bench", "--json"])
    found = json.loads(next(line for line in measured.output.splitlines() if line.startswith("{")))
    if (found["rows"], found["waiting"]) != (rows, 0):
        raise RuntimeError(f"{found['rows']} rows were built, {rows} were expected: {found}")
    return measured


def job(command: str, name: str, *arguments: str) -> None:
    """Run a step that isn't measured, in a separate process."""
    subprocess.run(
        [sys.executable, "-m", "bench.views_data", command, str(config(name)), *arguments],
        check=True,
        cwd=ROOT,
    )  # noqa: S603


def _line(case: str, variant: str, round_: int, rows: int, measured: Measured) -> dict[str, Any]:
    print(
        f"  {case}, {variant}, round {round_}: {measured.seconds:.1f} s, {rows / measured.seconds:,.0f} rows/s, "
        f"peak {measured.peak_mib:,.0f} MiB",
        flush=True,
    )
    return {
        "case": case,
        "what": variant,
        "round": round_,
        "rows": rows,
        "seconds": measured.seconds,
        "peak_mib": measured.peak_mib,
    }


def _print(results: list[dict[str, Any]]) -> None:
    """Print medians; the ratio is that of the seconds to the case's first line, round by round."""
    print(
        "\n| case | what | median s | rows/s | peak RSS MiB | ratio of the seconds "
        "|\n|---|---|---|---|---|---|"
    )
    for case in dict.fromkeys(line["case"] for line in results):
        here = [line for line in results if line["case"] == case]
        here.sort(key=lambda line: (line["what"] not in READY, len(line["what"])))
        rows = {line["what"]: line["rows"] for line in here}
        for what, seconds, peak, ratio in medians(here, here[0]["what"]):
            print(
                f"| {case} | {what} | {seconds:.1f} | {rows[what] / seconds:,.0f} | {peak:,.0f} | "
                f"{ratio:.2f} |"
            )


@dataclass(frozen=True)
class Operation:
    """An operation that makes a whole view.

    `run` measures it, `views` says who keeps the view (as the pipeline's setting), `append` and `reset` are
    steps of bench.views_data that prepare the journal and the view, and `plugin` is the plugin's command for
    the same.
    """

    name: str
    run: Callable[[str, int], Measured]
    views: str
    append: str
    reset: str
    plugin: tuple[str, ...] = ()


OPERATIONS = (
    Operation("build", built, "tagmill", "append", "empty"),
    Operation("rebuild", _rebuilt, "application", "append", "lose", ("rebuild", "--truncate")),
    Operation("repair", _repaired, "application", "append", "damage", ("rebuild", "--truncate")),
    Operation("migrate", _migrated, "application", "append_old", "lose", ("migrate",)),
)

if __name__ == "__main__":
    main()
