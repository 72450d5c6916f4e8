"""Spark job that builds a journal's tag views: arguments in, one call into tagmill, a job report out."""

import argparse
import sys
from collections.abc import Sequence

from tagmill.config.settings import Settings
from tagmill.spark.job_report import job_arguments, job_report
from tagmill.spark.session import spark_session
from tagmill.views.build import build, check


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of the job."""
    parser = job_arguments(__doc__)
    parser.add_argument("--adopt", action="store_true")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Number the new events of the pipeline's journal and write its tag views."""
    args = parse(argv)
    with job_report("build", args) as report:
        settings = Settings.load(args.config)
        check(settings, args.pipeline)
        with spark_session(settings, f"tagmill build {args.pipeline}") as spark:
            report.result = build(
                settings,
                args.pipeline,
                owner=args.owner,
                spark=spark,
                adopt=args.adopt,
                tell=lambda text: print(text, flush=True),
            )
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
