"""A build of tag views, beside the connector writing the same rows ready-made in one run, as it comes and in a build's batches.

    bench/views                          everything: 500,000 and 2 million tag rows, three rounds, the history, the long persistence_id
    bench/views --rows 100000 --rounds 1 --history 0 --long 0

Each measurement is a whole process, from its start to its end, Spark's session included. Starts its own stack under build/bench
and stops it. Prints tables and writes build/bench/views.json.

--history: an incremental build, over a journal so many times longer than another with the same persistence ids and the same new events.
--long: one persistence_id of so many events beside 5000 of 20.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench import data
from bench.deliver import HOME, ROOT, stack_up
from bench.measure import Measured, measure, medians

PORTS = {"cassandra": 19352, "clickhouse": 18333}
# the connector as it comes, and in the batches and with the concurrency of a build
READY = {"ready-made": "plain", "ready-made, in a build's batches": "tuned"}
# of the journals of --history: events of each persistence_id before, and new ones
BEFORE, NEW = 40, 10


def main() -> None:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[500_000, 2_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--history", type=int, default=10, help="0: not measured")
    parser.add_argument("--long", type=int, default=1_000_000, help="0: not measured")
    args = parser.parse_args()
    stack = stack_up(PORTS)
    results: list[dict[str, Any]] = []
    try:
        for rows in args.rows:
            results += _whole(rows, args.rounds)
        if args.history:
            results += _history(args.history, args.rounds)
        if args.long:
            results += _long(args.long)
        (HOME / "views.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    finally:
        stack.down(("cassandra", "clickhouse"), lambda _: None)
        shutil.rmtree(HOME / "local", ignore_errors=True)
    _print(results)


def _whole(rows: int, rounds: int) -> list[dict[str, Any]]:
    """A journal without views, built whole, and the same rows ready-made; which comes first alternates."""
    name = f"whole_{rows}"
    last = -(-rows * data.UNTAGGED_EVERY // (2 * data.PERSISTENCE_IDS * (data.UNTAGGED_EVERY - 1)))
    rows = data.rows_of(data.PERSISTENCE_IDS, 1, last)
    _prepare(name, f"{data.PERSISTENCE_IDS} 1 {last} {last}")
    ready = HOME / "ready"
    results = []
    # the first build gives the rows that are then ready-made; it isn't counted: Cassandra's own code is cold
    _built(name, rows)
    _job("ready", name, str(ready))
    for round_ in range(1, rounds + 1):
        for what in ("build", *READY)[:: 1 if round_ % 2 else -1]:
            if what == "build":
                _job("empty", name)
                measured = _built(name, rows)
            else:
                _job("create", name, f"{name}_ready")
                write = ["write", str(_config(name)), f"{name}_ready", str(ready), READY[what]]
                measured = measure([sys.executable, "-m", "bench.views_data", *write])
            results.append(_line(f"{rows:,} rows", what, round_, rows, measured))
    _job("drop", name, name, f"{name}_ready")
    shutil.rmtree(ready)
    return results


def _history(longer: int, rounds: int) -> list[dict[str, Any]]:
    """New events on a short and on a longer history."""
    results = []
    lengths = {f"history {BEFORE}": BEFORE, f"history {BEFORE * longer}": BEFORE * longer}
    of = BEFORE * longer + NEW * rounds
    for before in lengths.values():
        _prepare(f"history_{before}", f"{data.PERSISTENCE_IDS} 1 {before} {of}")
        _built(f"history_{before}", data.rows_of(data.PERSISTENCE_IDS, 1, before))
    for round_ in range(1, rounds + 1):
        for what, before in list(lengths.items())[:: 1 if round_ % 2 else -1]:
            first, last = before + NEW * (round_ - 1) + 1, before + NEW * round_
            _job("append", f"history_{before}", f"{data.PERSISTENCE_IDS} {first} {last} {of}")
            rows = data.rows_of(data.PERSISTENCE_IDS, first, last)
            results.append(_line("new events", what, round_, rows, _built(f"history_{before}", rows)))
    for before in lengths.values():
        _job("drop", f"history_{before}", f"history_{before}")
    return results


def _long(events: int) -> list[dict[str, Any]]:
    """One persistence_id of many events beside small ones."""
    _prepare("long", f"{data.PERSISTENCE_IDS} 1 20 20", f"1 1 {events} {events} long-")
    rows = data.rows_of(data.PERSISTENCE_IDS, 1, 20) + data.rows_of(1, 1, events)
    result = _line("one long", f"{events:,} events of one", 1, rows, _built("long", rows))
    _job("drop", "long", "long")
    return [result]


def _config(name: str) -> Path:
    """One pipeline, whose journal, ledger and table have its name."""
    file = HOME / f"{name}.toml"
    file.write_text(
        f'[cassandra]\nport = {PORTS["cassandra"]}\nledger_keyspace = "tagmill_{name}"\n'
        f"[clickhouse]\nport = {PORTS['clickhouse']}\n"
        f'[spark]\njars = "{ROOT}/build/jars/spark"\ndriver_memory = "1500m"\n'
        f'[storage]\nroot = "{HOME}/data-{name}"\n'
        f'[pipelines.bench]\nkeyspace = "{name}"\nbucket_size = "Hour"\ntags = ["tag-0"]\n'
        f'first_time_bucket = "20260101T00:00"\ndestination = "{name}"\nviews = "tagmill"\n',
        encoding="utf-8",
    )
    return file


def _tagmill(name: str) -> list[str]:
    return [str(Path(sys.executable).with_name("tagmill")), "--config", str(_config(name))]


def _prepare(name: str, *parts: str) -> None:
    """A journal without views."""
    _job("create", name, name)
    _job("append", name, *parts)
    subprocess.run([*_tagmill(name), "schema", "apply"], check=True, stdout=subprocess.DEVNULL)  # noqa: S603


def _built(name: str, rows: int) -> Measured:
    """A build of so many rows."""
    measured = measure([*_tagmill(name), "views", "build", "-p", "bench", "--json"])
    found = json.loads(next(line for line in measured.output.splitlines() if line.startswith("{")))
    if (found["rows"], found["waiting"]) != (rows, 0):
        raise RuntimeError(f"{found['rows']} rows were built, {rows} were expected: {found}")
    return measured


def _job(what: str, name: str, *arguments: str) -> None:
    """A step that isn't measured, in a process of its own."""
    subprocess.run([sys.executable, "-m", "bench.views_data", what, str(_config(name)), *arguments], check=True, cwd=ROOT)  # noqa: S603


def _line(case: str, what: str, round_: int, rows: int, measured: Measured) -> dict[str, Any]:
    print(
        f"  {case}, {what}, round {round_}: {measured.seconds:.1f} s, {rows / measured.seconds:,.0f} rows/s, "
        f"peak {measured.peak_mib:,.0f} MiB",
        flush=True,
    )
    return {
        "case": case, "what": what, "round": round_, "rows": rows, "seconds": measured.seconds, "peak_mib": measured.peak_mib,
    }  # fmt: skip


def _print(results: list[dict[str, Any]]) -> None:
    """Medians; the ratio is that of the seconds to the case's first line, round by round."""
    print("\n| case | what | median s | rows/s | peak RSS MiB | ratio of the seconds |\n|---|---|---|---|---|---|")
    for case in dict.fromkeys(line["case"] for line in results):
        here = [line for line in results if line["case"] == case]
        here.sort(key=lambda line: (line["what"] == "build", len(line["what"])))
        for what, seconds, peak, ratio in medians(here, here[0]["what"]):
            print(f"| {case} | {what} | {seconds:.1f} | {here[0]['rows'] / seconds:,.0f} | {peak:,.0f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
