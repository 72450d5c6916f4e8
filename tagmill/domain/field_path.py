"""Read and write paths of fields in the configuration: names joined by dots, a name with a dot in it in
double quotes. Pure.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

QUOTED = re.compile(r'"((?:[^"\\]|\\["\\])*)"')
BARE = re.compile(r'[^."][^.]*')
RULE = (
    'names have a dot between them, and one with a dot in it is in double quotes: attributes."service.name"'
)


def split(path: str) -> list[str]:
    """Split a path into its names, without quotes; raises ValueError if it is not a path."""
    names, at = list[str](), 0
    while True:
        if match := QUOTED.match(path, at):
            names.append(re.sub(r"\\(.)", r"\1", match[1]))
        elif match := BARE.match(path, at):
            names.append(match[0])
        else:
            fault = "a quote is left open" if path.startswith('"', at) else "a name is missing"
            raise ValueError(f"{path!r} is no path of a field: {fault} at character {at + 1}; {RULE}")
        at = match.end()
        if at == len(path):
            return names
        if path[at] != ".":
            raise ValueError(
                f"{path!r} is no path of a field: a dot is missing at character {at + 1}; {RULE}"
            )
        at += 1


def join(names: Sequence[str]) -> str:
    """Return the path of these names, with quotes only where they are needed."""
    return ".".join(name if BARE.fullmatch(name) else _in_quotes(name) for name in names)


def _in_quotes(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def field_path(path: str) -> str:
    """Return a path in the form in which `join` writes it; raises ValueError if it is not a path."""
    return join(split(path))


def nearest(path: str, paths: Iterable[str]) -> str | None:
    """Return the path that is most similar to this one, apart from case and quotes; None if no path is
    similar.
    """
    plain = {_plain(one): one for one in sorted(paths)}
    found = get_close_matches(_plain(path), plain, n=1)
    return plain[found[0]] if found else None


def _plain(path: str) -> str:
    return ".".join(split(path)).casefold()
