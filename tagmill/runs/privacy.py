"""Who may read what jobs write: its owner and the owner's group, others nothing."""

import os
from pathlib import Path
from typing import TextIO

# files 0640, folders 0750
UMASK = 0o027


def keep_from_others() -> None:
    """Let this process, and those that it starts, write nothing that others may read."""
    os.umask(os.umask(UMASK) | UMASK)


def private_file(file: Path) -> TextIO:
    """Open a new file to write to that only this user may read."""
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, whatever the process's umask is."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o777 & ~UMASK, exist_ok=True)


def make_file(file: Path) -> None:
    """Make an empty file, which a writer then fills, in a folder that is made, too."""
    make_folder(file.parent)
    os.close(os.open(file, os.O_WRONLY | os.O_CREAT, 0o666 & ~UMASK))
