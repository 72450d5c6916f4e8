"""Identifiers that stand in CQL and SQL text: the one place that validates and quotes them. Pure."""

import re

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,47}")


def identifier(name: str) -> str:
    """The name itself if it is a plain identifier of at most 48 characters (Cassandra's limit); else ValueError."""
    if not _IDENTIFIER.fullmatch(name):
        raise ValueError(f"{name!r} is no identifier: letters, digits and _, a letter first, at most 48 characters")
    return name


def cql(name: str) -> str:
    """A validated identifier, quoted for CQL, so that its case stays."""
    return f'"{identifier(name)}"'


def cql_table(keyspace: str, table: str) -> str:
    """A table with its keyspace, both validated and quoted for CQL."""
    return f"{cql(keyspace)}.{cql(table)}"


def sql(name: str) -> str:
    """A validated identifier, quoted for ClickHouse."""
    return f"`{identifier(name)}`"
