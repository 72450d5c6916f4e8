"""A relay between a client and a server, whose connections a test cuts."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from tests.support.stack import free_port


class Relay:
    """Passes connections to `port` on to the server at `target`, both on this machine."""

    def __init__(self, target: int) -> None:
        self.target, self.port = target, free_port()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._clients: list[socket.socket] = []
        self._silent = Event()
        Thread(target=self._accept, daemon=True).start()

    def cut_newest(self) -> None:
        """Close the connection that was opened last."""
        self._clients.pop().shutdown(socket.SHUT_RDWR)

    def silence(self) -> None:
        """Pass nothing on any more for the connections that are open; they stay open, as behind a firewall that has
        forgotten them.
        """
        self._silent.set()
        self._silent = Event()

    @contextmanager
    def cutting(self, seconds: float) -> Iterator[None]:
        """Cut one of the connections, chosen by chance, each so many seconds."""
        ended, chance = Event(), random.Random(7)

        def cut() -> None:
            while not ended.wait(seconds):
                with suppress(OSError, IndexError):
                    self._clients.append(self._clients.pop(chance.randrange(len(self._clients))))
                    self.cut_newest()

        cutter = Thread(target=cut, daemon=True)
        cutter.start()
        try:
            yield
        finally:
            ended.set()
            cutter.join()

    def close(self) -> None:
        """Close all connections, and take no new ones."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        while self._clients:
            with suppress(OSError):
                self.cut_newest()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self.target))
                self._clients.append(client)
                for source, sink in ((client, server), (server, client)):
                    Thread(target=_pass_on, args=(source, sink, self._silent), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, silent: Event) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            if not silent.is_set():
                sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


@contextmanager
def relayed(target: int) -> Iterator[Relay]:
    """Yield a relay to the server at port `target`."""
    relay = Relay(target)
    try:
        yield relay
    finally:
        relay.close()
