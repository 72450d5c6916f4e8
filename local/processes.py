"""Find and end processes of the stack by a mark in their environment, so that none is missed and no other
process is touched.

A pid file alone is not enough: pids are reused, and a server that dies leaves its children. All processes
that a server starts (Airflow's tasks, their JVMs) inherit the mark, even if they start their own session.
"""

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import psutil

MARKER = "TAGMILL_LOCAL_PART"
# Linux's numbers of the operations that set and get a thread's timer slack.
SET_TIMER_SLACK, GET_TIMER_SLACK = 29, 30


def marked(mark: str) -> list[psutil.Process]:
    """Return all living processes that carry this mark, except the calling one."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get(MARKER) == mark
            ):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def alive(pid: int) -> bool:
    """Return whether a process with this pid still runs."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def end(mark: str, first: Sequence[psutil.Process], first_signal: int, seconds: float) -> int:
    """Signal the processes `first`, then end all with the mark; return how many outlived the first signal by
    `seconds`.
    """
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
    """Wait until all processes have ended, at most `seconds`; new ones may appear while their parents end."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        known |= set(marked(mark))
        alive = [process for process in known if not _gone(process)]
        if not alive:
            return
        psutil.wait_procs(alive, timeout=0.3)  # reaps those that are children of this process


def _gone(process: psutil.Process) -> bool:
    """Return whether a process has ended; a zombie counts as ended once its threads, which may still hold
    ports, have ended.
    """
    try:
        return not process.is_running() or (
            process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
        )
    except psutil.NoSuchProcess:
        return True


@contextmanager
def timer_slack(microseconds: int) -> Iterator[None]:
    """Let the processes that start meanwhile sleep this much longer than they ask for, so that those which sleep
    briefly wake less often; 0 leaves it as it is. Only Linux can do that.
    """
    if not microseconds or sys.platform != "linux":
        yield
        return
    control = ctypes.CDLL(None).prctl
    before = control(GET_TIMER_SLACK)
    control(SET_TIMER_SLACK, ctypes.c_ulong(microseconds * 1000))
    try:
        yield
    finally:
        control(SET_TIMER_SLACK, ctypes.c_ulong(before))


def port_is_free(port: int) -> bool:
    """Return whether a program could listen on 127.0.0.1:port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
