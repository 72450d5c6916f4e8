"""Identifiers in CQL and SQL text contain only letters, digits and _; keys are text that Cassandra can look
up.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.domain import identifiers
from tagmill.errors import ConfigurationError

QUOTING = (identifiers.identifier, identifiers.cql, identifiers.sql)


@pytest.mark.parametrize("name", ["a", "Orders", "orders_2", "x" * 48])
def test_plain_identifiers_come_through(name: str) -> None:
    assert identifiers.identifier(name) == name
    assert identifiers.cql(name) == f'"{name}"'
    assert identifiers.sql(name) == f"`{name}`"


def test_key_is_text_cassandra_can_hold() -> None:
    """Keys are UTF-8 text of at most 65521 bytes; other text is refused."""
    for text in ("", "o-1", "\U0001f600", "x" * identifiers.LONGEST_KEY_BYTES):
        assert identifiers.key(text) == text
    with pytest.raises(
        ConfigurationError,
        match=r"'x{20}'…: what was given has 65522 bytes, .* at most 65521\. Nothing was done",
    ):
        identifiers.key("x" * 65_522)
    with pytest.raises(ConfigurationError, match="has 70000 bytes"):
        identifiers.key("é" * 35_000)
    with pytest.raises(ConfigurationError, match="no text in UTF-8"):
        identifiers.key("\udcff")


@pytest.mark.parametrize("quote", QUOTING)
@pytest.mark.parametrize(
    "name",
    [
        "", " ", "1a", "_a", "a-b", "a b", "a.b", 'a"', "a`", "a'", "a;", "a\n", "\na", "a\0", "a/*", "a--", "ä",
        "\u0430dmin", "\uff11", "a\u200b", "x" * 49, "${ledger}", "{}", "a\\", 'x" ; DROP KEYSPACE y; --', "x` WHERE 1=1 --",
    ],
)  # fmt: skip
def test_hostile_identifiers_are_refused(name: str, quote) -> None:
    with pytest.raises(ValueError, match="is no identifier"):
        quote(name)


@given(st.text(max_size=60))
def test_what_comes_through_is_plain_ascii(name: str) -> None:
    """Identifiers that pass are unchanged and plain ASCII; only texts of another form are refused."""
    try:
        found = identifiers.identifier(name)
    except ValueError:
        assert not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,47}", name, re.ASCII)
    else:
        assert found == name and found.isascii() and found.replace("_", "a").isalnum()
