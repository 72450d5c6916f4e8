"""Measure small deliveries, each a whole process: one pipeline, and many in one session.

    bench/many                           10,000 rows a pipeline, 20 pipelines, three rounds
    bench/many --pipelines 20 --rounds 1

Beside it the limit of one pipeline (bench.limit). All pipelines read the same view, each into a table of its own.
Starts its own stack under build/bench and stops it. Prints the table and writes build/bench/many.json.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.deliver import HOME, config_of, stack_up, written
from bench.measure import Measured, measure, medians

ONE, MANY, LIMIT = "one pipeline", "all pipelines", "limit of one"


def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--pipelines", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    stack = stack_up()
    results: list[dict[str, Any]] = []
    try:
        written(_config(args.rows, "write", 1), f"bench_{args.rows}", args.rows, "write")
        for round_ in range(1, args.rounds + 1):
            one = _config(args.rows, f"one{round_}", 1)
            results.append(_line(ONE, round_, _delivered(one, args.rows)))
            limit = [sys.executable, "-m", "bench.limit", str(one), "p0", str(HOME / "limit")]
            results.append(_line(LIMIT, round_, measure(limit)))
            shutil.rmtree(HOME / "limit", ignore_errors=True)
            many = _config(args.rows, f"many{round_}", args.pipelines)
            results.append(_line(MANY, round_, _delivered(many, args.rows * args.pipelines)))
        (HOME / "many.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
        print(
            "\n| what | median s | processor s | peak RSS MiB | ratio to one pipeline |\n|---|---|---|---|---|"
        )
        for what, seconds, peak, ratio in medians(results, ONE):
            used = sorted(run["processor_seconds"] for run in results if run["what"] == what)[
                args.rounds // 2
            ]
            print(f"| {what} | {seconds:.1f} | {used:.1f} | {peak:,.0f} | {ratio:.2f} |")
    finally:
        stack.down(("cassandra", "clickhouse"), lambda _: None)
        shutil.rmtree(HOME / "local", ignore_errors=True)


def _config(rows: int, name: str, pipelines: int) -> Path:
    names = [f"p{number}" for number in range(pipelines)]
    return config_of(f"bench_{rows}", name, names, class_archive=True)


def _delivered(config: Path, rows: int) -> Measured:
    """Deliver all pipelines of a configuration; raise RuntimeError unless all rows arrive, checked."""
    tagmill = [str(Path(sys.executable).with_name("tagmill")), "--config", str(config)]
    subprocess.run([*tagmill, "schema", "apply"], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
    measured = measure([*tagmill, "run", "deliver", "--all"])
    checked = subprocess.run([*tagmill, "check", "--json"], check=True, capture_output=True, text=True)  # noqa: S603
    arrived = sum(line["clickhouse_rows"] for line in json.loads(checked.stdout))
    if arrived != rows:
        raise RuntimeError(f"{arrived} rows arrived of {rows}")
    return measured


def _line(case: str, round_: int, run: Measured) -> dict[str, Any]:
    print(
        f"  {case}: {run.seconds:.1f} s, {run.processor_seconds:.1f} processor seconds, peak "
        f"{run.peak_mib:,.0f} MiB",
        flush=True,
    )
    return {
        "what": case,
        "round": round_,
        "seconds": run.seconds,
        "peak_mib": run.peak_mib,
        "processor_seconds": run.processor_seconds,
    }


if __name__ == "__main__":
    main()
