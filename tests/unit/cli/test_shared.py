"""What commands print and read, to the letter."""

import pytest

from tagmill.cli.shared import must_be_keys, show
from tagmill.config.id_lists import ids_of
from tagmill.errors import ConfigurationError
from tagmill.views.selection import Chosen


def test_names_are_printed_as_they_are(capsys):
    names = ["[bold]a", r"a\[b]", "a\\", "[/]"]
    show([{"name": name} for name in names], ("name",), as_json=False)
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)


def test_names_too_long_for_key_are_refused():
    """Refuse names that are too long for a key, with their size, wherever they come from."""
    long = 70_000 * "x"
    for mistake in (
        lambda: must_be_keys([None, 3, ["o-1", long]]),
        lambda: ids_of(["o-1", long], None),
        lambda: Chosen.of([long], [], offline=False),
        lambda: Chosen.of([], [long], offline=True),
    ):
        with pytest.raises(ConfigurationError, match="has 70000 bytes"):
            mistake()
