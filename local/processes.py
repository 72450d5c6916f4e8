"""Processes of the stack: each is marked in its environment, so that none is missed and no stranger is touched.

A pid file alone is not enough: pids are reused, and a server that dies leaves its children. The marker is inherited by all
that a server starts (Airflow's tasks, their JVMs), whatever session they put themselves in.
"""

import os
import signal
import socket
import time
from collections.abc import Iterable, Sequence

import psutil

MARKER = "TAGMILL_LOCAL_PART"


def marked(mark: str) -> list[psutil.Process]:
    """All living processes that carry this mark, without the calling one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARKER) == mark:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def alive(pid: int) -> bool:
    """Whether a process with this pid still runs."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def end(mark: str, first: Sequence[psutil.Process], first_signal: int, seconds: float) -> int:
    """Ask `first` politely, then end everything with the mark; returns how many had to be ended the hard way."""
    known = set(marked(mark)) | set(first)
    _send(first, first_signal)
    _wait(mark, known, seconds)
    left = marked(mark)
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 10.0)):
        alive = marked(mark)
        known |= set(alive)
        _send(alive, number)
        _wait(mark, known, patience)
    return len(left)


def _send(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def _wait(mark: str, known: set[psutil.Process], seconds: float) -> None:
    """Until all are gone; new ones may appear while their parents end."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        known |= set(marked(mark))
        alive = [process for process in known if not _gone(process)]
        if not alive:
            return
        psutil.wait_procs(alive, timeout=0.3)  # reaps those that are children of this process


def _gone(process: psutil.Process) -> bool:
    """A process is gone, too, as a zombie without threads: one with threads still has its ports."""
    try:
        return not process.is_running() or (process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return True


def port_is_free(port: int) -> bool:
    """Whether 127.0.0.1:port can be listened on."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
