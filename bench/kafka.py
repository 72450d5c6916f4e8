"""Measure the replication of a Kafka Journal, next to the connector writing the same rows of `journal`
ready-made.

    bench/kafka                          one million events, three rounds
    bench/kafka --events 200000 --rounds 1

The connector writes with its default settings, and in our batches. The topic has appends of two events with
JSON payloads of 200 bytes, of 20,000 ids in four partitions; a mark follows every twentieth append. Each
measurement is a whole process, from its start to its end, including Spark's session. Starts its own stack
under build/bench and stops it. Prints the table and writes build/bench/kafka.json.
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

PORTS = {"cassandra": 19362, "kafka": 19372}
READY = {"ready-made": "plain", "ready-made, in our batches": "tuned"}
KEYSPACE = "bench_kafka"


def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    stack = stack_up(PORTS, ("cassandra", "kafka"))
    results: list[dict[str, Any]] = []
    try:
        _job("produce", str(args.events))
        # The first run produces the rows to write ready-made. It isn't counted, since Cassandra's own code is
        # still cold.
        _replicated(args.events)
        _job("ready", str(HOME / "ready"))
        for round_ in range(1, args.rounds + 1):
            for what in ("replicate", *READY)[:: 1 if round_ % 2 else -1]:
                _job("empty")
                measured = _replicated(args.events) if what == "replicate" else _written(READY[what])
                print(
                    f"  {what}, round {round_}: {measured.seconds:.1f} s, "
                    f"{args.events / measured.seconds:,.0f} rows/s",
                    flush=True,
                )
                results.append(
                    {
                        "what": what,
                        "round": round_,
                        "seconds": measured.seconds,
                        "peak_mib": measured.peak_mib,
                    }
                )
        (HOME / "kafka.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    finally:
        stack.down(("cassandra", "kafka"), lambda _: None)
        shutil.rmtree(HOME / "local", ignore_errors=True)
        shutil.rmtree(HOME / "ready", ignore_errors=True)
    print(
        "\n| rows | what | median s | rows/s | peak RSS MiB | ratio of the seconds "
        "|\n|---|---|---|---|---|---|"
    )
    for what, seconds, peak, ratio in medians(results, "ready-made"):
        print(
            f"| {args.events:,} | {what} | {seconds:.1f} | {args.events / seconds:,.0f} | {peak:,.0f} | "
            f"{ratio:.2f} |"
        )


def _replicated(events: int) -> Measured:
    tagmill = [str(Path(sys.executable).with_name("tagmill")), "--config", str(_config())]
    measured = measure([*tagmill, "kafka-journal", "replicate", "--pipeline", "bench", "--json"])
    found = json.loads(next(line for line in measured.output.splitlines() if line.startswith("{")))
    if found["counts"]["events"] != events:
        raise RuntimeError(f"{events} events were expected: {found}")
    return measured


def _written(how: str) -> Measured:
    return measure(
        [sys.executable, "-m", "bench.kafka_data", "write", str(_config()), str(HOME / "ready"), how]
    )


def _job(command: str, *arguments: str) -> None:
    """Run a step that isn't measured, in a separate process."""
    subprocess.run(
        [sys.executable, "-m", "bench.kafka_data", command, str(_config()), *arguments], check=True, cwd=ROOT
    )


def _config() -> Path:
    file = HOME / "kafka.toml"
    file.write_text(
        f'[cassandra]\nport = {PORTS["cassandra"]}\nledger_keyspace = "tagmill_bench_kafka"\n'
        f'[kafka]\nbootstrap_servers = ["127.0.0.1:{PORTS["kafka"]}"]\n'
        f'[spark]\ndriver_memory = "1500m"\n[storage]\nroot = '
        f'"{HOME}/data-kafka"\n'
        f'[pipelines.bench]\nkind = "kafka_journal"\nkeyspace = "{KEYSPACE}"\ntopics = ["bench"]\n',
        encoding="utf-8",
    )
    return file


if __name__ == "__main__":
    main()
