"""Write the trace behind a one-line error into a file that only its owner and group can read.

The files are in `_logs` below a storage root that is or can be a folder, else in $XDG_STATE_HOME/tagmill/logs of
this machine.
"""

import os
import re
import secrets
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from tagmill.runs.privacy import make_folder

FOLDER = "_logs"
KEPT_SECONDS = 30 * 86_400


def folder_of(storage_root: str | None) -> Path:
    """Return where traces go; None: the configuration is not known."""
    if storage_root is not None and "://" not in storage_root and _may_be_folder(Path(storage_root)):
        return Path(storage_root) / FOLDER
    return Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser()) / "tagmill" / "logs"


def _may_be_folder(root: Path) -> bool:
    """Return whether a folder is there, or could be made."""
    try:
        return next(path for path in (root, *root.absolute().parents) if path.exists()).is_dir()
    except OSError:  # a name that is too long, or below a folder that may not be read
        return False


def new_file(folder: Path, name: str) -> Path | None:
    """Make an empty log, and remove those that are past KEPT_SECONDS; None where nothing can be written."""
    slug = re.sub(r"[^A-Za-z0-9.]+", "-", name)[:60]
    file = folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{slug}-{os.getpid()}-{secrets.token_hex(3)}.log"
    try:
        make_folder(folder)
        _sweep(folder)
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
    except OSError:
        return None
    return file


def append(file: Path | None, error: BaseException) -> Path | None:
    """Append the trace of an error and of all behind it; the file, None where it can't be written."""
    if file is None:
        return None
    try:
        with file.open("a", encoding="utf-8", errors="backslashreplace") as log:
            log.writelines(_trace(error))
    except OSError:
        return None
    return file


def _trace(error: BaseException) -> Iterator[str]:
    try:
        yield from traceback.format_exception(error)
    except Exception as broken:  # Py4J asks the JVM, which may have ended, for the words of its error
        yield from traceback.format_tb(error.__traceback__)
        yield f"{type(error).__name__}, whose words could not be read: {type(broken).__name__}\n"


def _sweep(folder: Path) -> None:
    """Remove old logs."""
    for file in folder.glob("*.log"):
        with suppress(OSError):
            if file.stat().st_mtime < time.time() - KEPT_SECONDS:
                file.unlink()
