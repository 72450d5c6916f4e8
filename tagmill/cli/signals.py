"""End a command at Ctrl-C or SIGTERM with one line."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from tagmill.spark.errors import chain

TEXT = "stopped; nothing is lost, the same command goes on where this one was"


class Stopped(KeyboardInterrupt):
    """Raised when a signal ends this process."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def raised() -> Iterator[None]:
    """Raise Stopped at the first Ctrl-C or SIGTERM; the second one ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        if received:
            os.write(2, f"{TEXT}\n".encode())
            os._exit(128 + number)
        received.append(number)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ended(error: BaseException) -> typer.Exit:
    """Print that the command was stopped, and return its exit: 130 for Ctrl-C, 143 for SIGTERM."""
    numbers = [one.number for one in chain(error) if isinstance(one, Stopped)]
    typer.echo(TEXT, err=True)
    return typer.Exit(128 + (numbers[0] if numbers else signal.SIGINT))
