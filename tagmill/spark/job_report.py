"""Arguments and reports of the jobs in spark_jobs/. Airflow reads a job's report.

It says what was done, or why the job failed and whether a rerun helps.
"""

import atexit
import gc
import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tagmill.config.settings import Settings
from tagmill.errors import TagmillError, UnexpectedError
from tagmill.runs import trace_log
from tagmill.runs.privacy import make_file, private_file
from tagmill.spark import errors


@dataclass(slots=True)
class JobReport:
    """The report that a job fills in.

    `exit_code`: 0 done, 1 a defect, 2 wrong input, 3 data quality, 75 transient, 130 interrupted. `batch`: the
    id of the batch that the error is about, if it is about one.
    """

    step: str
    pipeline: str
    run: int | None
    exit_code: int = 0
    result: dict[str, Any] = field(default_factory=dict)
    message: str = ""
    error: str | None = None
    error_type: str | None = None
    batch: str | None = None
    docs: str | None = None
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the report as it is written to its file."""
        names = (
            "step",
            "pipeline",
            "run",
            "exit_code",
            "result",
            "message",
            "error",
            "error_type",
            "batch",
            "docs",
            "seconds",
        )
        return {"ok": self.exit_code == 0, **{name: getattr(self, name) for name in names}}


class _JobParser(ArgumentParser):
    """Reads the arguments in a file that is named as @file: one a line, as JSON."""

    def convert_arg_line_to_args(self, arg_line: str) -> list[str]:
        """Return the argument that a line of the file holds as JSON."""
        return [str(json.loads(arg_line))]


def write_arguments(file: Path, arguments: Sequence[str]) -> str:
    """Write a job's arguments to a new file for its owner alone; return the argument that names it."""
    file.unlink(missing_ok=True)
    with private_file(file) as stream:
        stream.writelines(f"{json.dumps(argument)}\n" for argument in arguments)
    return f"@{file}"


def job_arguments(description: str | None) -> ArgumentParser:
    """Return a parser of the arguments that every job has; secrets come from the environment."""
    parser = _JobParser(description=description, fromfile_prefix_chars="@")
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--owner", required=True)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--report", type=Path)
    parser.add_argument(
        "--few-rows", action="store_true", help="there is little to read; a session suits that"
    )
    parser.add_argument(
        "--start-spark",
        action="store_true",
        help="make a session even if nothing needs it: YARN takes a driver on its cluster for failed without one",
    )
    return parser


@contextmanager
def job_report(step: str, args: Namespace) -> Iterator[JobReport]:
    """Run a job's work and print its outcome.

    Errors are written to the report, a defect's trace to a log that the report names.
    """
    atexit.register(gc.freeze)  # as the command line does
    report, start = JobReport(step, args.pipeline, getattr(args, "run", None)), time.monotonic()
    try:
        yield report
        report.message = str(report.result.get("message", ""))
        report.docs = report.result.get("docs")
    except KeyboardInterrupt:
        _interrupted(report)
    except Exception as error:
        if errors.was_interrupted(error):
            _interrupted(report)
        else:
            told = errors.tell(error, _log_folder(args), f"{step} {args.pipeline}")
            _failed(report, told, type(error if isinstance(told, UnexpectedError) else told).__name__)
    report.seconds = round(time.monotonic() - start, 3)
    if file := args.report:
        part = file.with_suffix(".part")
        make_file(part)
        part.write_text(json.dumps(report.as_json(), indent=1), encoding="utf-8")
        part.replace(file)
    print(report.error or report.message, flush=True)


def _interrupted(report: JobReport) -> None:
    report.exit_code, report.error_type = 130, "KeyboardInterrupt"
    report.error = "stopped; nothing is lost, try again"


def _failed(report: JobReport, error: TagmillError, kind: str) -> None:
    report.exit_code, report.error, report.error_type = error.exit_code, error.line, kind
    report.run, report.batch = error.run if report.run is None else report.run, error.batch
    report.docs = getattr(error, "docs_page", None)


def _log_folder(args: Namespace) -> Path:
    try:
        return trace_log.folder_of(Settings.load(args.config).storage.root)
    except TagmillError:
        return trace_log.folder_of(None)
