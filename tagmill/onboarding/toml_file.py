"""Write a commented configuration file. Pure.

Whatever comes from servers (tags, manifests, names) is quoted, so that it can't end a comment or a value.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tagmill.config.reference_page import toml

SCHEMA_FILE = "tagmill.schema.json"
WIDTH = 110


@dataclass(frozen=True, slots=True)
class Key:
    """A key with its value, and comment lines that stand above it."""

    name: str
    value: Any
    comments: Sequence[str] = ()


@dataclass(slots=True)
class Section:
    """A table of the file with comment lines below its heading."""

    heading: str
    comments: list[str] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)

    def add(self, name: str, value: Any, *comments: str) -> None:
        """Append a key."""
        self.keys.append(Key(name, value, comments))


def quoted(text: object) -> str:
    """Return a text of a server as one line that is safe in a comment."""
    return json.dumps(str(text), ensure_ascii=False).replace("\x7f", "\\u007f")


def render(head: Iterable[str], sections: Iterable[Section]) -> str:
    """Return the text of the file."""
    lines = [f"#:schema ./{SCHEMA_FILE}", *(f"# {line}" for line in head)]
    for section in sections:
        lines += ["", f"[{section.heading}]", *_comments(section.comments)]
        for key in section.keys:
            lines += [*_comments(key.comments), *_assignment(key)]
    return "\n".join(lines) + "\n"


def _comments(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield f"# {' '.join(text.splitlines())}".rstrip()


def _assignment(key: Key) -> Iterator[str]:
    line = f"{key.name} = {toml(key.value)}"
    if len(line) <= WIDTH or not isinstance(key.value, list):
        yield line
        return
    yield f"{key.name} = ["
    yield from (f"    {toml(value)}," for value in key.value)
    yield "]"
