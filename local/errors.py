"""How the stack's troubles become one clear line each: from a log's tail, from a full disk."""

import errno
import re
import shutil
from pathlib import Path

from tagmill.errors import ConfigurationError, StoreUnavailable, TagmillError

NEEDED_BYTES = 1024**3
# with less than this a server can't write any more
FULL_BYTES = 32 * 1024**2
_TELLING = re.compile(r"error|exception|fatal|no space left|refused|denied", re.I)
_TRACE = re.compile(r"^\s+(at |File |\.\.\. )|^Traceback")


class PartDidNotStart(StoreUnavailable):
    """A server of the stack ended, or didn't answer in time, while it was started."""


class PartEnded(StoreUnavailable):
    """A server of the stack ended by itself while it was needed."""


class PortBusy(ConfigurationError):
    """Another program listens on the port."""


def one_line(log: str, limit: int = 240) -> str:
    """The line of a log that says most about a failure: the last telling one, else the last."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not _TRACE.search(line)]
    telling = [line for line in lines if _TELLING.search(line)]
    return (telling or lines or ["nothing in the log"])[-1][:limit]


def require_space(folder: Path, needed: int = NEEDED_BYTES) -> None:
    """Raise ConfigurationError when the disk of the folder has less than `needed` bytes free."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise ConfigurationError(
            f"the disk of {folder} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed. Nothing was started. "
            "Free some space, or choose another folder with --home or TAGMILL_HOME"
        )


def require_room(folder: Path) -> None:
    """Raise ConfigurationError when the disk of the folder is full."""
    if shutil.disk_usage(folder).free < FULL_BYTES:
        raise ConfigurationError(
            f"the disk of {folder} is full. What was delivered stays. Free some space, then run it again: it goes on where it was"
        )


def explained(error: OSError) -> TagmillError:
    """An operating system error as one that says what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ConfigurationError(f"the disk is full ({error.filename or 'while writing'}). Free some space, then run it again")
    return ConfigurationError(f"{error.filename or 'the operating system'}: {error.strerror or error}")
