"""Stops servers when the process that wanted them is gone, however it ended (kill -9 included).

The owner holds the writing end of a pipe; when it ends, the operating system closes it and the guard acts.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from local.part import Part
from local.places import ROOT
from local.processes import end, marked


class Guard:
    """Watches this process on behalf of some parts; `release` when they were stopped the normal way.

    `held`: descriptors (of a file lock) that stay open until all is stopped, whoever dies before.
    """

    def __init__(self, parts: Sequence[Part], *held: int) -> None:
        reading, self._writing = os.pipe()
        signals = [f"{int(part.stop_signal)}:{part.mark}" for part in parts]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "local.guard", *signals],
            stdin=reading,
            cwd=ROOT,
            start_new_session=True,
            pass_fds=held,
        )
        os.close(reading)

    def release(self) -> None:
        """Nothing is left to guard: the guard ends."""
        os.write(self._writing, b"released\n")
        os.close(self._writing)
        self._process.wait()


def main(arguments: Sequence[str]) -> None:
    """Wait for the owner's end of the pipe, then end what carries the marks."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.readline() == "released\n":
        return
    for argument in arguments:
        polite, _, mark = argument.partition(":")
        end(mark, marked(mark), int(polite), 20)


if __name__ == "__main__":
    main(sys.argv[1:])
