"""Log of a failure: which users can read it, how long it stays, and what happens if it can't be written."""

import os
import stat
from pathlib import Path

import pytest

from tagmill.runs import trace_log
from tagmill.spark.errors import tell


def test_tell_defect_logs_whole_trace_privately(tmp_path) -> None:
    folder = trace_log.folder_of(str(tmp_path / "data"))
    try:
        raise ZeroDivisionError("division\nby zero")
    except ZeroDivisionError as error:
        told = tell(error, folder, "run deliver [x]/..")
    assert told.exit_code == 1 and told.trace_file is not None
    assert told.line.startswith("unexpected ZeroDivisionError: division. What was committed stays (trace: ")
    assert told.trace_file.parent == folder and "run-deliver-x-.." in told.trace_file.name
    assert "Traceback" in told.trace_file.read_text() and "by zero" in told.trace_file.read_text()
    assert stat.S_IMODE(told.trace_file.stat().st_mode) & 0o137 == 0
    assert stat.S_IMODE(folder.stat().st_mode) & 0o027 == 0


def test_new_file_removes_old_logs_only(tmp_path) -> None:
    old, other = tmp_path / "old.log", tmp_path / "note.txt"
    young = trace_log.new_file(tmp_path, "young")
    for file in (old, other):
        file.touch()
        os.utime(file, (0, 0))
    assert trace_log.new_file(tmp_path, "another") is not None
    assert not old.exists() and other.exists() and young is not None and young.exists()


def test_tell_nowhere_to_write_names_no_log(tmp_path) -> None:
    (tmp_path / "file").touch()
    told = tell(ValueError("v"), tmp_path / "file" / "below", "x")
    assert told.line == "unexpected ValueError: v. What was committed stays"


@pytest.mark.parametrize("root", [None, "s3a://bucket/x"])
def test_folder_without_local_root_is_users_own(root, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert trace_log.folder_of(root) == Path(tmp_path) / "tagmill" / "logs"


def test_folder_of_root_below_file_is_elsewhere(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "file").touch()
    for root in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / ("x" * 300)):
        assert trace_log.folder_of(str(root)) == tmp_path / "state" / "tagmill" / "logs"
    assert trace_log.folder_of(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b" / "_logs"
