"""Lines of many pipelines on the command line, and their common exit status."""

import pytest
import typer

from tagmill.cli.verdicts import end, lines_of
from tagmill.domain.verdict import Level
from tagmill.errors import ConfigurationError, StoreUnavailable

WELL = {"level": "counted"}
DIFFERS = {"level": "wrong"}
UNREADABLE = {"level": "unknown", "exit_status": 75}
MISCONFIGURED = {"level": "unknown", "exit_status": 2}


def read(name):
    """Return a line, or fail as the name says."""
    if name == "down":
        raise StoreUnavailable("Kafka can't be reached")
    if name == "wrong":
        raise ConfigurationError("there is no such table")
    return [{"pipeline": name, "verdict": "counts agree", "level": "counted"}]


def test_lines_of_unreadable_pipelines_say_why():
    lines = lines_of(["a", "down", "wrong", "b"], read)
    assert [(line["pipeline"], line["level"], line.get("exit_status")) for line in lines] == [
        ("a", "counted", None),
        ("down", "unknown", 75),
        ("wrong", "unknown", 2),
        ("b", "counted", None),
    ]
    assert lines[1]["verdict"] == "not known: Kafka can't be reached"


def test_lines_of_named_pipeline_raises():
    assert lines_of(["a", "down"], read, named="a") == read("a")
    with pytest.raises(StoreUnavailable):
        lines_of(["a", "down"], read, named="down")


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ([UNREADABLE, WELL], 75),
        ([UNREADABLE, MISCONFIGURED], 2),
        ([UNREADABLE, MISCONFIGURED, DIFFERS], 3),
    ],
    ids=["down", "misconfigured", "differs"],
)
def test_end_takes_worst_exit_status(lines, status):
    with pytest.raises(typer.Exit) as ended:
        end(lines, worst=Level.HELD)
    assert ended.value.exit_code == status


def test_end_well_returns():
    end([WELL, {"level": "held"}], worst=Level.HELD)
    with pytest.raises(typer.Exit):
        end([{"level": "held"}], worst=Level.APART)
