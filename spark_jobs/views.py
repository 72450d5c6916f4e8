"""Spark job for one operation on a journal's tag views: arguments in, one call into tagmill, a job report
out.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tagmill.config.settings import Settings
from tagmill.spark.job_report import job_arguments, job_report
from tagmill.spark.session import spark_session
from tagmill.views.delete import delete, truncate
from tagmill.views.migrate import migrate
from tagmill.views.migration_plan import Plan
from tagmill.views.model import Step
from tagmill.views.persistence_ids import rebuild_ids
from tagmill.views.rebuild import rebuild
from tagmill.views.selection import Selection


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of the job."""
    parser = job_arguments(__doc__)
    parser.add_argument(
        "--operation", required=True, choices=("rebuild", "delete", "truncate", "pids", "migrate")
    )
    parser.add_argument(
        "--persistence-id", action="append", default=[], help="only this one; may be given several times"
    )
    parser.add_argument(
        "--offline", action="store_true", help="all persistence ids: whoever numbers is stopped"
    )
    parser.add_argument(
        "--tag", action="append", default=[], help="only rows of this tag; may be given several times"
    )
    parser.add_argument(
        "--step",
        action="append",
        default=[],
        choices=list(Step),
        help="of a migration; may be given several times",
    )
    parser.add_argument(
        "--snapshot-keyspace",
        help="of a migration: where the table snapshots is, if not in the journal's keyspace",
    )
    parser.add_argument("--drop-old", action="store_true", help="of a migration: drop what is old afterwards")
    parser.add_argument("--dry-run", action="store_true")
    return parser.parse_args(argv)


def operation_of(args: argparse.Namespace) -> Callable[..., Any]:
    """Return the function for the operation that the arguments name, its options bound."""
    if args.operation == "pids":
        return rebuild_ids
    if args.operation == "migrate":
        plan = Plan.of(
            args.step,
            args.persistence_id,
            offline=args.offline,
            drop_old=args.drop_old,
            snapshot_keyspace=args.snapshot_keyspace,
            dry_run=args.dry_run,
        )
        return partial(migrate, plan=plan, owner=args.owner)
    chosen = Selection.of(args.persistence_id, args.tag, offline=args.offline)
    return {
        "rebuild": partial(rebuild, selection=chosen, owner=args.owner),
        "delete": partial(delete, selection=chosen, owner=args.owner),
        "truncate": partial(truncate, owner=args.owner),
    }[args.operation]


def main(argv: Sequence[str]) -> int:
    """Run one operation on the tag views; with --dry-run only report what it would change."""
    args = parse(argv)
    with job_report(args.operation, args) as report:
        settings, operation = Settings.load(args.config), operation_of(args)
        with spark_session(settings, f"tagmill {args.operation} {args.pipeline}") as spark:
            done = operation(
                settings, args.pipeline, spark=spark, dry_run=args.dry_run, tell=partial(print, flush=True)
            )
        for line in done.lines:
            print(line.model_dump_json(), flush=True)
        report.result = {**done.model_dump(mode="json"), "message": done.message}
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
