"""Files of persistence_ids: checked as a whole before the first is used, and never shown."""

import os
from pathlib import Path

import pytest

from tagmill.config.id_lists import ids_of
from tagmill.domain.identifiers import LONGEST_KEY_BYTES, quoted
from tagmill.errors import ConfigurationError

SECRET = "2b7e151628aed2a6abf7158809cf4f3c"


def test_ids_of_strips_mark_and_crlf(tmp_path):
    """Strip byte order mark, line ends and empty lines from a file of ids, but no blanks of an id."""
    file = tmp_path / "ids.txt"
    file.write_bytes("\ufeffo-1\r\n\r\n o-2 \n".encode())
    assert list(ids_of(["x"], file)) == ["x", "o-1", " o-2 "]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(f"A=1\0KEY={SECRET}\0".encode(), "control character", id="environment of a process"),
        pytest.param(SECRET.encode() + b"\xff\n", "no text in UTF-8", id="binary"),
        pytest.param(SECRET.encode() * 3000, f"more than {LONGEST_KEY_BYTES} bytes", id="longer than a key"),
    ],
)
def test_file_of_something_else_is_refused_unquoted(tmp_path, content, reason):
    file = tmp_path / "ids.txt"
    file.write_bytes(b"o-1\n" + content)
    with pytest.raises(ConfigurationError, match=f"line 2 is not a persistence id: it .*{reason}") as refused:
        ids_of(["x"], file)
    assert SECRET not in str(refused.value)


def test_pipe_is_read_once():
    """Lists may come from a process substitution, which can't be read a second time."""
    read, write = os.pipe()
    os.write(write, b"o-1\no-2\n")
    os.close(write)
    assert list(ids_of([], Path(f"/dev/fd/{read}"))) == ["o-1", "o-2"]
    os.close(read)


def test_quoted_keys_are_three_and_short():
    keys = ["a", "b'", "x" * 100, "d", "e"]
    assert quoted(keys) == f"""'a', "b'", '{"x" * 40}'… and 2 more"""
    assert quoted(["a"], total=9) == "'a' and 8 more" and quoted([]) == ""


def test_empty_text_is_no_id():
    with pytest.raises(ConfigurationError, match="an empty text is no persistence id. Nothing was done"):
        ids_of(["o-1", ""], None)
