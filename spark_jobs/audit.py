"""Spark job that audits a pipeline: arguments in, one call into tagmill, a job report out."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from tagmill.audit.audit import audit, raise_unless_it_agrees, told
from tagmill.audit.repair import audit_and_repair
from tagmill.config.settings import Settings
from tagmill.spark.job_report import job_arguments, job_report
from tagmill.spark.session import spark_session


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of the job."""
    parser = job_arguments(__doc__)
    parser.add_argument("--tag", action="append", help="only this tag; may be given several times")
    parser.add_argument("--full", action="store_true", help="read again what an audit has proven")
    parser.add_argument(
        "--repair", metavar="WHY", help="repair what is found, for this reason, and audit again; all tags"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Audit the pipeline, with --repair also repair it; end with 3 if something doesn't agree."""
    args = parse(argv)
    with job_report("audit", args) as report:
        settings = Settings.load(args.config)
        with spark_session(settings, f"tagmill audit {args.pipeline}", few_rows=args.few_rows) as spark:
            tell = partial(print, flush=True)
            made = audit(
                settings,
                args.pipeline,
                owner=args.owner,
                spark=spark,
                tags=args.tag,
                full=args.full,
                tell=tell,
            )
            if args.repair:
                made, repairs = audit_and_repair(
                    settings,
                    args.pipeline,
                    spark=spark,
                    owner=args.owner,
                    who=args.owner,
                    why=args.repair,
                    tell=tell,
                    first=made,
                )
                for done in repairs:
                    print(done.message, flush=True)
        report.result = told(made)
        raise_unless_it_agrees(made)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
