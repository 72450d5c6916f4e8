"""Whether a text names one of the persistence ids that are erased, and the same text without them. Pure."""

import html
import json
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any

ERASED = "(erased)"
# what may stand at the ends of a name: with a letter, digit, _ or - there it is another name
_BOUND = r"[\w-]"


class Names:
    """The persistence ids that are erased, as texts may have them: as they are, or with the escapes of Python or JSON."""

    def __init__(self, persistence_ids: Iterable[str]) -> None:
        self._forms = sorted({form for one in persistence_ids for form in _forms(one)}, key=len, reverse=True)

    def are_in(self, text: str) -> bool:
        """Whether the text names one of them. It may be said of a name that happens to be a word, too."""
        return any(form in text and _pattern(form).search(text) for form in self._forms)

    def are_in_json(self, text: str) -> bool:
        """The same for a JSON document; one that can't be read is taken as a text."""
        try:
            return self.are_in("\n".join(_strings(json.loads(text))))
        except ValueError:
            return self.are_in(text)

    def are_in_page(self, text: str) -> bool:
        """The same for a page."""
        return self.are_in(html.unescape(text))

    def masked(self, text: str) -> str:
        """The text without them."""
        for form in self._forms:
            if form in text:
                text = _pattern(form).sub(ERASED, text)
        return text


def less(checksum: int, gone: Collection[int]) -> int:
    """The checksum of a batch without rows that have these (modulo 2^64)."""
    return (checksum - sum(gone)) % 2**64


def _forms(persistence_id: str) -> Iterator[str]:
    yield persistence_id
    yield repr(persistence_id)[1:-1]
    yield json.dumps(persistence_id)[1:-1]


def _pattern(form: str) -> re.Pattern[str]:
    return re.compile(f"(?<!{_BOUND}){re.escape(form)}(?!{_BOUND})")


def _strings(value: Any) -> Iterator[str]:
    """All texts of a JSON document, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
