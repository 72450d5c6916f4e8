"""Names that people give, validated in one place: identifiers that stand in CQL and SQL text, and keys of Cassandra's. Pure."""

import re
from collections.abc import Sequence

from tagmill.errors import ConfigurationError

# a partition key has at most 65535 bytes, and in messages and tag_views 14 of them are for the bigint beside the name
LONGEST_KEY_BYTES = 65_535 - 14
# of the keys that a message quotes: how many, and characters of each
QUOTED, QUOTED_LENGTH = 3, 40
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")


def identifier(name: str) -> str:
    """The name itself if it is a plain identifier of at most 48 characters (Cassandra's limit); else ValueError."""
    if not _IDENTIFIER.fullmatch(name):
        raise ValueError(f"{name!r} is no identifier: letters, digits and _, a letter first, at most 48 characters")
    return name


def key(text: str) -> str:
    """The text itself if it can be a tag, a persistence id or another key of Cassandra's; else ConfigurationError.

    Bytes of a command line that are no UTF-8 are lone surrogates in Python.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"{ascii(text[:QUOTED_LENGTH])}: what was given is no text in UTF-8. Nothing was done") from None
    if size > LONGEST_KEY_BYTES:
        raise ConfigurationError(
            f"{text[:20]!r}…: what was given has {size} bytes, a tag, a persistence id or another key of Cassandra's has at most "
            f"{LONGEST_KEY_BYTES}. Nothing was done"
        )
    return text


def quoted(keys: Sequence[str], total: int | None = None) -> str:
    """Return the first keys for a message, in quotes and shortened, and how many more of `total` there are."""
    shown = [f"{text[:QUOTED_LENGTH]!r}{'…' if len(text) > QUOTED_LENGTH else ''}" for text in keys[:QUOTED]]
    more = (len(keys) if total is None else total) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def cql(name: str) -> str:
    """A validated identifier, quoted for CQL, so that its case stays."""
    return f'"{identifier(name)}"'


def cql_table(keyspace: str, table: str) -> str:
    """A table with its keyspace, both validated and quoted for CQL."""
    return f"{cql(keyspace)}.{cql(table)}"


def sql(name: str) -> str:
    """A validated identifier, quoted for ClickHouse."""
    return f"`{identifier(name)}`"
