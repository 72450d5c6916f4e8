"""What `tagmill run deliver` refuses before it reads anything."""

import pytest
from typer.testing import CliRunner

from tagmill.cli.main import app


@pytest.mark.parametrize("option", ["--accept-lost", "--recreated"])
def test_options_of_topics_are_refused_for_views(option, tmp_path) -> None:
    """A pipeline of tag views reads no topic: an option that would do nothing is a mistake."""
    file = tmp_path / "tagmill.toml"
    keys = ('keyspace = "k"', 'tags = ["t"]', 'bucket_size = "Hour"', 'first_time_bucket = "20261121T07:00"')
    file.write_text("\n".join(("[pipelines.p]", *keys, 'destination = "d"', "")))
    done = CliRunner().invoke(app, ["--config", str(file), "run", "deliver", "--pipeline", "p", option])
    assert done.exit_code == 2 and "p reads no topic" in done.output
