"""What commands print and read, to the letter."""

import pytest

from tagmill.cli.shared import must_be_keys, show
from tagmill.errors import ConfigurationError
from tagmill.journal.clean import ids_of
from tagmill.views.chosen import Chosen


def test_names_are_printed_as_they_are(capsys):
    names = ["[bold]a", r"a\[b]", "a\\", "[/]"]
    show([{"name": name} for name in names], ("name",), as_json=False)
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)


def test_names_that_are_too_long_for_a_key_are_named_wherever_they_come_from(tmp_path):
    long, file = 70_000 * "x", tmp_path / "ids.txt"
    file.write_text(f"o-1\n{long}\n")
    for mistake in (
        lambda: must_be_keys([None, 3, ["o-1", long]]),
        lambda: list(ids_of(["o-1"], file)),
        lambda: Chosen.of([long], [], offline=False),
        lambda: Chosen.of([], [long], offline=True),
    ):
        with pytest.raises(ConfigurationError, match="has 70000 bytes"):
            mistake()


def test_a_list_of_persistence_ids_may_come_from_an_editor(tmp_path):
    file = tmp_path / "ids.txt"
    file.write_bytes("\ufeffo-1\r\n\r\n o-2 \n".encode())
    assert list(ids_of(["x"], file)) == ["x", "o-1", " o-2 "]
