"""Runs a command as a whole process: wall seconds, and the summed RSS of its process tree, sampled each second."""

import subprocess
import time
from dataclasses import dataclass
from tempfile import TemporaryFile

import psutil


@dataclass(frozen=True, slots=True)
class Measured:
    """One run of a command."""

    seconds: float
    peak_mib: float
    output: str


def measure(command: list[str], env: dict[str, str] | None = None, timeout: float = 1800) -> Measured:
    """Run it to its end; raises RuntimeError when it fails."""
    with TemporaryFile("w+", encoding="utf-8") as out:
        begun = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)  # noqa: S603
        root, peak, sampled = psutil.Process(process.pid), 0, 0.0
        while process.poll() is None:
            if time.monotonic() - sampled >= 1:
                sampled = time.monotonic()
                peak = max(peak, _tree_rss(root))
            if time.monotonic() - begun > timeout:
                process.kill()
            time.sleep(0.05)
        seconds = time.monotonic() - begun
        out.seek(0)
        output = out.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{output[-3000:]}")
    return Measured(seconds, peak / 2**20, output)


def _tree_rss(root: psutil.Process) -> int:
    total = 0
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total
