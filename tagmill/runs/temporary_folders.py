"""Folders for a job's temporary files: one each, removed at its end, or by the next job if it was killed.

A folder belongs to the processes that have its lock file open: the job and, where it inherits the lock,
Spark's JVM.
"""

import atexit
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import gettempdir, mkdtemp

from tagmill.errors import ConfigurationError

LOCK = "lock"


@dataclass(frozen=True, slots=True)
class OwnFolder:
    """A job's folder, and the open lock file by which it is known to be in use."""

    path: Path
    lock: int


@contextmanager
def own_folder(parent: str | None = None) -> Iterator[OwnFolder]:
    """Make a folder of this job's own, remove those of killed ones.

    Args:
        parent: where; left out: the machine's folder for temporary files.

    Raises:
        ConfigurationError: the folder for those of all jobs belongs to somebody else.
    """
    home, process = _home(Path(parent or gettempdir())), os.getpid()
    with _locked(home / LOCK):
        _sweep(home)
        path = Path(mkdtemp(prefix="job-", dir=home))
        lock = _lock(path)
    try:
        yield OwnFolder(path, lock)
    finally:
        if os.getpid() == process:  # not in a fork of it
            rmtree(path, ignore_errors=True)
            os.close(lock)


@cache
def of_this_process(parent: str | None) -> OwnFolder:
    """Return the folder that this process has until it ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(own_folder(parent))


def _home(parent: Path) -> Path:
    home = parent / f"tagmill-{os.getuid()}"
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = home.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigurationError(
            f"{home} is not a folder of this user alone. Nothing was done; remove it, or set TMPDIR"
        )
    return home


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    lock = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        flock(lock, LOCK_EX)
        yield
    finally:
        os.close(lock)


def _lock(path: Path) -> int:
    """Open and lock a folder's lock file; raises BlockingIOError while somebody else has it."""
    lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        flock(lock, LOCK_EX | LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise
    return lock


def _sweep(home: Path) -> None:
    """Remove the folders whose processes have ended."""
    for path in home.glob("job-*"):
        try:
            lock = _lock(path)
        except OSError:
            continue
        rmtree(path, ignore_errors=True)
        os.close(lock)
