"""Attempts of a pipeline that failed in a row: written by each step that fails, deleted by the run that
succeeds.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tagmill.cassandra.client import Cassandra, needs_tables, utc
from tagmill.config.settings import Settings
from tagmill.domain import clock, identifiers
from tagmill.domain.verdict import Failure
from tagmill.errors import FenceRaised, LeaseTaken, TagmillError, TransientError

MAX_ERROR_CHARACTERS = 400
# another attempt is at work, which will succeed or fail by itself
NOT_FAILURES = (LeaseTaken, FenceRaised)
LOGIN_IN_URL = re.compile(r"(?<=://)[^/\s@]+@")


class Failures:
    """The failures of one pipeline."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, pipeline: str) -> None:
        self.cassandra = cassandra
        self.pipeline = pipeline
        self.table = f"{identifiers.cql(ledger_keyspace)}.failures"
        needs_tables(cassandra, ledger_keyspace, ["failures"])

    def current(self) -> Failure | None:
        """Return the failures since the last success."""
        fields = "times, since, step, run, error, passing"
        rows = self.cassandra.execute(f"SELECT {fields} FROM {self.table} WHERE pipeline = ?", self.pipeline)
        if not rows or not rows[0].times:
            return None
        row = rows[0]
        return Failure(row.times, utc(row.since), row.step, row.run, row.error or "", bool(row.passing))

    def note(self, step: str, run: int | None, error: str, *, passing: bool) -> None:
        """Count one more failure, of which the text is kept. The caller holds the pipeline's lease."""
        before, now = self.current(), clock.earliest(self.cassandra.clocks)
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, times, since, at, step, run, error, passing) VALUES "
            "(?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    self.pipeline,
                    before.times + 1 if before else 1,
                    before.since if before else now,
                    now,
                    step,
                    run,
                    error,
                    passing,
                )
            ],
        )

    def clear(self) -> None:
        """Forget them: a run succeeded, or there is nothing to do."""
        if self.current():
            self.cassandra.write_many(f"DELETE FROM {self.table} WHERE pipeline = ?", [(self.pipeline,)])

    def amend(self, masked: Callable[[str], str]) -> None:
        """Rewrite the text that `masked` changes."""
        failure = self.current()
        if failure and (text := masked(failure.error)) != failure.error:
            self.cassandra.write_many(
                f"UPDATE {self.table} SET error = ? WHERE pipeline = ?", [(text, self.pipeline)]
            )


@contextmanager
def noted(
    settings: Settings, cassandra: Cassandra, pipeline: str, step: str, run: int | None = None
) -> Iterator[None]:
    """Note the failure of a step (empty: of none) and raise it again.

    A ledger that cannot be written hides no error of the step.
    """
    try:
        yield
    except NOT_FAILURES:
        raise
    except Exception as error:
        with suppress(TagmillError):
            if step:
                failures = Failures(cassandra, settings.cassandra.ledger_keyspace, pipeline)
                failures.note(
                    step, run, safe_text(error, settings), passing=isinstance(error, TransientError)
                )
        raise


def forget_failures(settings: Settings, cassandra: Cassandra, pipeline: str) -> None:
    """Forget a pipeline's failures after a success, which a ledger without that table does not spoil."""
    with suppress(TagmillError):
        Failures(cassandra, settings.cassandra.ledger_keyspace, pipeline).clear()


def safe_text(error: Exception, settings: Settings) -> str:
    """Return the first line of an error, without passwords."""
    text = str(error) if isinstance(error, TagmillError) else f"{type(error).__name__}: {error}"
    line = LOGIN_IN_URL.sub("***@", next(iter(text.strip().splitlines()), ""))
    for store in (settings.cassandra, settings.clickhouse, settings.kafka):
        if store.password and (secret := store.password.get_secret_value()):
            line = line.replace(secret, "***")
    return identifiers.shortened(line, MAX_ERROR_CHARACTERS)
