"""Measure an audit that finds no difference, next to Spark scanning all columns of the two Cassandra tables
that the audit reads; then one that begins where another has proven all, after 20,000 new events of 2,000 persistence ids.

    bench/audit                       4 million tag rows, three rounds
    bench/audit --rounds 1 --rows 100000

Each measurement is a whole process, including Spark's start. Starts its own stack under build/bench and stops
it.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from bench.data import NEW_EVENTS, NEW_IDS, PERSISTENCE_IDS, TAGS
from bench.deliver import HOME, config_of, stack_up, written
from bench.measure import Measured, measure, medians

SCANS = "scan of both tables"
SINCE, NEW = "audit of what came since", TAGS * NEW_IDS * NEW_EVENTS
SCAN = (
    "import sys; from tagmill.config.settings import Settings; from bench.connector import session, table;"
    "spark = session(Settings.load(sys.argv[1]));"
    "[table(spark, sys.argv[2], name).write.format('noop').mode('overwrite').save() for name in "
    "('messages', 'tag_views')]"
)


def main() -> None:
    """Run the rounds and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    stack = stack_up()
    try:
        keyspace = f"bench_audit_{args.rows}"
        config = config_of(keyspace, f"a{args.rows}")
        written(config, keyspace, args.rows, "write_with_journal")
        tagmill = [str(Path(sys.executable).with_name("tagmill")), "--config", str(config)]
        for command in (["schema", "apply"], ["run", "deliver", "-p", "bench"]):
            subprocess.run([*tagmill, *command], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        audits, scans, since = [], [], []
        for round_ in range(args.rounds):
            rows = args.rows + round_ * NEW
            scans.append(measure([sys.executable, "-c", SCAN, str(config), keyspace]))
            audits.append(measure([*tagmill, "audit", "-p", "bench", "--full", "--json"]))
            _check(audits[-1], rows, is_full=True)
            last = args.rows // (TAGS * PERSISTENCE_IDS) + round_ * NEW_EVENTS
            written(config, keyspace, last, "write_since")
            subprocess.run([*tagmill, "run", "deliver", "-p", "bench"], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
            since.append(measure([*tagmill, "audit", "-p", "bench", "--json"]))
            _check(since[-1], rows + NEW, is_full=False)
        _print(args.rows, {"audit": audits, SCANS: scans, SINCE: since})
    finally:
        stack.down(("cassandra", "clickhouse"), lambda _: None)
        shutil.rmtree(HOME / "local", ignore_errors=True)


def _check(audit: Measured, rows: int, *, is_full: bool) -> None:
    """Raise RuntimeError unless an audit has seen these rows in each store."""
    report = json.loads(audit.output.splitlines()[-1])
    found = {line["tag"]: (line["journal"], line["view"], line["clickhouse"]) for line in report["tags"]}
    if set(found.values()) != {(rows // TAGS,) * 3} or bool(report["proven_by"]) is is_full:
        raise RuntimeError(f"the audit saw {found}, proven by {report['proven_by']}")


def _print(rows: int, runs: dict[str, list[Measured]]) -> None:
    results = [
        {"what": what, "round": round_, "seconds": run.seconds, "peak_mib": run.peak_mib}
        for what, mine in runs.items()
        for round_, run in enumerate(mine)
    ]
    print("\n| rows | what | median s | tag rows/s | peak RSS MiB | ratio |\n|---|---|---|---|---|---|")
    for what, seconds, peak, ratio in medians(results, SCANS):
        print(
            f"| {rows:,} | {what} | {seconds:.1f} | {rows / seconds:,.0f} | {peak:,.0f} | {ratio:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
