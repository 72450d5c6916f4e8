"""Spark job that delivers several pipelines in one session: arguments in, one call into tagmill, a job report out."""

import argparse
import sys
from collections.abc import Sequence

from tagmill.config.settings import Settings
from tagmill.delivery.together import deliver_together
from tagmill.spark.job_report import job_arguments, job_report
from tagmill.spark.session import session_when_asked


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of the job."""
    parser = job_arguments(__doc__)
    parser.add_argument(
        "--deliver", action="append", default=[], help="a pipeline; may be given several times"
    )
    parser.add_argument("--seconds", type=float, help="no run begins after them")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Deliver the named pipelines; the report has each one's outcome, and only the session's failure is the job's."""
    args = parse(argv)
    with job_report("deliver", args) as report:
        settings = Settings.load(args.config)
        with session_when_asked(settings, "tagmill deliver", at_once=args.start_spark) as spark:
            outcomes = deliver_together(
                settings,
                args.deliver,
                owner=args.owner,
                spark=spark,
                tell=lambda text: print(text, flush=True),
                seconds=args.seconds,
            )
        report.result = {
            "outcomes": {outcome.pipeline: outcome.as_json() for outcome in outcomes},
            "message": "; ".join(outcome.message for outcome in outcomes),
        }
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
