"""The lease of a pipeline, which lets one worker at a time in.

The fence keeps data right; the lease only saves work.

A lease expires by TTL unless its holder renews it. A holder on this machine whose process has ended loses it
at once.

The steps of a run, and the attempts of a step, have one owner: each takes the lease from the one before. The row
names the attempt behind the owner, so that an attempt that is still at work knows that it was replaced.
"""

import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import structlog

from tagmill.cassandra.client import Cassandra
from tagmill.domain import identifiers
from tagmill.errors import LeaseTaken, TagmillError, TransientError
from tagmill.ledger.schema_steps import SchemaSteps

log = structlog.get_logger()
# Seconds between attempts to take a lease that another owner holds.
POLL_SECONDS = 1.0
# Immediate retries for a lease without a holder: it expired or was given back between our attempt and our
# read.
FREE_TRIES = 5
# Seconds by which the start of one process may differ, as it is rounded and two clocks are read for it.
START_TOLERANCE_SECONDS = 2
# Owner names of older releases have a start since 1970, which moves when the clock is set; no machine is up
# for this many seconds.
SINCE_1970 = 1_000_000_000
# What follows the owner in a row: the attempt. Rows of older releases have none.
ATTEMPT = re.compile(r"#[0-9a-f]{16}$")


def this_process() -> str:
    """Return the owner name of this process: cli/<host>/<pid>/<seconds from the machine's start to its own>/<pids>.

    Containers that share a host's name have process ids of their own; `pids` tells them apart, where the system does.
    """
    named = ("cli", socket.gethostname(), os.getpid(), f"{_started(psutil.Process()):.0f}", *_pids())
    return "/".join(map(str, named))


def is_dead(owner: str) -> bool:
    """Return whether the owner is a process of this machine that has ended; False if that can't be known."""
    kind, host, *parts = owner.split("/") if owner.count("/") in (3, 4) else ("", "")
    if (kind, host) != ("cli", socket.gethostname()) or tuple(parts[2:]) not in ((), _pids()):
        return False
    try:
        process, started = psutil.Process(int(parts[0])), float(parts[1])
        another = started < SINCE_1970 and abs(_started(process) - started) > START_TOLERANCE_SECONDS
        return another or process.status() == psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ValueError):
        return True


def _pids() -> tuple[str, ...]:
    """Return the number of this process's namespace of process ids, if the system has any."""
    try:
        return (str(os.stat("/proc/self/ns/pid").st_ino),)
    except OSError:
        return ()


def _started(process: psutil.Process) -> float:
    """Return the seconds from the machine's start to the process's, which stay when the clock is set."""
    return float(process.create_time() - psutil.boot_time())


def living_holder(cassandra: Cassandra, keyspace: str, pipeline: str) -> str | None:
    """Return the owner that has a pipeline's lease; None if it is free, or its process is known to have ended."""
    attempt = _holding_attempt(cassandra, _table(keyspace), pipeline)
    owner = None if attempt is None else _owner_of(attempt)
    return None if owner is None or is_dead(owner) else owner


def _table(keyspace: str) -> str:
    return f"{identifiers.cql(keyspace)}.leases"


def _holding_attempt(cassandra: Cassandra, table: str, pipeline: str) -> str | None:
    rows = cassandra.execute(f"SELECT owner FROM {table} WHERE pipeline = ?", pipeline)
    return rows[0].owner if rows else None


def _owner_of(attempt: str) -> str:
    return ATTEMPT.sub("", attempt)


class Lease:
    """The lease of one pipeline for one attempt of an owner."""

    def __init__(self, cassandra: Cassandra, keyspace: str, pipeline: str, owner: str, seconds: int) -> None:
        self.cassandra = cassandra
        self.table = _table(keyspace)
        self.schema = SchemaSteps(cassandra, keyspace)
        self.pipeline = pipeline
        self.owner = owner
        self.attempt = f"{owner}#{secrets.token_hex(8)}"
        self.seconds = seconds
        self._lock = threading.Lock()
        self._given_back = self._was_lost = False

    def take(self, wait_seconds: float = 0) -> None:
        """Take or renew the lease, also from another attempt of this owner.

        Raises LeaseTaken if another owner keeps it for longer than `wait_seconds`, ConfigurationError if the
        ledger is newer than this program.
        """
        self.schema.require_known()
        end = time.monotonic() + wait_seconds
        self._given_back = self._was_lost = False
        free = 0
        while not self._try(from_own=True):
            holder = self.holder()
            if holder is None and free < FREE_TRIES:
                free += 1
                continue
            if time.monotonic() >= end:
                raise LeaseTaken(
                    f"pipeline {self.pipeline}: {holder or 'another run'} is at work. Nothing was done; "
                    f"try again later (a holder that died loses its lease within {self.seconds} s)",
                    pipeline=self.pipeline,
                )
            time.sleep(POLL_SECONDS)

    def holder(self) -> str | None:
        """Return the owner that has the lease; None: it is free."""
        attempt = self.holding_attempt()
        return None if attempt is None else _owner_of(attempt)

    def holding_attempt(self) -> str | None:
        """Return the attempt that has the lease, which begins with its owner; None: it is free."""
        return _holding_attempt(self.cassandra, self.table, self.pipeline)

    def require(self) -> None:
        """Raise LeaseTaken if the lease was lost since it was taken, as by a process that slept, or to another
        attempt: for work that no fence keeps from being done twice.
        """
        if self._was_lost or self.holding_attempt() != self.attempt:
            raise LeaseTaken(
                f"pipeline {self.pipeline}: this process lost its lease, and {self.holder() or 'another one'} may "
                "have been at work since. Nothing more was done; run it again",
                pipeline=self.pipeline,
            )

    def give_back(self) -> None:
        """Give the lease back if this attempt has it, and prevent a renewal under way from taking it again."""
        with self._lock:
            self._given_back = True
            self.cassandra.transact(
                f"DELETE FROM {self.table} WHERE pipeline = ? IF owner = ?",
                self.pipeline,
                self.attempt,
                landed=lambda: True,
            )

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Renew the lease in the background while the block runs; afterwards it stays taken for the run's
        next step.
        """
        done = threading.Event()
        thread = threading.Thread(
            target=self._renew, args=(done,), name=f"lease-{self.pipeline}", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(timeout=5)

    @contextmanager
    def for_a_step(self, wait_seconds: float) -> Iterator[None]:
        """Take the lease and renew it while the block runs; afterwards it stays taken for the run's next
        step.

        An error of Tagmill's that a rerun does not cure gives the lease back. Raises LeaseTaken.
        """
        try:
            self.take(wait_seconds)
            with self.kept():
                yield
        except TransientError:
            raise
        except TagmillError:
            self.give_back()
            raise

    @contextmanager
    def held(self, wait_seconds: float) -> Iterator[None]:
        """Take the lease, renew it while the block runs, and give it back however the block ends; raises
        LeaseTaken.
        """
        self.take(wait_seconds)
        try:
            with self.kept():
                yield
        finally:
            self.give_back()

    def _renew(self, done: threading.Event) -> None:
        while not done.wait(self.seconds / 3):
            try:
                with self._lock:
                    kept = self._given_back or self._renewed()
                if not kept:
                    log.warning(
                        "lease lost; the fence decides whose work counts",
                        pipeline=self.pipeline,
                        owner=self.owner,
                    )
            except TagmillError as error:
                log.warning("lease not renewed", pipeline=self.pipeline, error=str(error))

    def _renewed(self) -> bool:
        """Renew the lease, or take it again if it was lost and is free."""
        if self._taken_from(self.attempt):
            return True
        self._was_lost = True
        return self._try(from_own=False)

    def _try(self, *, from_own: bool) -> bool:
        """Take the lease if it is free, or its holder is dead; `from_own`: also from another attempt of this owner."""
        taken = self.cassandra.transact(
            f"INSERT INTO {self.table} (pipeline, owner, taken_at) VALUES (?, ?, ?) IF NOT EXISTS USING "
            "TTL ?",
            self.pipeline,
            self.attempt,
            self.cassandra.now(),
            self.seconds,
            landed=lambda: False,
        )
        if taken:
            return True
        attempt = self.holding_attempt()
        if attempt is None:
            return False
        owner = _owner_of(attempt)
        may_take = attempt == self.attempt or (from_own and owner == self.owner) or is_dead(owner)
        return may_take and self._taken_from(attempt)

    def _taken_from(self, attempt: str) -> bool:
        """Take the lease for its whole time if that attempt has it, which may be this one; return whether it did."""
        return self.cassandra.transact(
            f"UPDATE {self.table} USING TTL ? SET owner = ?, taken_at = ? WHERE pipeline = ? IF owner = ?",
            self.seconds,
            self.attempt,
            self.cassandra.now(),
            self.pipeline,
            attempt,
            landed=lambda: self.holding_attempt() == self.attempt,
        )
