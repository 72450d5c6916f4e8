"""Files that the params of a DAG name: regular files of one configured folder, of limited size, and no link
out of it.

A person who may trigger a DAG must not read the worker's files with the worker's rights.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from tagmill.config.id_lists import ids_from
from tagmill.config.settings import AirflowSettings
from tagmill.domain.identifiers import quoted
from tagmill.errors import ConfigurationError

FILE_PARAM = "persistence_ids_file"
# O_NONBLOCK: a pipe without a writer must not keep the task waiting.
FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def ids_of(params: Mapping[str, Any], section: AirflowSettings) -> Iterable[str]:
    """Return the persistence ids that the params name; raises ConfigurationError for an invalid one before
    any is used.
    """
    name = params[FILE_PARAM]
    stream = open_input(FILE_PARAM, name, section) if name else None
    return ids_from(params["persistence_ids"], stream, f"param {FILE_PARAM}")


def open_input(param: str, name: str, section: AirflowSettings) -> BinaryIO:
    """Open a file of the configured folder that a param names, by its path in it; raises ConfigurationError
    for any other.
    """
    if section.input_dir is None:
        raise _refused(
            param, name, "no param names a file until [airflow] input_dir names the folder for them"
        )
    relative = PurePosixPath(name)
    if relative.is_absolute() and relative.is_relative_to(section.input_dir):
        relative = relative.relative_to(section.input_dir)
    if relative.is_absolute() or ".." in relative.parts or "\0" in name or not relative.parts:
        raise _refused(param, name, "it is not in the folder of [airflow] input_dir")
    try:
        descriptor = _open_below(section.input_dir, relative)
    except OSError as error:
        reason = (
            "the folder of [airflow] input_dir has no such file to read, links are not followed "
            f"({error.strerror})"
        )
        raise _refused(param, name, reason) from None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= section.input_max_bytes:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISREG(status.st_mode):
        raise _refused(
            param,
            name,
            f"it has {status.st_size} bytes, [airflow] input_max_bytes is {section.input_max_bytes}",
        )
    raise _refused(param, name, "it is not a regular file")


def digest(param: str, name: str, section: AirflowSettings) -> str:
    """Return the SHA-256 of a file that a param names; raises ConfigurationError as open_input does."""
    with open_input(param, name, section) as stream:
        content = hashlib.sha256()
        while piece := stream.read(1 << 20):
            content.update(piece)
        return content.hexdigest()


def _open_below(folder: Path, relative: PurePosixPath) -> int:
    """Open a path below the folder part by part, so that no part is a link, not even one that is made
    meanwhile.
    """
    descriptor = os.open(folder.resolve(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in relative.parts:
        above = descriptor
        try:
            descriptor = os.open(part, FLAGS, dir_fd=above)
        finally:
            os.close(above)
    return descriptor


def _refused(param: str, name: str, reason: str) -> ConfigurationError:
    return ConfigurationError(f"param {param}: {quoted([name])} is not read: {reason}. Nothing was done")
