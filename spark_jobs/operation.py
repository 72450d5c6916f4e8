"""Spark job for an operation that tagmill.operations declares: its parameters in, one call, a job report out."""

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from tagmill.config.settings import Settings
from tagmill.operations.catalogue import BY_NAME
from tagmill.operations.model import Operation, Work
from tagmill.spark.job_report import job_arguments, job_report
from tagmill.spark.session import session_when_asked


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of the job."""
    parser = job_arguments(__doc__)
    in_spark = [name for name, operation in BY_NAME.items() if operation.run]
    parser.add_argument("--operation", required=True, choices=in_spark)
    parser.add_argument("--parameters", type=json.loads, default={}, help="of the operation, as JSON")
    parser.add_argument("--dry-run", action="store_true", help="only report what would change")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Do one operation; with --dry-run only report what it would change."""
    args = parse(argv)
    operation = BY_NAME[args.operation]
    with job_report(operation.step, args) as report:
        settings, parameters = Settings.load(args.config), operation.parameters.of(args.parameters)
        parameters.check(dry_run=args.dry_run)
        name = f"tagmill {operation.name} {args.pipeline}"
        with session_when_asked(
            settings, name, at_once=args.start_spark, has_few_rows=lambda: args.few_rows
        ) as spark:
            by, tell = (args.owner, args.owner), partial(print, flush=True)
            assert operation.run is not None
            done = operation.run(Work(settings, args.pipeline, *by, args.dry_run, tell, spark), parameters)
        lines, report.result = _reported(operation, done)
        for line in lines:
            print(line, flush=True)
        if operation.require and not args.dry_run:
            operation.require(done)
    return report.exit_code


def _reported(operation: Operation[Any], done: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the lines for the log, and the result for the report, of what an operation returns."""
    if isinstance(done, dict):
        return done.get("lines", []), done
    lines = [line.model_dump_json() for line in getattr(done, "lines", ())]
    return lines, operation.told(done) if operation.told else {
        **done.model_dump(mode="json"),
        "message": done.message,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
