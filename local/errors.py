"""Turn the stack's failures into one clear line each: from a log's tail, from a full disk."""

import errno
import re
import shutil
from pathlib import Path

from tagmill.errors import ConfigurationError, StoreUnavailable, TagmillError

NEEDED_BYTES = 1024**3
# With fewer free bytes than this, a server can no longer write.
FULL_BYTES = 32 * 1024**2
_TELLING = re.compile(r"error|exception|fatal|no space left|refused|denied", re.I)
_TRACE = re.compile(r"^\s+(at |File |\.\.\. )|^Traceback")


class PartDidNotStart(StoreUnavailable):
    """A server of the stack ended, or didn't answer in time, during its start."""


class PartEnded(StoreUnavailable):
    """A server of the stack ended by itself while it was needed."""


class PortBusy(ConfigurationError):
    """Another program listens on the port."""


def one_line(log: str, limit: int = 240) -> str:
    """Return the log's last line that names an error, or its last line if none does, cut to `limit`
    characters.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip() and not _TRACE.search(line)]
    telling = [line for line in lines if _TELLING.search(line)]
    return (telling or lines or ["nothing in the log"])[-1][:limit]


def require_space(folder: Path, needed: int = NEEDED_BYTES) -> None:
    """Raise ConfigurationError if the folder's disk has less than `needed` bytes free."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise ConfigurationError(
            f"the disk of {folder} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB are needed. "
            "Nothing was started. "
            "Free some space, or choose another folder with --home or TAGMILL_HOME"
        )


def require_room(folder: Path) -> None:
    """Raise ConfigurationError if the folder's disk is full (less than FULL_BYTES free)."""
    if shutil.disk_usage(folder).free < FULL_BYTES:
        raise ConfigurationError(
            f"the disk of {folder} is full. What was delivered stays. Free some space, then run it "
            "again: it goes on where it was"
        )


def explained(error: OSError) -> TagmillError:
    """Return an operating system error as a ConfigurationError; for a full disk it says what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ConfigurationError(
            f"the disk is full ({error.filename or 'while writing'}). Free some space, then run it again"
        )
    return ConfigurationError(f"{error.filename or 'the operating system'}: {error.strerror or error}")
