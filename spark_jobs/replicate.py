"""Spark job that replicates a Kafka Journal to Cassandra, or purges its expired ids: arguments in, one call,
a job report out.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from datetime import date
from functools import partial
from typing import Any

from tagmill.config.settings import Settings
from tagmill.kafka_journal.purge import purge_expired
from tagmill.kafka_journal.replicate import replicate
from tagmill.spark.job_report import job_arguments, job_report
from tagmill.spark.session import session_when_asked


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of the job."""
    parser = job_arguments(__doc__)
    parser.add_argument("--operation", required=True, choices=("replicate", "purge_expired"))
    parser.add_argument(
        "--accept-lost", action="store_true", help="go on although records are gone from Kafka"
    )
    parser.add_argument(
        "--until", type=date.fromisoformat, help="ids that expire on this day or before; left out: today"
    )
    parser.add_argument("--dry-run", action="store_true", help="publish nothing")
    return parser.parse_args(argv)


def operation_of(args: argparse.Namespace) -> Callable[..., Any]:
    """Return the function for the operation that the arguments name, its options bound."""
    if args.operation == "replicate":
        return partial(replicate, accept_lost=args.accept_lost)
    return partial(purge_expired, until=args.until, dry_run=args.dry_run)


def main(argv: Sequence[str]) -> int:
    """Replicate the topics, or purge expired ids, as the arguments say."""
    args = parse(argv)
    with job_report(args.operation, args) as report:
        settings, operation = Settings.load(args.config), operation_of(args)
        with session_when_asked(settings, f"tagmill {args.operation} {args.pipeline}") as spark:
            done = operation(
                settings, args.pipeline, owner=args.owner, spark=spark, tell=partial(print, flush=True)
            )
        for line in done.lines:
            print(line.model_dump_json(), flush=True)
        report.result = {**done.model_dump(mode="json"), "message": done.message}
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
