"""What all servers of the stack share: start a server in the background, wait until it answers, stop it with
all its children.
"""

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

import psutil

from local.errors import PartDidNotStart, PartEnded, PortBusy, one_line
from local.processes import MARKER, end, marked, port_is_free, timer_slack
from tagmill.runs.privacy import UMASK, make_file, make_folder


class Service(ABC):
    """One server: a home folder below the stack's home, a port on 127.0.0.1, a pid file and a log."""

    name: ClassVar[str]
    stop_signal: ClassVar[int] = signal.SIGTERM
    stop_seconds: ClassVar[float] = 30
    start_seconds: ClassVar[float] = 180
    # Microseconds that short sleeps may last longer.
    timer_slack: int = 0

    def __init__(self, home: Path, port: int) -> None:
        self.home, self.port = home.resolve(), port
        self.pid_file, self.log = self.home / "pid", self.home / "output.log"
        self.mark = str(self.home)

    @abstractmethod
    def command(self) -> list[str]:
        """Return the server's program and arguments."""

    @abstractmethod
    def healthy(self) -> bool:
        """Return whether the server answers a request of its own protocol."""

    @abstractmethod
    def where(self) -> str:
        """Return the server's address, as text for people."""

    def configure(self) -> None:  # noqa: B027  (most parts have nothing to write)
        """Write the server's configuration files; its home folder exists already."""

    def environment(self) -> dict[str, str]:
        """Return the variables to add to those of this process."""
        return {}

    def ports(self) -> list[int]:
        """Return all ports that the server listens on."""
        return [self.port]

    def failure(self) -> str:
        """Return the line of the server's logs that best explains why it failed."""
        return one_line(self.log.read_text(errors="replace") if self.log.exists() else "")

    def process(self) -> psutil.Process | None:
        """Return the server's own process, without its children, or None if it doesn't run."""
        try:
            pid = int(self.pid_file.read_text())
        except (OSError, ValueError):
            return None
        return next((process for process in marked(self.mark) if process.pid == pid), None)

    def pid(self) -> int | None:
        """Return the pid of the server's own process, or None if it doesn't run."""
        process = self.process()
        return process.pid if process else None

    def running(self) -> bool:
        """Return whether the server's own process lives and answers."""
        return self.process() is not None and self.healthy()

    def require_alive(self) -> None:
        """Raise PartEnded if the server was started and has ended by itself."""
        if self.pid_file.exists() and self.process() is None:
            raise PartEnded(
                f"{self.name} has ended: {self.failure()}. What was delivered stays, its data are in "
                f"{self.home}. Run it again: "
                f"it goes on where it was. Log: {self.log}"
            )

    def start(self) -> float:
        """Start the server and wait until it answers; return the seconds, 0.0 if it ran already.

        Raises:
            PortBusy: another program has one of its ports; nothing was started.
            PartDidNotStart: the server ended or didn't answer in time; it was stopped again.
        """
        if self.running():
            return 0.0
        if marked(self.mark):  # processes that a killed start or a killed server left behind
            self.stop()
        self.require_ports()
        make_folder(self.home)
        self.configure()
        began = time.monotonic()
        process = self._spawn()
        try:
            self._wait(process, began)
        except BaseException:
            self.stop()
            raise
        return time.monotonic() - began

    def stop(self) -> float:
        """Stop the server and everything that it started; return the seconds, 0.0 if nothing ran."""
        began = time.monotonic()
        alive = marked(self.mark)
        if not alive:
            self.pid_file.unlink(missing_ok=True)
            return 0.0
        leader = self.process()
        end(self.mark, [leader] if leader else alive, self.stop_signal, self.stop_seconds)
        self.pid_file.unlink(missing_ok=True)
        return time.monotonic() - began

    def kill(self) -> None:
        """Send SIGKILL to all processes of the server at once, for tests of crashes."""
        end(self.mark, marked(self.mark), signal.SIGKILL, 10)
        self.pid_file.unlink(missing_ok=True)

    def require_ports(self) -> None:
        """Raise PortBusy if another program has one of the server's ports."""
        if marked(self.mark):
            return
        for port in self.ports():
            if not port_is_free(port):
                which = (
                    f"port {port}"
                    if port == self.port
                    else f"its internal port {port} (it follows from {self.port})"
                )
                raise PortBusy(
                    f"{self.name}: {which} is in use by another program, which was left alone; "
                    f"{self.name} was not started. "
                    f"Choose another port with TAGMILL_LOCAL_{self.name.upper()}_PORT, or stop that program"
                )

    def _spawn(self) -> "subprocess.Popen[bytes]":
        make_file(self.log)
        with open(self.log, "wb") as log, timer_slack(self.timer_slack):
            process = subprocess.Popen(
                self.command(),
                env={**os.environ, **self.environment(), MARKER: self.mark},
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=UMASK,
            )
        self.pid_file.write_text(str(process.pid))
        return process

    def _wait(self, process: "subprocess.Popen[bytes]", began: float) -> None:
        while not self.healthy():
            ended = process.poll() is not None
            if ended or time.monotonic() - began > self.start_seconds:
                how = (
                    f"ended with status {process.returncode}"
                    if ended
                    else f"didn't answer within {self.start_seconds:.0f} s"
                )
                raise PartDidNotStart(
                    f"{self.name} {how}: {self.failure()}. It was stopped; its data stay in {self.home}. "
                    f"Log: {self.log}"
                )
            time.sleep(0.1)
