"""The seal step as a Spark job: arguments in, one call into tagmill, a job report out."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tagmill.delivery import steps
from tagmill.jobreport import job_report
from tagmill.settings import Settings
from tagmill.sparksession import session


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Arguments of the job; secrets come by the environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--run", type=int, required=True)
    parser.add_argument("--fence", type=int, required=True)
    parser.add_argument("--owner", required=True)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--report", type=Path)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Seal one planned run."""
    args = parse(argv)
    with job_report("seal", args.pipeline, args.run, args.report) as report:
        settings = Settings.load(args.config)
        spark = session(settings, name=f"tagmill seal {args.pipeline} {args.run}")
        try:
            report.result = steps.seal(settings, args.pipeline, args.run, args.fence, owner=args.owner, spark=spark)
        finally:
            spark.stop()
    print(report.error or report.message, flush=True)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
