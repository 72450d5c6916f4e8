"""Connections that a process keeps for its next work."""

import os
from dataclasses import dataclass

from tagmill.idle_connections import MOST_IDLE, IdleConnections


@dataclass(eq=False)
class Connection:
    """A connection that is made for a name; it works until it has ended or broken."""

    name: str
    is_broken: bool = False
    has_ended: bool = False

    @property
    def made_for(self):
        """Return what it is taken by."""
        return (self.name,)

    def works(self):
        """Return whether it works."""
        return not self.is_broken and not self.has_ended

    def end(self):
        """End it."""
        self.has_ended = True


def test_connection_is_taken_by_its_own_settings():
    idle, a, b = IdleConnections(), Connection("a"), Connection("b")
    idle.give_back(a)
    idle.give_back(b)
    assert idle.take("c") is None and idle.take("a", 1) is None
    assert idle.take("a") is a and idle.take("a") is None
    assert idle.take("b") is b and not a.has_ended and not b.has_ended


def test_the_last_given_back_is_taken_first():
    idle, first, second = IdleConnections(), Connection("a"), Connection("a")
    idle.give_back(first)
    idle.give_back(second)
    assert idle.take("a") is second and idle.take("a") is first


def test_broken_connection_ends_and_the_next_is_taken():
    idle, works, broken = IdleConnections(), Connection("a"), Connection("a", is_broken=True)
    idle.give_back(works)
    idle.give_back(broken)
    assert idle.take("a") is works and broken.has_ended
    idle.give_back(broken)
    assert idle.take("a") is None


def test_above_the_most_the_oldest_ends():
    idle, connections = IdleConnections(), [Connection(str(number)) for number in range(MOST_IDLE + 1)]
    for connection in connections:
        idle.give_back(connection)
    assert [connection.has_ended for connection in connections] == [True] + [False] * MOST_IDLE


def test_connections_of_another_process_are_left_alone(monkeypatch):
    """A forked process has no threads of its parent's connections: it neither uses nor ends them."""
    idle, of_parent, own = IdleConnections(), Connection("a"), Connection("a")
    idle.give_back(of_parent)
    child = os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: child)
    assert idle.take("a") is None
    idle.give_back(own)
    for number in range(MOST_IDLE):
        idle.give_back(Connection(str(number)))
    assert own.has_ended and not of_parent.has_ended
