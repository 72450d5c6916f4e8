"""Wrong options of the scripts in bin/ are reported at once, before anything is set up."""

import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main

ROOT = Path(__file__).resolve().parents[3]
SET_UP = 7


@pytest.fixture
def script(tmp_path):
    """Return script(name, *arguments), which runs a script of bin/.

    The script's set-up only reports, by exit status 7, that it was reached.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("run", "test", "check"):
        shutil.copy(ROOT / "bin" / name, folder / name)
    (folder / "setup").write_text(f"#!/bin/sh\nexit {SET_UP}\n")
    (folder / "setup").chmod(0o755)
    (tmp_path / "tests").mkdir()

    def run(name, *arguments):
        done = subprocess.run(
            [folder / name, *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.parametrize(
    "call",
    [
        ("run", "--onec"),
        ("run", "--once", "stray"),
        ("run", "--events", "many"),
        ("run", "--events=-1"),
        ("run", "--report"),
        ("test", "tests/nowhere"),
        ("test", "-k"),
        ("check", "--fast"),
    ],
    ids=" ".join,
)
def test_script_wrong_option_is_told_before_setup(script, call) -> None:
    """Report a wrong option in one line with status 2 before the set-up begins."""
    code, out, said = script(*call)
    assert code == 2 and not out
    assert said.startswith("error: ") and said.count("\n") == 1 and call[1].split("=")[0] in said


@pytest.mark.parametrize(
    "call", [("test", "unit"), ("test", "tests", "-k", "name", "-x"), ("check",), ("run",)], ids=" ".join
)
def test_script_sound_options_reach_setup(script, call) -> None:
    assert script(*call)[0] == SET_UP


def test_run_knows_each_option_of_the_demo(script) -> None:
    """Keep both lists of options the same: the shell checks them before there is a Python that could."""
    from local.demo import app

    for option in typer.main.get_command(app).params:
        value = [] if getattr(option, "is_flag", False) else ["3"]
        assert script("run", option.opts[0], *value)[0] == SET_UP, option.opts
