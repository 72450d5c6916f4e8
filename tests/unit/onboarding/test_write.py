"""Files that `tagmill init` writes."""

import pytest

from tagmill.errors import ConfigurationError
from tagmill.onboarding.draft import Draft
from tagmill.onboarding.init import Proposal, write
from tagmill.onboarding.toml_file import SCHEMA_FILE


def test_error_says_what_was_written(tmp_path) -> None:
    """A schema that can't be written leaves the file, and the error does not deny that."""
    (tmp_path / SCHEMA_FILE).mkdir()
    with pytest.raises(ConfigurationError, match=r"tagmill\.toml was written$"):
        write(Proposal("", Draft()), output := tmp_path / "tagmill.toml", overwrite=False)
    assert output.exists()


def test_schema_file_of_others_stays(tmp_path) -> None:
    (tmp_path / SCHEMA_FILE).write_bytes(b"\xff")
    output = tmp_path / "tagmill.toml"
    assert write(Proposal("", Draft()), output, overwrite=False) == [output]
