"""The errors that Tagmill raises on purpose. Their types say whether a rerun helps or a person has to act.

The exit code is what a job or a command ends with: 1 a defect, 2 wrong input or configuration, 3 data
quality, 75 transient.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, Self, TypeVar
from uuid import UUID

# What to do after a fault that passes.
AGAIN = "Run the same command again; every step is safe to repeat"


class TagmillError(Exception):
    """The base of all errors.

    The message names pipeline, run, batch or key, the cause, what was left untouched and what to do next.
    `pipeline`, `run` (its number) and `batch` (its id) are those of the message, as far as the error is about
    one.
    """

    exit_code = 1
    # The file with the trace of the cause, if the cause says more than the message.
    trace_file: Path | None = None

    def __init__(
        self,
        *args: object,
        pipeline: str | None = None,
        run: int | None = None,
        batch: UUID | str | None = None,
    ) -> None:
        super().__init__(*args)
        self.pipeline = pipeline
        self.run = run
        self.batch = None if batch is None else str(batch)

    @property
    def line(self) -> str:
        """Return the message and, if there is one, the file with the trace."""
        return f"{self} (trace: {self.trace_file})" if self.trace_file else str(self)


class UnexpectedError(TagmillError):
    """A defect of Tagmill, or a situation that Tagmill doesn't know."""


class TerminalError(TagmillError):
    """A rerun alone won't help: a person has to change something first."""

    exit_code = 2


class TransientError(TagmillError):
    """A rerun of the same step may succeed, and is safe."""

    exit_code = 75


class UnknownOutcome(TransientError):
    """The server may or may not have done it. A rerun reads back what happened before it acts."""


class ConfigurationError(TerminalError):
    """A key of the configuration, or what it points to, is wrong."""


class LoginRefused(ConfigurationError):
    """A server refused the user name, the password, or the certificate that stands for them."""


class ClientCertificateRefused(ConfigurationError):
    """A server asks for a client certificate, or for another one than it was shown."""


class PropertyRefused(ConfigurationError):
    """librdkafka takes no such property, or no such value, from `kafka.properties`."""


class DatacenterUnknown(ConfigurationError):
    """Cassandra has no datacenter of the configured name."""


class LedgerNewer(ConfigurationError):
    """A newer Tagmill has changed the ledger: install that version, or a later one."""


class ViewNotBuilt(ConfigurationError):
    """Tagmill keeps the view of this journal and never built it: first `tagmill views build`."""


class ViewDiffers(ConfigurationError):
    """The configuration names another view of the journal than the one in force: another table or bucket size."""


class PersistenceIdsUnknown(ConfigurationError):
    """None of the named persistence ids is in the journal: there was nothing to do."""


class GuardRefused(TerminalError):
    """A dangerous command was refused; the message names what would have to hold, or the flag that overrides
    it.
    """


class WorkUnfinished(GuardRefused):
    """Earlier work is open and comes first: a run (`run` is its number), a build, a cleanup or an erasure."""


class LedgerOutdated(GuardRefused):
    """The ledger is older than ClickHouse, as after a restore: first `tagmill ledger restore`."""


class ForeignWriteTime(GuardRefused):
    """Another program has written a row of the ledger: first `tagmill ledger restore`."""


class JournalRecreated(GuardRefused):
    """The journal's tables were created again and may hold another life: a person has to decide."""


class TopicRecreated(GuardRefused):
    """A Kafka topic was created again under its name: a person has to decide."""


class RecordsLost(GuardRefused):
    """Kafka deleted records before they were read: a person has to accept it."""


class ApplicationAtWork(GuardRefused):
    """The application numbered events during work that needs it stopped."""


class ClockDiffers(TerminalError):
    """The clocks of this machine and of the servers differ by more than the limit; nothing was written."""


class LeaseTaken(TransientError):
    """Another run of the same pipeline is under way."""


class FenceRaised(TransientError):
    """The run was taken over while this step slept; nothing that this step did counts."""


class StoreUnavailable(TransientError):
    """Cassandra or ClickHouse did not answer within the time limit."""

    def leaving(self, untouched: str) -> Self:
        """Return the error with what its operation knows to be untouched, if a client only says to run it again."""
        said = str(self)
        if not said.endswith(f". {AGAIN}") or untouched in said:
            return self
        return type(self)(
            f"{said.removesuffix(AGAIN)}{untouched}. {AGAIN}",
            pipeline=self.pipeline,
            run=self.run,
            batch=self.batch,
        )


class SparkEnded(TransientError):
    """Spark could not go on: its JVM or a Python worker ended, or there was no memory or disk left."""


class DataQualityStop(TagmillError):
    """The quality gate stopped the run before anything was sealed; `docs_page` shows why."""

    exit_code = 3

    def __init__(
        self,
        message: str,
        docs_page: str | None = None,
        *,
        pipeline: str | None = None,
        run: int | None = None,
    ) -> None:
        super().__init__(message, pipeline=pipeline, run=run)
        self.docs_page = docs_page


class AuditDiffers(DataQualityStop):
    """An audit found differences; it changed nothing."""


class EventsMissing(TagmillError):
    """A query met a gap in the numbers of a persistence_id, where the plugin's own stream fails."""

    exit_code = 3


class PersistenceIdsRefused(TagmillError):
    """A guard refused some persistence ids: they were left as they are, and the others are done."""

    exit_code = 3


class BatchDiffers(TerminalError):
    """ClickHouse's rows of a batch are not the sealed file's rows."""


class ViewsUnknown(TerminalError):
    """A batch is in ClickHouse, and views that depend on its table may lack it: a person has to decide."""


class SealedFileDamaged(TerminalError):
    """A sealed file's bytes are not those that the manifest names; nothing of it was sent."""


class DestinationDiffers(ConfigurationError):
    """The destination table's columns are not those that Tagmill writes."""


P = ParamSpec("P")
R = TypeVar("R")


def about_pipeline(operation: Callable[P, R]) -> Callable[P, R]:
    """Decorate an operation so that its errors carry its arguments `pipeline` and `run` (about)."""
    signature = inspect.signature(operation)

    @wraps(operation)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        given = signature.bind(*args, **kwargs).arguments
        with about(pipeline=given["pipeline"], run=given.get("run")):
            return operation(*args, **kwargs)

    return wrapped


@contextmanager
def about(
    *, pipeline: str | None = None, run: int | None = None, batch: UUID | str | None = None
) -> Iterator[None]:
    """Fill in pipeline, run and batch of a TagmillError that has been raised without them."""
    try:
        yield
    except TagmillError as error:
        error.pipeline = pipeline if error.pipeline is None else error.pipeline
        error.run = run if error.run is None else error.run
        error.batch = str(batch) if error.batch is None and batch is not None else error.batch
        raise
