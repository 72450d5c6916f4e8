"""The build of a journal's tag views as a Spark job: arguments in, one call into tagmill, a job report out."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tagmill.jobreport import job_report
from tagmill.settings import Settings
from tagmill.sparksession import session
from tagmill.views.build import build, check


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Arguments of the job; secrets come by the environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--owner", required=True)
    parser.add_argument("--adopt", action="store_true")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--report", type=Path)
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Build what is new."""
    args = parse(argv)
    with job_report("build", args.pipeline, None, args.report) as report:
        settings = Settings.load(args.config)
        check(settings, args.pipeline)
        spark = session(settings, name=f"tagmill build {args.pipeline}")
        try:
            report.result = build(
                settings,
                args.pipeline,
                owner=args.owner,
                spark=spark,
                adopt=args.adopt,
                tell=lambda text: print(text, flush=True),
            )
        finally:
            spark.stop()
    print(report.error or report.message, flush=True)
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
