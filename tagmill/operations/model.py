"""Define what a declaration of an operation consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import EnumMeta
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tagmill.config.settings import Settings
from tagmill.errors import ConfigurationError
from tagmill.operations.work_size import HasFewRows, few_events, never

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Kind = Literal["tag_views", "topic", "kafka_journal"]
# A key of the application's tables: not empty, and without the character NUL.
Key = Annotated[str, Field(min_length=1, pattern="^[^\\u0000]*$")]


@dataclass(frozen=True)
class Option:
    """How the command line takes a parameter, if not as an option of its name.

    `file`: a further option, which names a file with one value a line.
    """

    flag: str
    file: str | None = None


class OnlyInForm:
    """Mark a parameter that the command line takes in another way."""


def require_reason(why: str | None, *, dry_run: bool) -> None:
    """Raise ConfigurationError if a change that the ledger records has no reason; a dry run needs none."""
    if not dry_run and not (why or "").strip():
        raise ConfigurationError(
            "why is empty; give --why, in Airflow the param why: the ledger records it. Nothing was changed"
        )


class Parameters(BaseModel):
    """The parameters of an operation.

    Each field has a title and a description. What a form sends for an emptied field (null, an empty text) is
    the field's default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_emptied(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None and value != ""}

    @classmethod
    def of(cls, given: dict[str, Any]) -> Self:
        """Return the parameters with these values; raises ConfigurationError for a value that can't be."""
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = str(first["loc"][0])
            reason = f"{name}: {first['msg']}"
            if first["type"] == "missing":
                choice: Any = cls.model_fields[name].annotation
                values = f" to one of {', '.join(choice)}" if isinstance(choice, EnumMeta) else ""
                reason = f"set {name}{values}"
            raise ConfigurationError(f"{reason}. Nothing was changed") from None

    def check(self, *, dry_run: bool) -> None:
        """Raise ConfigurationError if the parameters contradict each other, or one is missing."""


class NoParameters(Parameters):
    """The parameters of an operation that has none."""


P = TypeVar("P", bound=Parameters)
R = TypeVar("R")


@dataclass(frozen=True)
class Work:
    """One execution of an operation.

    Args:
        owner: the process that holds the leases.
        who: the person or the DAG run, for the record.
        dry_run: whether to look only.
        tell: shows what is being done.
        spark: returns the Spark session, which begins with the first call.
        shown: what the dry run before it returned, in the same process; None if there was none.
    """

    settings: Settings
    pipeline: str
    owner: str
    who: str
    dry_run: bool
    tell: Callable[[str], None]
    spark: Callable[[], SparkSession]
    shown: Any = None

    def do(self, function: Callable[..., R], **more: Any) -> R:
        """Call a function of the library with what all of them take, and with `more`."""
        by = {"owner": self.owner, "dry_run": self.dry_run, "tell": self.tell}
        return function(self.settings, self.pipeline, **by, **more)


@dataclass(frozen=True)
class Operation(Generic[P]):
    """Operation on a pipeline.

    Args:
        name: as the command line has it.
        kind: of the pipelines that have it.
        description: what it does, in the third person, for the form.
        parameters: the model of its parameters.
        step: its name in reports of jobs; empty if it has none.
        run: does it, and returns the report; None if Airflow does it in the worker's own process.
        changes: False if it only reads, so that there is nothing to approve.
        kafka: whether its job logs in to Kafka, besides Cassandra and ClickHouse.
        told: returns what a job's report says of what `run` returned, if not all of it.
        from_dry_run: names of parameters that a dry run decides where they are left out, as its report has them; the
            change that was shown by it takes these.
        require: raises the error of what `run` returned if the operation did not do what it is for.
        has_few_rows: returns whether it has so little to read that its session suits that.
        needs_no_spark: returns whether it is likely to need no session at all.
    """

    name: str
    kind: Kind
    description: str
    parameters: type[P]
    step: str = ""
    run: Callable[[Work, P], Any] | None = None
    changes: bool = True
    kafka: bool = False
    told: Callable[[Any], dict[str, Any]] | None = None
    from_dry_run: tuple[str, ...] = ()
    require: Callable[[Any], None] | None = None
    has_few_rows: HasFewRows = few_events
    needs_no_spark: HasFewRows = never
