"""Spark job that seals a planned run: arguments in, one call into tagmill, a job report out."""

import argparse
import sys
from collections.abc import Sequence

from tagmill.config.settings import Settings
from tagmill.delivery.tag_views import steps
from tagmill.delivery.topics import steps as topic_steps
from tagmill.spark.job_report import job_arguments, job_report
from tagmill.spark.session import session_when_asked


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of the job."""
    parser = job_arguments(__doc__)
    parser.add_argument("--run", type=int, required=True)
    parser.add_argument("--fence", type=int, required=True)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Seal one planned run, of tag views, a topic or a Kafka Journal."""
    args = parse(argv)
    with job_report("seal", args) as report:
        settings = Settings.load(args.config)
        name = f"tagmill seal {args.pipeline} {args.run}"
        with session_when_asked(settings, name, at_once=args.start_spark) as spark:
            seal = topic_steps.seal if args.pipeline in settings.streams else steps.seal
            report.result = seal(settings, args.pipeline, args.run, args.fence, owner=args.owner, spark=spark)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
