"""Start, stop and inspect the parts of a stack, one command at a time."""

import fcntl
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from local.airflow import Airflow
from local.cassandra import Cassandra
from local.clickhouse import ClickHouse
from local.config import write_config
from local.errors import require_room, require_space
from local.kafka import Kafka
from local.layout import StackLayout
from local.service import Service
from tagmill.errors import ConfigurationError, LeaseTaken
from tagmill.runs.privacy import make_folder

NAMES = ("cassandra", "clickhouse", "kafka", "airflow")
Told = Callable[[str], None]


def _silent(_: str) -> None:
    """Discard the message: the default for callers that want none."""


@dataclass(frozen=True)
class PartStatus:
    """The state of one part: whether it runs, and where."""

    part: str
    up: bool
    pid: int | None
    port: int
    where: str
    home: str


class Stack:
    """All parts of one home; a start either starts all named parts or none."""

    def __init__(self, layout: StackLayout) -> None:
        self.layout = layout
        self.cassandra = Cassandra(
            layout.home / "cassandra", layout.ports.cassandra, layout.jars / "cassandra"
        )
        self.clickhouse = ClickHouse(layout.home / "clickhouse", layout.ports.clickhouse)
        self.kafka = Kafka(layout.home / "kafka", layout.ports.kafka, layout.jars / "kafka")
        self.airflow = Airflow(layout)

    def parts(self, names: Sequence[str] = ()) -> list[Service]:
        """Return the named parts, or all if none is named, in the order in which they start."""
        if unknown := set(names) - set(NAMES):
            raise ConfigurationError(
                f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(NAMES)}. "
                "Nothing was done"
            )
        return [getattr(self, name) for name in NAMES if not names or name in names]

    def require(self, names: Sequence[str] = ()) -> None:
        """Raise what would keep the parts from starting: too little space, a busy port, one port for two
        parts, no Java.
        """
        require_space(self.layout.home)
        ports = [port for part in self.parts() for port in part.ports()]
        if twice := {port for port in ports if ports.count(port) > 1}:
            raise ConfigurationError(
                f"port {min(twice)} is given to two parts of the stack (Cassandra and Kafka take their "
                "own and that plus 10000). "
                "Nothing was started. Choose other ports with TAGMILL_LOCAL_CASSANDRA_PORT, "
                "…_CLICKHOUSE_PORT, …_KAFKA_PORT, …_AIRFLOW_PORT"
            )
        for part in self.parts(names):
            part.require_ports()
            part.command()  # raises when its program or its Java is missing

    def require_alive(self) -> None:
        """Raise what keeps started parts from going on: a full disk, or a part that has ended."""
        require_room(self.layout.home)
        for part in self.parts():
            part.require_alive()

    def up(self, names: Sequence[str] = (), tell: Told = _silent) -> None:
        """Start the parts; if one fails, stop those that this call started."""
        parts = self.parts(names)
        self.require(names)
        started: list[Service] = []
        with self._alone():
            self.layout.remember()
            write_config(self.layout)
            try:
                for part in parts:
                    started.append(part)
                    seconds = part.start()
                    if seconds:
                        tell(f"{part.name} started in {seconds:.1f} s")
                    else:
                        started.remove(part)
                        tell(f"{part.name} runs already")
            except BaseException:
                for part in reversed(started):
                    part.stop()
                raise

    def down(self, names: Sequence[str] = (), tell: Told = _silent) -> None:
        """Stop the parts and everything that they started; their data stay."""
        with self._alone():
            for part in reversed(self.parts(names)):
                seconds = part.stop()
                tell(f"{part.name} stopped in {seconds:.1f} s" if seconds else f"{part.name} was not running")

    def status(self) -> list[PartStatus]:
        """Return the status of every part, running or not."""
        return [
            PartStatus(part.name, part.running(), part.pid(), part.port, part.where(), str(part.home))
            for part in self.parts()
        ]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the home's lock, so that only one `up` or `down` runs in it; the operating system releases it
        when the process ends.

        Raises:
            LeaseTaken: another command holds the lock.
        """
        make_folder(self.layout.home)
        with open(self.layout.home / "lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                home = self.layout.home
                raise LeaseTaken(
                    f"the stack in {home} is being started or stopped by another command; nothing was "
                    "done. Try again"
                ) from None
            yield
