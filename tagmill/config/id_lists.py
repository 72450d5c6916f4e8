"""Read the persistence ids that a person names: in options or params, and in a file with one id a line.

A file is checked as a whole before its first id is used, and no message shows anything of its content: a
wrong path may lead to a secret.
"""

import unicodedata
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from tagmill.domain import identifiers
from tagmill.errors import ConfigurationError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def ids_of(named: Iterable[str] | None, file: Path | None) -> Iterable[str]:
    """Return the named persistence ids, then those of a person's file; raise ConfigurationError for text that
    can't be an id.
    """
    if file is None:
        return ids_from(named, None, "")
    try:
        stream = file.open("rb")
    except OSError as error:
        raise ConfigurationError(f"{file}: can't be read: {error.strerror}. Nothing was done") from None
    return ids_from(named, stream, str(file))


def ids_from(named: Iterable[str] | None, stream: BinaryIO | None, label: str) -> Iterable[str]:
    """Return the named persistence ids, then those of an open file, which is closed at its end.

    Args:
        named: persistence ids of options or params.
        stream: the open file; a pipe, which can be read only once, is checked while it is read.
        label: what messages call the file.
    """
    checked = [identifiers.key(persistence_id) for persistence_id in named or ()]
    if "" in checked:
        raise ConfigurationError("an empty text is no persistence id. Nothing was done")
    if stream is None:
        return checked
    if stream.seekable():
        for _ in _lines(stream, label):
            pass
        stream.seek(0)
    return chain(checked, _closing(stream, label))


def _closing(stream: BinaryIO, label: str) -> Iterator[str]:
    with stream:
        yield from _lines(stream, label)


def _lines(stream: BinaryIO, label: str) -> Iterator[str]:
    """Yield the ids in the lines of a file, empty lines left out; raise ConfigurationError for a line that
    can't be an id.
    """
    number = 0
    try:
        while line := stream.readline(identifiers.LONGEST_KEY_BYTES + len(BYTE_ORDER_MARK) + 2):
            number += 1
            if persistence_id := _id_of(
                line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line, f"{label}: line {number}"
            ):
                yield persistence_id
    except OSError as error:
        raise ConfigurationError(f"{label}: can't be read: {error.strerror}") from None


def _id_of(line: bytes, label: str) -> str:
    content = line.removesuffix(b"\n").removesuffix(b"\r")
    if len(content) > identifiers.LONGEST_KEY_BYTES:
        raise _no_id(label, f"has more than {identifiers.LONGEST_KEY_BYTES} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise _no_id(label, "is no text in UTF-8") from None
    if any(unicodedata.category(character) == "Cc" for character in text):
        raise _no_id(label, "has a control character")
    return text


def _no_id(label: str, reason: str) -> ConfigurationError:
    return ConfigurationError(
        f"{label} is not a persistence id: it {reason}. Give a file with one persistence id a line"
    )
