"""Validate the names that people give: identifiers that become part of CQL and SQL text, and keys in
Cassandra. Pure.
"""

import re
from collections.abc import Sequence

from tagmill.errors import ConfigurationError

# Bytes of a key, at most: a partition key has 65,535, and in messages and tag_views 14 of them are for the
# bigint next to the key.
LONGEST_KEY_BYTES = 65_535 - 14
# How many keys a message quotes, at most, and how many characters of each.
QUOTED, QUOTED_LENGTH = 3, 40
# Stands at the end of a text that was cut off.
CUT = "…"
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")


def identifier(name: str) -> str:
    """Return the name if it is a plain identifier of at most 48 characters (Cassandra's limit); raise
    ValueError if not.
    """
    if not _IDENTIFIER.fullmatch(name):
        raise ValueError(
            f"{name!r} is no identifier: letters, digits and _, a letter first, at most 48 characters"
        )
    return name


def key(text: str) -> str:
    """Return the text if it can be a tag, a persistence id or another key in Cassandra; raise
    ConfigurationError if not.

    Bytes of a command line that are not UTF-8 are lone surrogates in Python, and refused.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"{ascii(text[:QUOTED_LENGTH])}: what was given is no text in UTF-8. Nothing was done"
        ) from None
    if size > LONGEST_KEY_BYTES:
        raise ConfigurationError(
            f"{text[:20]!r}…: what was given has {size} bytes, a tag, a persistence id or another key of "
            "Cassandra's has at most "
            f"{LONGEST_KEY_BYTES}. Nothing was done"
        )
    return text


def quoted(keys: Sequence[str], total: int | None = None) -> str:
    """Return the first keys as a message quotes them, shortened, and how many of `total` are left out."""
    shown = [f"{text[:QUOTED_LENGTH]!r}{CUT if len(text) > QUOTED_LENGTH else ''}" for text in keys[:QUOTED]]
    more = (len(keys) if total is None else total) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def shortened(text: str, length: int) -> str:
    """Return a text of at most `length` characters, whose last one is CUT if something was cut off.

    An erasure masks a name in front of that mark even if only its beginning is left.
    """
    return text if len(text) <= length else f"{text[: length - 1]}{CUT}"


def cql(name: str) -> str:
    """Validate an identifier, and return it quoted for CQL, so that its case stays."""
    return f'"{identifier(name)}"'


def cql_table(keyspace: str, table: str) -> str:
    """Validate a table and its keyspace, and return the full name quoted for CQL."""
    return f"{cql(keyspace)}.{cql(table)}"


def sql(name: str) -> str:
    """Validate an identifier, and return it quoted for ClickHouse."""
    return f"`{identifier(name)}`"
