"""Name what a misspelt word may have meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is nearest to another one, or None if none is near; case does not count."""
    by_lower = {name.lower(): name for name in known}
    matches = get_close_matches(word.lower(), by_lower, n=1)
    return by_lower[matches[0]] if matches else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question that names the nearest of the known words, to follow a message; empty if none is near."""
    found = nearest(word, known)
    return f". Did you mean {found}?" if found else ""
