"""Measure builds of few events, as they are done by default and with Spark (`small_run_rows` and `small_job_rows` 0).

    bench/small    1,000, 5,000 and 20,000 persistence ids of three new events each, three rounds
    bench/small --ids 1000 --rounds 1

Each measurement is a whole process of the command line: the first build of a journal, a build of three new events of each
persistence id, and one of nothing new. Starts its own stack under build/bench and stops it. Prints a table and writes
build/bench/small.json.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from typing import Any

from bench import data
from bench.deliver import HOME, stack_up
from bench.measure import Measured, medians
from bench.views import PORTS, built, config, job, prepare

# Tag rows of a persistence_id are some of these events' at each build.
EVENTS = 3
HERE, SPARK = "by default", "with Spark"
CASES = ("first build", "new events", "nothing new")


def main() -> None:
    """Run the measurements that the options ask for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ids", type=int, nargs="+", default=[1000, 5000, 20_000])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    stack = stack_up(PORTS)
    results: list[dict[str, Any]] = []
    try:
        for ids in args.ids:
            for round_ in range(1, args.rounds + 1):
                for what in (HERE, SPARK)[:: 1 if round_ % 2 else -1]:
                    for case, rows, measured in _builds(ids, what, round_):
                        results.append(_line(f"{ids:,} ids, {case}", what, round_, rows, measured))
        (HOME / "small.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    finally:
        stack.down(("cassandra", "clickhouse"), lambda _: None)
        shutil.rmtree(HOME / "local", ignore_errors=True)
    _print(results)


def _builds(ids: int, way: str, round_: int) -> Iterator[tuple[str, int, Measured]]:
    """Yield each case with the rows that were built and what was measured, on a journal of its own."""
    name = f"small_{ids}_{round_}_{way.split()[-1].lower()}"
    of = 2 * EVENTS
    prepare(name, f"{ids} 1 {EVENTS} {of}")
    if way == SPARK:
        file = config(name)
        text = file.read_text(encoding="utf-8").replace("[spark]\n", "[spark]\nsmall_job_rows = 0\n")
        file.write_text(f"{text}small_run_rows = 0\n", encoding="utf-8")
    rows = data.rows_of(ids, 1, EVENTS)
    yield CASES[0], rows, built(name, rows)
    job("append", name, f"{ids} {EVENTS + 1} {of} {of}")
    rows = data.rows_of(ids, EVENTS + 1, of)
    yield CASES[1], rows, built(name, rows)
    yield CASES[2], 0, built(name, 0)
    job("drop", name, name)


def _line(case: str, way: str, round_: int, rows: int, measured: Measured) -> dict[str, Any]:
    print(f"  {case}, {way}, round {round_}: {measured.seconds:.1f} s", flush=True)
    return {
        "case": case,
        "what": way,
        "round": round_,
        "rows": rows,
        "seconds": measured.seconds,
        "processor_seconds": measured.processor_seconds,
        "peak_mib": measured.peak_mib,
    }


def _print(results: list[dict[str, Any]]) -> None:
    """Print medians; the ratio is that of the seconds to those with Spark, round by round."""
    print(
        "\n| case | what | rows | median s | processor s | memory | ratio to Spark |\n|---|---|---|---|---|---|---|"
    )
    for case in dict.fromkeys(line["case"] for line in results):
        here = [line for line in results if line["case"] == case]
        used = [{**line, "seconds": line["processor_seconds"]} for line in here]
        processor = {what: seconds for what, seconds, _, _ in medians(used, SPARK)}
        for what, seconds, peak, ratio in medians(here, SPARK):
            print(
                f"| {case} | {what} | {here[0]['rows']:,} | {seconds:.1f} | {processor[what]:.1f} | {peak:,.0f} | "
                f"{ratio:.2f} |"
            )


if __name__ == "__main__":
    main()
