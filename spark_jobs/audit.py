"""Spark job that audits a pipeline: arguments in, one call into tagmill, a job report out."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from tagmill.audit.audit import UNCHANGED, audit, raise_unless_it_agrees, told
from tagmill.audit.model import AuditReport
from tagmill.audit.repair import KEPT, audit_and_repair
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
            how = {"owner": args.owner, "spark": spark, "full": args.full, "tell": partial(print, flush=True)}
            made: AuditReport
            if args.repair:
                made = audit_and_repair(settings, args.pipeline, who=args.owner, why=args.repair, **how)
            else:
                made = audit(settings, args.pipeline, tags=args.tag, **how)
        report.result = told(made)
        raise_unless_it_agrees(made, KEPT if args.repair else UNCHANGED)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
