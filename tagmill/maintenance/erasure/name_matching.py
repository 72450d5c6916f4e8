"""Finds erased persistence ids in texts, and masks them. Pure."""

import html
import json
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from typing import Any

from tagmill.domain.identifiers import CUT

ERASED = "(erased)"
# Next to one of these characters (letter, digit, _ or -) a match is part of another name.
_BOUND = r"[\w-]"
# Where a text was cut off, maybe within a quoted name.
_MARK = re.compile(f"['\"]?{CUT}")
# Lengths of texts that earlier versions cut off without a mark.
UNMARKED_LENGTHS = (400, 1000)
# Fewer characters of a name tell nothing of it, and are masked nowhere.
SHORTEST_START = 4


class ErasedNames:
    """Erased persistence ids in the forms that texts may have: plain, or with the escapes of Python or
    JSON.
    """

    def __init__(self, persistence_ids: Iterable[str]) -> None:
        self._forms = sorted({form for one in persistence_ids for form in _forms(one)}, key=len, reverse=True)

    def are_in(self, text: str) -> bool:
        """Return True if the text names one of the persistence ids, or has a word that is spelled like
        one.
        """
        return any(form in text and _pattern(form).search(text) for form in self._forms) or (
            CUT in text and self._with_starts_masked(text) != text
        )

    def are_in_json(self, text: str) -> bool:
        """Return True if a JSON document names one in a key or a value.

        Any other text is searched as it is, and each of its lines that is JSON as such, too.
        """
        try:
            return self.are_in("\n".join(_strings(json.loads(text))))
        except ValueError:
            return self.are_in("\n".join([text, *_strings_of_lines(text)]))

    def are_in_page(self, text: str) -> bool:
        """Return True if an HTML page names one, its entities resolved."""
        return self.are_in(html.unescape(text))

    def masked(self, text: str) -> str:
        """Return the text with every persistence id replaced by ERASED, also one that was cut off."""
        text = self._with_starts_masked(text)
        for form in self._forms:
            if form in text:
                text = _pattern(form).sub(ERASED, text)
        return text

    def _with_starts_masked(self, text: str) -> str:
        """Return the text with ERASED in place of the beginning of a name in front of each cut."""
        for end in _cuts(text):
            size = max((_length_of_start(form, text, end) for form in self._forms), default=0)
            if size:
                text = f"{text[: end - size]}{ERASED}{text[end:]}"
        return text


def _cuts(text: str) -> list[int]:
    """Return the places in a text where something was cut off, the last one first."""
    marked = [found.start() for found in _MARK.finditer(text)]
    return [*([len(text)] if len(text) in UNMARKED_LENGTHS else []), *reversed(marked)]


def _length_of_start(form: str, text: str, end: int) -> int:
    """Return how many characters of a form, but not all, stand in front of `end`; 0 if fewer than
    SHORTEST_START.
    """
    for size in range(min(len(form) - 1, end), SHORTEST_START - 1, -1):
        begin = end - size
        if text.startswith(form[:size], begin) and not re.match(_BOUND, text[begin - 1 : begin]):
            return size
    return 0


def less(checksum: int, gone: Collection[int]) -> int:
    """Return the checksum (modulo 2^64) of a batch without the rows whose checksums are `gone`."""
    return (checksum - sum(gone)) % 2**64


def _forms(persistence_id: str) -> Iterator[str]:
    yield persistence_id
    yield repr(persistence_id)[1:-1]
    yield json.dumps(persistence_id)[1:-1]


def _pattern(form: str) -> re.Pattern[str]:
    return re.compile(f"(?<!{_BOUND}){re.escape(form)}(?!{_BOUND})")


def _strings_of_lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        with suppress(ValueError, RecursionError):
            yield from _strings(json.loads(line))


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings of a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
