"""Lines of many pipelines on the command line, and their common exit status."""

import errno

import pytest
import typer
import urllib3

from tagmill.cli import verdicts
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
    if name == "denied":
        raise PermissionError(errno.EACCES, "Permission denied", "/data/denied/manifest.json")
    if name == "driver":
        raise urllib3.exceptions.ProtocolError("Connection broken")
    if name == "defect":
        raise KeyError("rows")
    if name == "stopped":
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise OSError("the socket was closed") from None
    return [{"pipeline": name, "verdict": "counts agree", "level": "counted"}]


@pytest.fixture(autouse=True)
def logs(monkeypatch, tmp_path):
    """Return the folder of traces."""
    monkeypatch.setattr(verdicts, "log_folder", lambda: tmp_path)
    return tmp_path


def test_lines_of_unreadable_pipelines_say_why():
    lines = lines_of(["a", "down", "wrong", "b"], read)
    assert [(line["pipeline"], line["level"], line.get("exit_status")) for line in lines] == [
        ("a", "counted", None),
        ("down", "unknown", 75),
        ("wrong", "unknown", 2),
        ("b", "counted", None),
    ]
    assert lines[1]["verdict"] == "not known: Kafka can't be reached"


def test_lines_of_other_errors_say_why(logs):
    """Let an error that is no TagmillError cost the lines of its own pipeline only."""
    lines = lines_of(["denied", "driver", "defect", "b"], read)
    assert [(line["pipeline"], line["level"], line.get("exit_status")) for line in lines] == [
        ("denied", "unknown", 2),
        ("driver", "unknown", 75),
        ("defect", "unknown", 1),
        ("b", "counted", None),
    ]
    words = [line["verdict"] for line in lines]
    assert words[0].startswith("not known: /data/denied/manifest.json: Permission denied")
    assert words[1].startswith("not known: ClickHouse did not answer: Connection broken")
    assert words[2].startswith("not known: unexpected KeyError: 'rows'")
    traces = {log.read_text().splitlines()[-1] for log in logs.glob("*.log")}
    assert "KeyError: 'rows'" in traces and str(logs) in words[2]


@pytest.mark.parametrize("named", [None, "stopped"], ids=["of all", "named"])
def test_lines_of_interrupted_pipeline_raises(named):
    with pytest.raises(OSError, match="socket"):
        lines_of(["a", "stopped", "b"], read, named=named)


def test_lines_of_named_pipeline_raises():
    assert lines_of(["a", "down"], read, named="a") == read("a")
    with pytest.raises(StoreUnavailable):
        lines_of(["a", "down"], read, named="down")
    with pytest.raises(PermissionError):
        lines_of(["a", "denied"], read, named="denied")


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
