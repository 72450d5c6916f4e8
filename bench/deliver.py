"""Measure a delivery from tag_views to verified in ClickHouse, next to (a) the limit and (b) the plugin's own
currentEventsByTag.

    bench/deliver                 everything: 1 and 4 million rows, three rounds (some 30 minutes on 2 cores)
    bench/deliver --rounds 1 --rows 1000000
    PEER=/path/to/peer.sh bench/deliver    with (b): a program on the real plugin that reads events by tag

Starts its own stack under build/bench and stops it. Prints the table and writes build/bench/deliver.json.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import data
from bench.measure import Measured, measure, medians

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / "build" / "bench"
PORTS = {"cassandra": 19342, "clickhouse": 18323}
# Cassandra's Java heap; its memtables get a quarter of it. With 1 GiB, a node under load mostly collects
# garbage and compacts.
HEAP = "4g"


def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", action="store_true", help="keep the stack's data for another call")
    args = parser.parse_args()
    stack = stack_up()
    results: list[dict[str, Any]] = []
    try:
        for rows in args.rows:
            written(_config(rows), f"bench_{rows}", rows, "write")
            for round_ in range(1, args.rounds + 1):
                results += [{"rows": rows, "round": round_, **line} for line in _round(rows, round_)]
                _print(results)
        (HOME / "deliver.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    finally:
        stack.down(("cassandra", "clickhouse"), lambda _: None)
        if not args.keep:
            shutil.rmtree(HOME / "local", ignore_errors=True)


def stack_up(ports: dict[str, int] = PORTS, parts: Sequence[str] = ("cassandra", "clickhouse")) -> Any:
    """Start the servers in the benchmarks' own folder, Cassandra with a heap fit for a node under load, and
    return their stack.
    """
    from local import layout
    from local.stack import Stack

    stack = Stack(layout.resolve(HOME / "local", {**ports, "airflow": None}))
    stack.cassandra.heap = HEAP
    stack.up(parts, print)
    return stack


def config_of(
    keyspace: str, name: str, pipelines: Sequence[str] = ("bench",), *, class_archive: bool = False
) -> Path:
    """Write the configuration of pipelines over a keyspace of bench.data and return its path; `name` names the
    ledger, and the table of one pipeline or the beginning of several tables' names.
    """
    file = HOME / f"{name}.toml"
    tags = json.dumps([f"tag-{t}" for t in range(data.TAGS)])
    file.write_text(
        f'[cassandra]\nport = {PORTS["cassandra"]}\nledger_keyspace = "tagmill_{name}"\n'
        f"[clickhouse]\nport = {PORTS['clickhouse']}\n"
        f"[spark]\ndriver_memory = "
        f'"{os.environ.get("BENCH_DRIVER_MEMORY", "1500m")}"\n'
        + (f'class_archive = "{ROOT}/build/spark-classes.jsa"\n' if class_archive else "")
        + f'[storage]\nroot = "{HOME}/data-{name}"\n'
        + "".join(
            f'[pipelines.{pipeline}]\nkeyspace = "{keyspace}"\nbucket_size = "Hour"\ntags = {tags}\n'
            f'first_time_bucket = "20260101T00:00"\n'
            f'destination = "{name if len(pipelines) == 1 else f"{name}_{pipeline}"}"\n'
            for pipeline in pipelines
        ),
        encoding="utf-8",
    )
    return file


def written(config: Path, keyspace: str, rows: int, by: str) -> None:
    """Write the data with function `by` of bench.data in a separate process, then wait 30 s for
    compaction.
    """
    code = (
        "import sys; from tagmill.config.settings import Settings; from bench.connector import "
        "session; from bench import data;"
        f"s = Settings.load(sys.argv[1]); data.{by}(s, session(s), sys.argv[2], int(sys.argv[3]))"
    )
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", code, str(config), keyspace, str(rows)], check=True, cwd=ROOT)  # noqa: S603
    print(f"{rows:,} rows written in {time.monotonic() - begun:.0f} s; waiting for compaction", flush=True)
    time.sleep(30)


def _config(rows: int, round_: int = 0) -> Path:
    """Write the configuration of a round, which has its own ledger and table, and return its path."""
    return config_of(f"bench_{rows}", f"b{rows}_{round_}")


def _round(rows: int, round_: int) -> list[dict[str, Any]]:
    config = _config(rows, round_)
    tagmill = [str(Path(sys.executable).with_name("tagmill")), "--config", str(config)]
    subprocess.run([*tagmill, "schema", "apply"], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    ours = measure([*tagmill, "--verbose", "run", "deliver", "-p", "bench"])
    checked = json.loads(
        subprocess.run([*tagmill, "check", "--json"], check=True, capture_output=True, text=True).stdout
    )  # noqa: S603
    arrived = sum(line["clickhouse_rows"] for line in checked)
    if arrived != rows:
        raise RuntimeError(f"{arrived} rows arrived of {rows}")
    limit = measure([sys.executable, "-m", "bench.limit", str(config), "bench", str(HOME / "limit")])
    shutil.rmtree(HOME / "limit", ignore_errors=True)
    lines = [_line("delivery", ours, rows), _line("(a) limit", limit, rows)]
    if peer := os.environ.get("PEER"):
        tags = [part for t in range(data.TAGS) for part in ("--tag", f"tag-{t}")]
        command = [
            peer,
            "read",
            "--keyspace",
            f"bench_{rows}",
            "--port",
            str(PORTS["cassandra"]),
            "--bucket",
            "Hour",
        ]
        lines.append(
            _line(
                "(b) plugin",
                measure([*command, "--first-bucket", "20260101T00:00", *tags, "--out", os.devnull]),
                rows,
            )
        )
    return lines


def _line(title: str, measured: Measured, rows: int) -> dict[str, Any]:
    print(
        f"  {title}: {measured.seconds:.1f} s, {rows / measured.seconds:,.0f} rows/s, peak "
        f"{measured.peak_mib:,.0f} MiB",
        flush=True,
    )
    return {
        "what": title,
        "seconds": measured.seconds,
        "rows_per_second": rows / measured.seconds,
        "peak_mib": measured.peak_mib,
        "output": measured.output[-4000:],
    }


def _print(results: list[dict[str, Any]]) -> None:
    print("\n| rows | what | median s | rows/s | peak RSS MiB | ratio to (a) |\n|---|---|---|---|---|---|")
    for rows in sorted({r["rows"] for r in results}):
        here = [r for r in results if r["rows"] == rows]
        for what, seconds, peak, ratio in medians(here, "(a) limit"):
            print(
                f"| {rows:,} | {what} | {seconds:.1f} | {rows / seconds:,.0f} | {peak:,.0f} | {ratio:.2f} |"
            )


if __name__ == "__main__":
    main()
