"""Connections that a process keeps for its next work: the steps of a run follow each other in one process."""

import os
from collections import deque
from typing import Generic, Protocol, Self, TypeVar

# Connections of a kind that are kept.
MOST_IDLE = 2


class Connection(Protocol):
    """A connection that works for one caller at a time."""

    @property
    def made_for(self) -> tuple[object, ...]:
        """What `take` must be given."""

    def works(self) -> bool:
        """Return whether the server still answers on it."""

    def end(self) -> None:
        """End it and its threads."""


C = TypeVar("C", bound=Connection)


class IdleConnections(Generic[C]):
    """The connections of one kind that nobody uses, the last given back at the end."""

    def __init__(self) -> None:
        self._kept = deque[tuple[int, C]]()

    def take(self, *made_for: object) -> C | None:
        """Return a connection that was made for exactly this, by this process, and works; None: there is none."""
        # Each call on the deque is atomic, so threads need no lock.
        for kept in reversed(tuple(self._kept)):
            process, connection = kept
            if process == os.getpid() and connection.made_for == made_for:
                try:
                    self._kept.remove(kept)
                except ValueError:  # another thread took it
                    continue
                if connection.works():
                    return connection
                connection.end()
        return None

    def give_back(self, connection: C) -> None:
        """Keep a connection; above MOST_IDLE, the one that waits longest ends."""
        self._kept.append((os.getpid(), connection))
        while len(self._kept) > MOST_IDLE:
            process, oldest = self._kept.popleft()
            if process == os.getpid():  # the threads of another process's are not here
                oldest.end()


class Borrower(Generic[C]):
    """What works on a connection that nobody else uses.

    Close it, or use it in `with`: the next one with the same settings takes over its connection.
    """

    def __init__(self, idle: IdleConnections[C], connection: C) -> None:
        self._idle, self._connection, self._is_open = idle, connection, True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back for the next one with the same settings; it ends with the process at the latest."""
        if self._is_open:
            self._is_open = False
            self._idle.give_back(self._connection)
