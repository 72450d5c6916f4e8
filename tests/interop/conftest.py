"""The real plugin as a command (peer/), built with Maven on first use. $TAGMILL_TEST_PEER names a folder where it is built already."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "peer"
SECONDS = 240


class Peer:
    """The program, on one keyspace of the test stack; each command gets `always`."""

    def __init__(self, folder: Path, port: int, keyspace: str, always: Sequence[str] = ()) -> None:
        self.folder, self.port, self.keyspace, self.always = folder, port, keyspace, always

    def __call__(self, command: str, *arguments: str) -> list[list[str]]:
        """Run a command to a good end; its lines, split at tabs."""
        done = subprocess.run(
            [self.folder / "peer.sh", command, "--keyspace", self.keyspace, "--port", str(self.port), *self.always, *arguments],
            capture_output=True, text=True, timeout=SECONDS, env={**os.environ, "PEER_JAVA_OPTS": "-Xmx512m -XX:+UseSerialGC"},
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        return [line.split("\t") for line in done.stdout.splitlines() if not line.startswith("RESULT")]

    def write(self, *arguments: str, tagging: bool = False) -> None:
        """Persistent actors write events; events-by-tag is off unless asked for."""
        setting = f"pekko.persistence.cassandra.events-by-tag.enabled={str(tagging).lower()}"
        self("write", "--set", setting, *arguments)

    def read(self, tag: str, bucket: str, first: str, *arguments: str) -> list[tuple[str, int, str]]:
        """currentEventsByTag: (persistence_id, sequence_nr, offset) in its order."""
        lines = self("read", "--tag", tag, "--bucket", bucket, "--first-bucket", first, *arguments)
        return [(line[0], int(line[1]), line[2]) for line in lines]


@pytest.fixture(scope="session")
def peer_folder() -> Path:
    """Where the program is built; skips where it is not and there is no Maven."""
    folder = Path(os.environ.get("TAGMILL_TEST_PEER") or HERE)
    if not shutil.which("java"):
        pytest.skip("the real plugin needs a java on PATH")
    if not (folder / "target" / "lib").is_dir():
        if not shutil.which("mvn"):
            pytest.skip("the real plugin (tests/interop/peer) is built with Maven, and there is no mvn on PATH")
        built = subprocess.run(["mvn", "-q", "package"], cwd=folder, capture_output=True, text=True)
        if built.returncode:
            pytest.skip(f"Maven could not build the real plugin: {(built.stdout + built.stderr).strip()[:300]}")
    return folder


@pytest.fixture
def peer(stack: Any, peer_folder: Path) -> Iterator[Callable[[], Peer]]:
    """peer(options) -> the plugin on a keyspace of its own, which its first command creates; dropped after the test."""
    made: list[str] = []

    def make(*always: str) -> Peer:
        made.append(f"t_{uuid.uuid4().hex[:12]}")
        return Peer(peer_folder, stack.cassandra.port, made[-1], always)

    yield make
    for name in made:
        stack.session.execute(f"DROP KEYSPACE IF EXISTS {name}")
        stack.session.execute(f"DROP KEYSPACE IF EXISTS {name}_snap")
