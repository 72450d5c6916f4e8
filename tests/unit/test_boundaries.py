"""Failures never pass the one place that explains them: sessions begin there, and every command and job ends
there.
"""

import ast
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from tagmill.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
# Commands outside of the boundary: `version` uses no store, `local` starts servers and has a handler of its
# own.
OTHERS = ("tagmill version", "tagmill local ")


def commands(command, path):
    """Yield path and callback of each command that does something."""
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")
    if not hasattr(command, "commands"):
        yield path, command.callback


FOUND = dict(commands(typer.main.get_command(app), "tagmill"))


@pytest.mark.parametrize("path", [path for path in FOUND if not path.startswith(OTHERS)])
def test_command_ends_with_one_line(path) -> None:
    wrapped, names = FOUND[path], set()
    while wrapped is not None:
        names |= set(wrapped.__code__.co_names) | {wrapped.__code__.co_filename.rpartition("/")[2]}
        wrapped = getattr(wrapped, "__wrapped__", None)
    assert {"one_line", "shared.py"} <= names


@pytest.mark.parametrize("file", sorted((ROOT / "spark_jobs").glob("*.py")), ids=lambda file: file.stem)
def test_job_ends_with_report(file) -> None:
    called = {
        node.func.id
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and hasattr(node.func, "id")
    }
    assert "job_report" in called and called & {"spark_session", "session_when_asked"}


def test_sessions_begin_in_one_place() -> None:
    pattern = re.compile(
        r"SparkSession\.builder|spark\.session import session$|\bsession\.session\(", re.MULTILINE
    )
    sources = [*(ROOT / "tagmill").rglob("*.py"), *(ROOT / "spark_jobs").glob("*.py")]
    assert [file for file in sources if pattern.search(file.read_text())] == [
        ROOT / "tagmill" / "spark" / "session.py"
    ]


def test_run_numbers_are_claimed_behind_comparison() -> None:
    """Each function that claims a run number asks ClickHouse first, but for the restore of the ledger."""
    functions = [
        (
            file.name,
            function.name,
            {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)},
        )
        for file in (ROOT / "tagmill").rglob("*.py")
        for function in ast.walk(ast.parse(file.read_text()))
        if isinstance(function, ast.FunctionDef)
    ]
    claiming = {
        (file, name): "require_up_to_date" in called
        for file, name, called in functions
        if any(call.endswith((".claim", ".add_intervention")) for call in called)
    }
    assert len(claiming) >= 6
    assert {place for place, asks in claiming.items() if not asks} == {
        ("runs.py", "add_intervention"),
        ("restore.py", "_record"),
    }


def test_command_interrupted_while_it_imports_says_nothing() -> None:
    """Ctrl-C during the imports of a command ends it silently by the signal."""
    interrupt = "threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()"
    program = f"import os, signal, threading; from tagmill.cli import command; {interrupt}; command()"
    done = subprocess.run(
        [sys.executable, "-c", program, "version"], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
