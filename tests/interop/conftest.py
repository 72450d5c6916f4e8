"""The real plugin as a command (peer/), built with Maven on first use.

$TAGMILL_TEST_PEER names a folder where it is built already.
"""

import os
import shutil
import subprocess
import threading
import uuid
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "peer"
SECONDS = 240


class Program:
    """The program as a process that executes one command after another, because its start takes longer than
    most of them.
    """

    def __init__(self, folder: Path, errors: Path) -> None:
        self.busy, self._errors = threading.Lock(), errors
        with errors.open("wb") as stderr:
            self._process = subprocess.Popen(
                [folder / "peer.sh", "serve"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                encoding="utf-8",
                env={**os.environ, "PEER_JAVA_OPTS": "-Xmx512m -XX:+UseSerialGC"},
            )

    def __call__(self, *words: str) -> list[str]:
        """Run a command to a good end, while `busy` is held, and return its lines."""
        process = self._process
        assert process.stdin and process.stdout
        watchdog = threading.Timer(SECONDS, process.kill)
        watchdog.start()
        process.stdin.write(" ".join(b64encode(word.encode()).decode() for word in words) + "\n")
        process.stdin.flush()
        lines, line = list[str](), ""
        for line in process.stdout:
            if line.startswith("\x04"):
                break
            lines.append(line.rstrip("\n"))
        watchdog.cancel()
        assert line == "\x040\n", (words, lines[-20:], self._errors.read_text()[-2000:])
        return lines

    def end(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()


class Programs:
    """A pool of the program's processes, as many as are busy at once."""

    def __init__(self, folder: Path, home: Path) -> None:
        self._folder, self._home, self._started = folder, home, list[Program]()

    def __call__(self, *words: str) -> list[str]:
        """Run a command in a free process, or in a new one if all are busy."""
        free = next((program for program in self._started if program.busy.acquire(blocking=False)), None)
        if free is None:
            free = Program(self._folder, self._home / f"peer-{len(self._started)}.err")
            free.busy.acquire()
            self._started.append(free)
        try:
            return free(*words)
        finally:
            free.busy.release()

    def end(self) -> None:
        """Kill all processes."""
        for program in self._started:
            program.end()


class Peer:
    """The program, on one keyspace of the test stack; each command gets `always`."""

    def __init__(self, programs: Programs, port: int, keyspace: str, always: Sequence[str] = ()) -> None:
        self.programs, self.port, self.keyspace, self.always = programs, port, keyspace, always

    def __call__(self, command: str, *arguments: str) -> list[list[str]]:
        """Run a command to a good end; return its lines, split at tabs."""
        lines = self.programs(
            command, "--keyspace", self.keyspace, "--port", str(self.port), *self.always, *arguments
        )
        return [line.split("\t") for line in lines if not line.startswith("RESULT")]

    def write(self, *arguments: str, tagging: bool = False) -> None:
        """Let persistent actors write events, without events-by-tag unless `tagging` is set."""
        setting = f"pekko.persistence.cassandra.events-by-tag.enabled={str(tagging).lower()}"
        self("write", "--set", setting, *arguments)

    def read(self, tag: str, bucket: str, first: str, *arguments: str) -> list[tuple[str, int, str]]:
        """Return (persistence_id, sequence_nr, offset) of currentEventsByTag, in its order."""
        lines = self("read", "--tag", tag, "--bucket", bucket, "--first-bucket", first, *arguments)
        return [(line[0], int(line[1]), line[2]) for line in lines]


@pytest.fixture(scope="session")
def peer_folder() -> Path:
    """Return where the program is built, and build it if needed; skip the test without java or, for a build,
    without Maven.
    """
    folder = Path(os.environ.get("TAGMILL_TEST_PEER") or HERE)
    if not shutil.which("java"):
        pytest.skip("the real plugin needs a java on PATH")
    if not (folder / "target" / "lib").is_dir():
        if not shutil.which("mvn"):
            pytest.skip(
                "the real plugin (tests/interop/peer) is built with Maven, and there is no mvn on PATH"
            )
        built = subprocess.run(["mvn", "-q", "package"], cwd=folder, capture_output=True, text=True)
        if built.returncode:
            pytest.skip(
                f"Maven could not build the real plugin: {(built.stdout + built.stderr).strip()[:300]}"
            )
    return folder


@pytest.fixture(scope="session")
def peer_programs(peer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Yield the running program."""
    programs = Programs(peer_folder, tmp_path_factory.mktemp("peer"))
    yield programs
    programs.end()


@pytest.fixture
def peer(stack: Any, peer_programs: Programs) -> Iterator[Callable[[], Peer]]:
    """Return make(*options), which makes the plugin on a keyspace of its own.

    Its first command creates the keyspace, which is dropped after the test.
    """
    made: list[str] = []

    def make(*always: str) -> Peer:
        made.append(f"t_{uuid.uuid4().hex[:12]}")
        return Peer(peer_programs, stack.cassandra.port, made[-1], always)

    yield make
    for name in made:
        stack.session.execute(f"DROP KEYSPACE IF EXISTS {name}")
        stack.session.execute(f"DROP KEYSPACE IF EXISTS {name}_snap")
