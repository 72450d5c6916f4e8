"""What commands print and read, to the letter."""

from tagmill.cli.shared import show
from tagmill.journal.clean import ids_of


def test_names_are_printed_as_they_are(capsys):
    names = ["[bold]a", r"a\[b]", "a\\", "[/]"]
    show([{"name": name} for name in names], ("name",), as_json=False)
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)


def test_a_list_of_persistence_ids_may_come_from_an_editor(tmp_path):
    file = tmp_path / "ids.txt"
    file.write_bytes("\ufeffo-1\r\n\r\n o-2 \n".encode())
    assert list(ids_of(["x"], file)) == ["x", "o-1", " o-2 "]
