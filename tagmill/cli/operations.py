"""Make commands from the declarations of operations: their options, and how they are shown, asked and done."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from enum import StrEnum
from functools import partial, wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from tagmill.cli.shared import confirm, one_line_errors, person, settings, show_and_ask, telling
from tagmill.operations.model import OnlyInForm, Operation, Option, Parameters, Work

P = TypeVar("P", bound=Parameters)
R = TypeVar("R")
DAY, SECOND = "%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"
FORMATS: dict[Any, list[str]] = {date: [DAY], datetime: [DAY, SECOND, f"{SECOND}Z"]}


def command(function: Callable[..., R]) -> Callable[..., R]:
    """Decorate a command whose argument `parameters` is a model of an operation's parameters.

    On the command line each field of the model is an option of its own. An error ends the command with one
    line (one_line_errors).
    """
    signature = inspect.signature(function, eval_str=True)
    model = signature.parameters["parameters"].annotation
    options = [option for name, field in model.model_fields.items() for option in _options(name, field)]

    @wraps(function)
    def wrapped(**given: Any) -> R:
        values = {option.name: given.pop(option.name) for option in options}
        return function(parameters=_read(model, values), **given)

    expanded = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in signature.parameters.values()
        for option in (options if parameter.name == "parameters" else [parameter])
    ]
    wrapped.__signature__ = signature.replace(parameters=expanded)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {option.name: option.annotation for option in expanded}
    return one_line_errors(wrapped)


def _options(name: str, field: FieldInfo) -> list[inspect.Parameter]:
    """Return a field's options, as parameters of a command: none, one, or one and one for a file."""
    if any(isinstance(mark, OnlyInForm) for mark in field.metadata):
        return []
    dashed = Option(f"--{name.replace('_', '-')}")
    flag = next((mark for mark in field.metadata if isinstance(mark, Option)), dashed)
    kind = next(kind for kind in (*get_args(field.annotation), field.annotation) if kind is not NoneType)
    given: dict[str, Any] = {"help": field.description}
    if get_origin(field.annotation) is list:
        item = kind if isinstance(kind, type) and issubclass(kind, StrEnum) else str
        kind, given["help"] = list[item] | None, f"{field.description} Repeatable."  # type: ignore[valid-type]
    elif kind in FORMATS:
        kind, given["formats"] = datetime | None, FORMATS[kind]
    elif kind is not bool and field.default is None:
        kind = kind | None
    if minimum := next((mark.ge for mark in field.metadata if hasattr(mark, "ge")), None):
        given["min"] = minimum
    default = inspect.Parameter.empty if field.is_required() else field.default
    option = _option(
        name, Annotated[kind, typer.Option(flag.flag, **given)], None if default == [] else default
    )
    if not flag.file:
        return [option]
    from_file = typer.Option(
        flag.file,
        help=f"Only the {name} in this file, one a line (UTF-8).",
        exists=True,
        dir_okay=False,
    )
    return [option, _option(f"{name}_file", Annotated[Path | None, from_file], None)]


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _read(model: type[P], values: dict[str, Any]) -> P:
    """Return the parameters that options give; a moment without a zone is in UTC."""
    from tagmill.config.id_lists import ids_of

    given: dict[str, Any] = {}
    for name, value in values.items():
        field = name.removesuffix("_file")
        if field != name and field in model.model_fields:
            if value is not None:
                given[field] = list(ids_of(given.get(field), value))
        elif isinstance(value, datetime):
            of_day = date in get_args(model.model_fields[name].annotation)
            given[name] = value.date() if of_day else value.replace(tzinfo=UTC)
        else:
            given[name] = value
    return model.of(given)


def run(
    operation: Operation[P],
    pipeline: str,
    parameters: P,
    question: str,
    display: Callable[[Any], None],
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    ask: Callable[[str, bool], None] = confirm,
) -> Any:
    """Run an operation: show on a terminal what it would change, ask, do it, show what it did, and return that.

    `display` shows a report; with `as_json` it is printed as one JSON document. `question` and `ask` are as
    show_and_ask takes them.
    """
    parameters.check(dry_run=dry_run)
    with working(operation, pipeline, parameters) as work:
        done = show_and_ask(question, work, display, dry_run=dry_run, yes=yes, shown=not as_json, ask=ask)
    print(done.model_dump_json()) if as_json else display(done)
    return done


@contextmanager
def working(operation: Operation[P], pipeline: str, parameters: P) -> Iterator[Callable[[bool], Any]]:
    """Yield a function that does an operation, given whether it is a dry run, and returns the report.

    Raises ConfigurationError if the configuration has no such pipeline of the operation's kind.
    """
    from tagmill.ledger.lease import this_process
    from tagmill.spark.session import session_when_asked

    configured = settings()
    {
        "tag_views": configured.pipeline,
        "topic": configured.topic,
        "kafka_journal": configured.kafka_journal,
    }[operation.kind](pipeline)
    name = f"tagmill {operation.name} {pipeline}"
    few = partial(operation.has_few_rows, configured, pipeline)
    with session_when_asked(configured, name, has_few_rows=few) as spark:
        shown: Any = None
        wanted = parameters

        def work(dry_run: bool) -> Any:
            nonlocal shown, wanted
            assert operation.run is not None
            with telling(pipeline, operation.name) as tell:
                by = (this_process(), person())
                this = Work(configured, pipeline, *by, dry_run, tell, spark, shown)
                done = operation.run(this, wanted)
            shown = done if dry_run else None
            if dry_run:
                wanted = wanted.model_copy(
                    update={name: getattr(done, name) for name in operation.from_dry_run}
                )
            return done

        yield work
