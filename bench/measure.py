"""Run a command as a whole process and measure it; compute medians of runs.

Measured are wall seconds, and the summed RSS and processor seconds of the process tree, sampled five times a second:
processes that live shorter are missing.
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
    processor_seconds: float


def measure(command: list[str], env: dict[str, str] | None = None, timeout: float = 1800) -> Measured:
    """Run a command to its end and measure it; raise RuntimeError if it fails or exceeds `timeout`
    seconds.
    """
    with TemporaryFile("w+", encoding="utf-8") as out:
        begun = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)  # noqa: S603
        root, peak, sampled = psutil.Process(process.pid), 0, 0.0
        used = dict[int, float]()
        while process.poll() is None:
            if time.monotonic() - sampled >= 0.2:
                sampled = time.monotonic()
                peak = max(peak, _sample(root, used))
            if time.monotonic() - begun > timeout:
                process.kill()
            time.sleep(0.05)
        seconds = time.monotonic() - begun
        out.seek(0)
        output = out.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{output[-3000:]}")
    return Measured(seconds, peak / 2**20, output, sum(used.values()))


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


def _sample(root: psutil.Process, used: dict[int, float]) -> int:
    """Return the bytes that the tree has in memory, and note by process the processor seconds that it has used."""
    total = 0
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for process in processes:
        try:
            total += process.memory_info().rss
            times = process.cpu_times()
            used[process.pid] = times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total
