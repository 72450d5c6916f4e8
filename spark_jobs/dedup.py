"""Spark job for the ids of a topic's delivered events: makes them again under another rule, or deletes those
past their window.
"""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from tagmill.config.settings import Settings
from tagmill.delivery.topics.expire_ids import expire
from tagmill.delivery.topics.rekey_ids import rekey
from tagmill.spark.job_report import job_arguments, job_report
from tagmill.spark.session import session_when_asked


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of the job."""
    parser = job_arguments(__doc__)
    parser.add_argument("--operation", required=True, choices=("rekey", "expire"))
    parser.add_argument(
        "--drop-unreadable",
        action="store_true",
        help="let ids go whose payload gives none under the new rule",
    )
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Make the ids again or delete expired ones; with --dry-run only report what would change."""
    args = parse(argv)
    with job_report(f"dedup_{args.operation}", args) as report:
        settings = Settings.load(args.config)
        with session_when_asked(settings, f"tagmill dedup {args.operation} {args.pipeline}") as spark:
            given = {"owner": args.owner, "spark": spark, "dry_run": args.dry_run}
            if args.operation == "rekey":
                more = {
                    "who": args.owner,
                    "drop_unreadable": args.drop_unreadable,
                    "tell": partial(print, flush=True),
                }
                done = rekey(settings, args.pipeline, **given, **more)
            else:
                done = expire(settings, args.pipeline, **given)
        report.result = {**done.model_dump(mode="json"), "message": done.message}
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
