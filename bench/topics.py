"""Measure a plain topic delivered to ClickHouse, next to the limit: Spark reads the same records and writes
them raw.

    bench/topics                          two million events, three rounds
    bench/topics --events 200000 --rounds 1 --known 1000000

The topic has JSON events of 300 bytes in four partitions, every twentieth a second time. Each round measures
four processes:

- the delivery, which delivers each distinct event once;
- the limit;
- the limit, followed by writing the run's deduplication rows ready-made from its files;
- the delivery with `--known` ids (10 million) of other events in deduplication.

Each measurement is a whole process, from its start to its end, including Spark's session. A first delivery
isn't counted. Starts its own stack under build/bench and stops it. Prints the table and writes
build/bench/topics.json.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.deliver import HOME, ROOT, stack_up
from bench.measure import Measured, measure, medians
from local import class_archive

PORTS = {"cassandra": 19462, "kafka": 19472, "clickhouse": 19482}
PARTS = ("cassandra", "kafka", "clickhouse")
LIMITS = {"limit": [], "limit, then its ids ready-made": ["ids"]}


def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--known", type=int, default=10_000_000)
    args = parser.parse_args()
    stack = stack_up(PORTS, PARTS)
    results: list[dict[str, Any]] = []
    try:
        _job("produce", str(args.events))
        # The first delivery isn't counted, since Cassandra's own code is still cold.
        _delivered(args.events)
        for round_ in range(1, args.rounds + 1):
            for what in ("topic", "limit")[:: 1 if round_ % 2 else -1]:
                _job("again")
                results.append(_measured(what, round_, args.events))
                if what == "topic":
                    _job("again", "but-files")
                    results.append(_measured("limit, then its ids ready-made", round_, args.events))
            _job("again")
            _job("known", str(args.known))
            results.append(_measured("topic, ids known", round_, args.events))
        (HOME / "topics.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    finally:
        stack.down(PARTS, lambda _: None)
        shutil.rmtree(HOME / "local", ignore_errors=True)
        shutil.rmtree(HOME / "data-topics", ignore_errors=True)
    print(
        "\n| events | what | median s | events/s | peak RSS MiB | ratio of the seconds "
        "|\n|---|---|---|---|---|---|"
    )
    for what, seconds, peak, ratio in medians(results, "limit"):
        print(
            f"| {args.events:,} | {what} | {seconds:.1f} | {args.events / seconds:,.0f} | {peak:,.0f} | "
            f"{ratio:.2f} |"
        )


def _measured(case: str, round_: int, events: int) -> dict[str, Any]:
    measured = _limit(LIMITS[case]) if case in LIMITS else _delivered(events)
    print(
        f"  {case}, round {round_}: {measured.seconds:.1f} s, {events / measured.seconds:,.0f} events/s",
        flush=True,
    )
    return {"what": case, "round": round_, "seconds": measured.seconds, "peak_mib": measured.peak_mib}


def _delivered(events: int) -> Measured:
    tagmill = [str(Path(sys.executable).with_name("tagmill")), "--config", str(_config())]
    measured = measure([*tagmill, "run", "deliver", "--pipeline", "bench", "--json"])
    runs = json.loads(next(line for line in measured.output.splitlines() if line.startswith("{")))["runs"]
    rows, wanted = sum(run["rows"] for run in runs), events - events // 20
    if rows != wanted:
        raise RuntimeError(f"{wanted} distinct events were expected: {rows}")
    _job("exactly", str(wanted))
    return measured


def _limit(ids: list[str]) -> Measured:
    return measure([sys.executable, "-m", "bench.topics_data", "raw", str(_config()), *ids])


def _job(command: str, *arguments: str) -> None:
    """Run a step that isn't measured, in a separate process."""
    subprocess.run(
        [sys.executable, "-m", "bench.topics_data", command, str(_config()), *arguments], check=True, cwd=ROOT
    )


def _config() -> Path:
    file = HOME / "topics.toml"
    file.write_text(
        f'[cassandra]\nport = {PORTS["cassandra"]}\nledger_keyspace = "tagmill_bench_topics"\n'
        f"[clickhouse]\nport = {PORTS['clickhouse']}\n[kafka]\nbootstrap_servers = "
        f'["127.0.0.1:{PORTS["kafka"]}"]\n'
        f'[spark]\ndriver_memory = "1500m"\nclass_archive = '
        f'"{class_archive.FILE}"\n'
        f'[storage]\nroot = "{HOME}/data-topics"\n'
        '[pipelines.bench]\nkind = "topic"\ntopics = ["bench"]\nformat = "json"\ndestination = '
        '"bench"\nseconds_between_inserts = 0\n'
        'columns = [{ name = "product_id", type = "Int64" }, { name = "price", type = "Float64" }, { '
        'name = "note" }]\n',
        encoding="utf-8",
    )
    return file


if __name__ == "__main__":
    main()
