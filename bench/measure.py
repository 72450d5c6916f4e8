"""Run a command as a whole process and measure it; compute medians of runs.

Measured are wall seconds and the summed RSS of the process tree, sampled each second.
"""

import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any

import psutil


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements and the output of one run of a command."""

    seconds: float
    peak_mib: float
    output: str


def measure(command: list[str], env: dict[str, str] | None = None, timeout: float = 1800) -> Measured:
    """Run a command to its end and measure it; raise RuntimeError if it fails or exceeds `timeout`
    seconds.
    """
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


def medians(results: Sequence[Mapping[str, Any]], base: str) -> Iterator[tuple[str, float, float, float]]:
    """Yield (what, median seconds, highest peak in MiB, median ratio of the seconds to those of `base` in the
    same round).

    The order is that of the results. Each result has `what`, `round`, `seconds` and `peak_mib` of a run.
    """
    beside = {run["round"]: run["seconds"] for run in results if run["what"] == base}
    for what in dict.fromkeys(run["what"] for run in results):
        mine = [run for run in results if run["what"] == what]
        seconds = statistics.median(run["seconds"] for run in mine)
        ratio = statistics.median(run["seconds"] / beside[run["round"]] for run in mine)
        yield what, seconds, max(run["peak_mib"] for run in mine), ratio


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
