"""Shared by all commands: options, the configuration, one-line errors, tables and JSON."""

import getpass
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial, wraps
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

import structlog
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tagmill.cli import signals
from tagmill.config.settings import Settings
from tagmill.domain import identifiers
from tagmill.errors import ConfigurationError, TagmillError
from tagmill.runs import trace_log
from tagmill.spark import errors


class _Terminal(Console):
    def on_broken_pipe(self) -> None:
        """Leave the error to one_line; rich would end the process with 1, as for a defect."""
        raise  # noqa: PLE0704 - rich handles it


# Names come from applications: rich would take [x] for a style and :key: for an emoji.
to_the_letter = partial(_Terminal, markup=False, emoji=False, highlight=False, soft_wrap=True)
# Width in columns of a table that goes to a file or a pipe, which rich would squeeze to 80.
out = to_the_letter(width=None if sys.stdout.isatty() else 200)
err = to_the_letter(stderr=True)
# Columns of numbers that are copied, so they have no separators.
PLACES = frozenset({"offset", "timebucket", "partition", "run"})
R = TypeVar("R")

Pipeline = Annotated[str, typer.Option("--pipeline", "-p", help="Pipeline of the configuration.")]
MaybePipeline = Annotated[
    str | None, typer.Option("--pipeline", "-p", help="Only this pipeline; default: all.")
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
Why = Annotated[str, typer.Option("--why", help="Reason; the ledger records it. A dry run needs none.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Only this tag. Repeatable.")]
PersistenceIds = Annotated[
    list[str] | None, typer.Option("--persistence-id", help="Only this persistence_id. Repeatable.")
]
PersistenceIdsFile = Annotated[
    Path | None,
    typer.Option(
        "--persistence-ids",
        help="Only the persistence_ids in this file, one a line (UTF-8).",
        exists=True,
        dir_okay=False,
    ),
]
DespiteViews = Annotated[
    bool,
    typer.Option(
        "--despite-views",
        help="Go on where materialized views depend on the destination; complete them by hand.",
    ),
]
config_file: list[Path | None] = [None]
# Libraries that log errors which they also raise; the command shows these errors in one line.
QUIET = frozenset({"cassandra", "py4j", "great_expectations", "urllib3", "clickhouse_connect"})


def settings() -> Settings:
    """Load the configuration that the command line names, or the default one."""
    return Settings.load(config_file[0])


def log_folder() -> Path:
    """Return the folder for traces, also while the configuration is wrong."""
    try:
        return trace_log.folder_of(settings().storage.root)
    except TagmillError:
        return trace_log.folder_of(None)


def quiet_logs(verbose: bool) -> None:
    """Send logs to stderr, the steps' as JSON lines; unless `verbose`, only the steps' errors and the
    libraries' warnings.
    """
    level = logging.INFO if verbose else logging.WARNING
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.JSONRenderer(),
        ],
        # Commands show a step's warnings themselves; a lease that can't be renewed ends in an error that says
        # why.
        wrapper_class=structlog.make_filtering_bound_logger(level if verbose else logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(level=level, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.addFilter(lambda record: verbose or not _is_told_otherwise(record))
    if not verbose:
        warnings.simplefilter("ignore")


def _is_told_otherwise(record: logging.LogRecord) -> bool:
    """Return True for a record that a library logs about an error which it also raises; py4j logs some
    without its name.
    """
    return record.name.partition(".")[0] in QUIET or record.module == "java_gateway"


def one_line_errors(command: Callable[..., R]) -> Callable[..., R]:
    """Decorate a command so that an error ends it with one line and an exit code; the trace of a defect goes
    to a log.
    """

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> R:
        with one_line():
            must_be_keys(kwargs.values())
            return command(*args, **kwargs)

    return wrapped


def must_be_keys(options: Iterable[Any]) -> None:
    """Raise ConfigurationError for a text option that Cassandra could not have as a key: most of them are
    looked up.
    """
    for option in options:
        for text in option if isinstance(option, list) else [option]:
            if isinstance(text, str):
                identifiers.key(text)


@contextmanager
def one_line() -> Iterator[None]:
    """End the command with one line and an exit code for an error in this block; the trace of a defect goes
    to a log.
    """
    try:
        with signals.raised():
            yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except BrokenPipeError:  # the reader has enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(128 + signal.SIGPIPE) from None
    except KeyboardInterrupt as error:
        raise signals.ended(error) from None
    except Exception as error:
        if errors.was_interrupted(error):
            raise signals.ended(error) from None
        raise _ended(errors.tell(error, log_folder(), "tagmill")) from None


def _ended(error: TagmillError) -> typer.Exit:
    err.print(f"error: {error.line}")
    return typer.Exit(error.exit_code)


@contextmanager
def telling(pipeline: str, begin: str) -> Iterator[Callable[[str], None]]:
    """Show a line on the terminal that says what is being done to a pipeline; yield a function that changes
    it.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as display:
        task = display.add_task(f"{pipeline}: {begin}", total=None)
        yield lambda text: display.update(task, description=f"{pipeline}: {text}")


@contextmanager
def delivering(configured: Settings, shown: str, job: str) -> Iterator[dict[str, Any]]:
    """Yield what a delivery takes from its command: `owner`, `spark` and `tell`.

    Args:
        configured: the configuration.
        shown: begins the line on the terminal.
        job: names the Spark session, which begins when it is asked for.
    """
    from tagmill.ledger.lease import this_process
    from tagmill.spark.session import session_when_asked

    with telling(shown, "planning") as tell, session_when_asked(configured, job) as spark:
        yield {"owner": this_process(), "spark": spark, "tell": tell}


def show(
    rows: Sequence[dict[str, Any]], columns: Sequence[str], *, as_json: bool, title: str | None = None
) -> None:
    """Print rows as a table, or as JSON."""
    if as_json:
        out.print_json(json.dumps(list(rows), default=str)) if out.is_terminal else print(
            json.dumps(list(rows), default=str)
        )
        return
    table = Table(title=title, title_justify="left")
    for column in columns:
        number = bool(rows) and all(isinstance(row.get(column), int | None) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(column, row.get(column)) for column in columns))
    out.print(table)


def _cell(column: str, value: Any) -> str | Text:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, int) and not isinstance(value, bool) and column not in PLACES:
        return f"{value:,}"
    return Text(visible(str(value)))


def visible(text: str) -> str:
    """Return a text with what a terminal doesn't print, such as a line feed or a change of direction, escaped."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape", "surrogatepass").decode() for one in text
    )


def person() -> str:
    """Return the name of the current user, for the ledger; the number of one that has no name, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def confirm(question: str, yes: bool) -> None:
    """Ask before something that can't be undone, and exit with 2 unless it is confirmed; without a terminal
    --yes is needed.
    """
    must_be_answerable(yes)
    if not yes and not typer.confirm(question):
        raise _nothing_done()


def must_be_answerable(yes: bool) -> None:
    """Exit with 2 if a question could not be answered later: without a terminal --yes is needed."""
    if not yes and not sys.stdin.isatty():
        raise _nothing_done()


def _nothing_done() -> typer.Exit:
    err.print("nothing was done (answer yes, or give --yes)")
    return typer.Exit(2)


def confirm_from_now_on(question: str, yes: bool) -> None:
    """Ask like `confirm` in a command that did not ask in earlier versions: without a terminal it warns and
    goes on.
    """
    if yes or sys.stdin.isatty():
        confirm(question, yes)
    else:
        err.print("warning: without a terminal, the next version needs --yes here")


def show_and_ask(
    question: str,
    work: Callable[[bool], R],
    display: Callable[[R], None],
    *,
    dry_run: bool,
    yes: bool,
    shown: bool = True,
    ask: Callable[[str, bool], None] = confirm,
) -> R:
    """Do work, or only look in a dry run; unless --yes is given, show on a terminal what would change, and
    ask.

    Args:
        question: what is asked.
        work: takes whether it is a dry run, and returns what it did.
        display: shows that; the caller shows what is returned.
        dry_run: whether to look only.
        yes: whether to do it without asking.
        shown: whether it may be shown before; not where standard output is for one JSON document.
        ask: asks the question, given whether --yes is; raises for a no.
    """
    if dry_run:
        return work(True)
    if shown and not yes and sys.stdin.isatty():
        display(work(True))
    ask(question, yes)
    return work(False)


def must_say_why(why: str | None, dry_run: bool) -> None:
    """Raise BadParameter if a change that the ledger records has no reason; a dry run needs none."""
    if not dry_run and not (why or "").strip():
        raise typer.BadParameter("give --why, which the ledger records, or --dry-run")


def decide(
    question: str,
    work: Callable[[bool], str | list[str]],
    *,
    why: str,
    dry_run: bool,
    yes: bool,
    ask: Callable[[str, bool], None] = confirm,
) -> None:
    """Make a decision that a person records in the ledger (show_and_ask), and print what it did as lines.

    If it would change something else by the time of the answer, as after another run, show that and ask again.
    """
    must_say_why(why, dry_run)
    shown: list[str | list[str]] = []

    def display(said: str | list[str]) -> None:
        shown.append(said)
        for line in [said] if isinstance(said, str) else said:
            out.print(line)

    def ask_until_it_holds(question: str, yes: bool) -> None:
        ask(question, yes)
        while shown and (said := work(True)) != shown[-1]:
            err.print("this has changed while the question was open:")
            display(said)
            ask(question, yes)

    display(show_and_ask(question, work, display, dry_run=dry_run, yes=yes, ask=ask_until_it_holds))


def lists_of_ids(named: Iterable[str] | None, file: Path | None) -> Iterator[Iterable[str]]:
    """Return an iterator with the named persistence ids and the file's, anew for each time they are needed.

    The first list is checked at once; raises ConfigurationError, also later for a file that has changed since. A
    pipe has only the first one (is_read_twice).
    """
    from tagmill.config.id_lists import ids_of

    version, first = _version(file), ids_of(named, file)

    def later() -> Iterator[Iterable[str]]:
        while True:
            if _version(file) != version:
                raise ConfigurationError(
                    f"{file} has changed since its persistence ids were shown. Nothing was done; run the same "
                    "command again"
                )
            yield ids_of(named, file)

    return chain([first], later())


def _version(file: Path | None) -> tuple[int, int, int] | None:
    """Return what differs after a change of a file; None if there is none."""
    if file is None or not file.exists():
        return None
    stat = file.stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def is_read_twice(file: Path | None) -> bool:
    """Return whether a file may be read once to show something and once to do it: a pipe may not."""
    return file is None or file.is_file()


def deliverable_pipelines(configured: Settings, pipeline: str | None) -> list[str]:
    """Return the named pipeline, or all that deliver (tag views, a topic, a Kafka Journal); raises for one
    that doesn't.
    """
    if pipeline and pipeline not in configured.streams:
        configured.pipeline(pipeline)
    return [pipeline] if pipeline else [*configured.pipelines, *configured.streams]


def tag_view_pipelines(configured: Settings, pipeline: str | None) -> list[str]:
    """Return the named pipeline if it delivers tag views, or all that do."""
    return [name for name in deliverable_pipelines(configured, pipeline) if name in configured.pipelines]
