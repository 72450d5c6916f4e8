"""Build the wheel and install it, for tests that use it far from the checkout."""

import os
import shutil
import subprocess
from pathlib import Path

from local.layout import ROOT

SECONDS = 300


def uv(*arguments: str | Path) -> None:
    """Run uv, which bin/setup has found or installed, on what it has in its cache, and with a network only if that
    is not enough; fail with what it said.
    """
    if _ran("--offline", *arguments).returncode != 0:
        done = _ran(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stderr}"


def _ran(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("uv") or ROOT / "build" / "uv" / "bin" / "uv"
    environment = {
        name: text for name, text in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")
    }
    return subprocess.run(
        [program, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS
    )


def built_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout into a folder, and return its path."""
    uv("build", "--quiet", "--wheel", "--out-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def empty_environment(folder: Path, python: str | Path, *locks: str) -> Path:
    """Make a Python environment with what the lock files name and nothing else, and return its `bin`."""
    uv("venv", "--quiet", "--no-config", "--python", python, folder)
    requirements = [part for lock in locks for part in ("-r", ROOT / "locks" / lock)]
    uv("pip", "install", "--quiet", "--python", folder / "bin" / "python", "--require-hashes", *requirements)
    return folder / "bin"
