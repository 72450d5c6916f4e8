"""Spark job that moves a journal's tag views to another bucket size: arguments in, one call into tagmill, a
job report out.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from tagmill.config.settings import Settings
from tagmill.domain.time_buckets import BucketSize
from tagmill.errors import ConfigurationError
from tagmill.spark.job_report import job_arguments, job_report
from tagmill.spark.session import spark_session
from tagmill.views.rebucket.rebucket import abandon, check, rebucket


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of the job."""
    parser = job_arguments(__doc__)
    parser.add_argument("--to", type=BucketSize, choices=list(BucketSize), required=True)
    parser.add_argument("--table", help="name of the new table")
    parser.add_argument(
        "--offline", action="store_true", help="the application is stopped: verify, and switch"
    )
    parser.add_argument("--drop-old", action="store_true", help="after the switch")
    parser.add_argument("--abandon", action="store_true", help="before the switch: drop the new table")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run one step of a rebucket: copy, switch (--offline), drop the old table, or abandon."""
    args = parse(argv)
    with job_report("rebucket", args) as report:
        settings = Settings.load(args.config)
        if args.offline + args.drop_old + args.abandon > 1:
            raise ConfigurationError(
                "offline, drop_old and abandon are steps of their own: give one of them. Nothing was done"
            )
        if args.abandon:
            report.result = abandon(settings, args.pipeline, owner=args.owner, dry_run=args.dry_run)
        else:
            check(settings, args.pipeline, args.to, args.table)
            with spark_session(settings, f"tagmill rebucket {args.pipeline}") as spark:
                report.result = rebucket(
                    settings,
                    args.pipeline,
                    to=args.to,
                    owner=args.owner,
                    spark=spark,
                    table=args.table,
                    offline=args.offline,
                    drop_old=args.drop_old,
                    dry_run=args.dry_run,
                    tell=partial(print, flush=True),
                )
        print("\n".join(report.result["lines"]), flush=True)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
