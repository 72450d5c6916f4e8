"""Stop servers when the process that needs them ends in any way (kill -9 included).

The owner holds the writing end of a pipe; when the owner ends, the operating system closes the pipe and the
guard acts.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from local.layout import ROOT
from local.processes import end, marked
from local.service import Service


class Guard:
    """Watches this process on behalf of some parts; call `release` after they were stopped the normal way.

    `held`: file descriptors (of a file lock) that the guard keeps open until all parts are stopped, even if
    the owner dies first.
    """

    def __init__(self, parts: Sequence[Service], *held: int) -> None:
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
        """End the guard without stopping any part."""
        os.write(self._writing, b"released\n")
        os.close(self._writing)
        self._process.wait()


def main(arguments: Sequence[str]) -> None:
    """Wait until the owner's end of the pipe closes, then end all processes with the given marks."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.readline() == "released\n":
        return
    for argument in arguments:
        polite, _, mark = argument.partition(":")
        end(mark, marked(mark), int(polite), 20)


if __name__ == "__main__":
    main(sys.argv[1:])
