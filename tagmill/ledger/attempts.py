"""Count attempts that began and never ended: a process that is killed records no failure.

An attempt is counted when it begins, under the lease, and taken back when it ends in order. So the
earlier ones of those counted were killed, or lost Cassandra until another process took over.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID, uuid4

from tagmill.cassandra.client import Cassandra, needs_tables, utc
from tagmill.config.settings import Settings
from tagmill.domain import clock, identifiers
from tagmill.domain.verdict import Unended
from tagmill.errors import ConfigurationError, TagmillError

# Seconds after which the last of a row of attempts is forgotten: 30 days. Without it, a rebuild that was killed
# and given up would be shown for good.
FORGOTTEN_AFTER = 30 * 24 * 3600


def of_builds(pipeline: str) -> str:
    """Return the name under which builds of a pipeline's view are recorded, apart from its deliveries."""
    return f"{pipeline}/build"


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """The attempts since the last success; `attempt` is the newest one that began."""

    begun: int
    since: datetime
    attempt: UUID
    step: str


class Attempts:
    """The attempts of one pipeline, or of the builds of its view (of_builds)."""

    def __init__(self, cassandra: Cassandra, ledger_keyspace: str, name: str) -> None:
        self.cassandra = cassandra
        self.name = name
        self.table = f"{identifiers.cql(ledger_keyspace)}.attempts"
        needs_tables(cassandra, ledger_keyspace, ["attempts"])

    def current(self) -> AttemptRow | None:
        """Return the attempts since the last success; None: none began, or all ended in order."""
        rows = self.cassandra.execute(
            f"SELECT begun, since, attempt, step FROM {self.table} WHERE pipeline = ?", self.name
        )
        if not rows or not rows[0].begun:
            return None
        return AttemptRow(rows[0].begun, utc(rows[0].since), rows[0].attempt, rows[0].step)

    def begin(self, step: str) -> UUID:
        """Count one more attempt. The caller holds the lease."""
        before, attempt = self.current(), uuid4()
        since = before.since if before else clock.earliest(self.cassandra.clocks)
        self._write(AttemptRow(before.begun + 1 if before else 1, since, attempt, step))
        return attempt

    def end(self, attempt: UUID, *, succeeded: bool) -> None:
        """Take an attempt back, with those before it if it succeeded; unless another one has taken over."""
        row = self.current()
        if row is None or row.attempt != attempt:
            return
        if succeeded or row.begun == 1:
            self.cassandra.write_many(f"DELETE FROM {self.table} WHERE pipeline = ?", [(self.name,)])
        else:
            self._write(replace(row, begun=row.begun - 1))

    def _write(self, row: AttemptRow) -> None:
        self.cassandra.write_many(
            f"INSERT INTO {self.table} (pipeline, begun, since, attempt, step) VALUES (?, ?, ?, ?, ?) "
            "USING TTL ?",
            [(self.name, row.begun, row.since, row.attempt, row.step, FORGOTTEN_AFTER)],
        )


@contextmanager
def counted(settings: Settings, cassandra: Cassandra, name: str, step: str) -> Iterator[None]:
    """Count a step (empty: none) as begun until it ends with success, an error or Ctrl-C.

    A ledger that cannot be written stops no step. Any other exception ends the process without a word.
    """
    attempts, attempt = None, None
    with suppress(TagmillError):
        if step:
            attempts = Attempts(cassandra, settings.cassandra.ledger_keyspace, name)
            attempt = attempts.begin(step)
    try:
        yield
    except (Exception, KeyboardInterrupt):
        _end(attempts, attempt, succeeded=False)
        raise
    _end(attempts, attempt, succeeded=True)


def unended(cassandra: Cassandra, ledger_keyspace: str, name: str) -> tuple[Unended, ...]:
    """Return the attempts that did not end, as one fact; none in a ledger of before, without that table."""
    try:
        row = Attempts(cassandra, ledger_keyspace, name).current()
    except ConfigurationError:
        return ()
    return (Unended(row.step, row.begun, row.since),) if row else ()


def _end(attempts: Attempts | None, attempt: UUID | None, *, succeeded: bool) -> None:
    with suppress(TagmillError):
        if attempts and attempt:
            attempts.end(attempt, succeeded=succeeded)
