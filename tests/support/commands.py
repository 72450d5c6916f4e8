"""Run the `tagmill` command in its own process group, where it can be paused at a named checkpoint, frozen
and killed.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
# Timeout of a command in seconds: long enough for a cold Spark on a busy machine.
SECONDS = 480
MARK = "TAGMILL_TEST_COMMAND"


@dataclass(frozen=True)
class Ended:
    """The exit code and the output of a command that has ended."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The single error line at the end of stderr; lines of the log and of Spark's start may precede
        it.
        """
        lines = [line for line in self.err.splitlines() if line.strip()]
        assert "Traceback" not in self.err, self.err
        assert [line for line in lines if line.startswith("error: ")] == lines[-1:], self.err
        return lines[-1]


class Command:
    """A running command; `instant` names the checkpoint at which it pauses."""

    def __init__(self, config: Path, *arguments: str, instant: str | None = None) -> None:
        self.arguments, self.instant = arguments, instant
        folder = config.parent / f"command-{time.monotonic_ns()}"
        folder.mkdir()
        self.pause_file, self._out, self._err = folder / "paused", folder / "out", folder / "err"
        environment = {**os.environ, MARK: str(folder), "PYTHONPATH": str(ROOT), "COLUMNS": "400"}
        if instant:
            environment |= {"TAGMILL_PAUSE_AT": instant, "TAGMILL_PAUSE_FILE": str(self.pause_file)}
        program = "from tagmill.cli.main import main; main()"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, "--config", str(config), *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                cwd=ROOT,
            )

    def paused(self) -> "Command":
        """Wait until the command has reached its checkpoint, and return the command."""
        end = time.monotonic() + SECONDS
        while not self.pause_file.exists():
            assert self.process.poll() is None, f"ended before {self.instant}: {self.ended()}"
            assert time.monotonic() < end, (
                f"{self.instant} was not reached in {SECONDS} s: {self._err.read_text()}"
            )
            time.sleep(0.05)
        return self

    def kill(self) -> None:
        """Send SIGKILL to the whole group, including its JVM, and wait until none of its processes is
        left.
        """
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._gone()

    def interrupt(self, number: signal.Signals, after: float = 0.5, *, group: bool) -> Ended:
        """Let the command go on for `after` seconds, send it a signal, and wait until all its processes have
        ended.

        With `group`, the signal goes to all processes of the group, as a terminal does.
        """
        self.pause_file.unlink(missing_ok=True)
        time.sleep(after)
        (os.killpg if group else os.kill)(self.process.pid, number)
        ended = self.end()
        self._gone()
        return ended

    def _gone(self) -> None:
        end = time.monotonic() + 20
        while left := self._left():
            assert time.monotonic() < end, f"still there: {left}"
            time.sleep(0.05)

    def end_without(self, name: str) -> Ended:
        """Send SIGKILL to the command's descendants of this name, and wait for the command's end."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if child.name() == name:
                child.kill()
        return self.end()

    def freeze(self) -> None:
        """Send SIGSTOP to the group, which stops the command in the middle of its work."""
        os.killpg(self.process.pid, signal.SIGSTOP)

    def wake(self) -> Ended:
        """Let a frozen command go on from where it stopped, and wait for its end."""
        self.pause_file.unlink(missing_ok=True)
        os.killpg(self.process.pid, signal.SIGCONT)
        return self.end()

    def end(self) -> Ended:
        """Wait for the command's end, without letting it pause again."""
        end = time.monotonic() + SECONDS
        while self.process.poll() is None:
            self.pause_file.unlink(missing_ok=True)
            assert time.monotonic() < end, (
                f"{self.arguments} did not end in {SECONDS} s: {self._err.read_text()}"
            )
            time.sleep(0.05)
        return self.ended()

    def ended(self) -> Ended:
        """Return the exit code and the output so far."""
        return Ended(self.process.returncode, self._out.read_text(), self._err.read_text())

    def _left(self) -> list[str]:
        left = []
        for process in psutil.process_iter():
            try:
                if (
                    process.environ().get(MARK) == str(self.pause_file.parent)
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    left.append(" ".join(process.cmdline())[:200])
            except (psutil.Error, OSError):
                continue
        return left
