"""Kill a process by SIGKILL while it writes the progress of many persistence ids; the next one completes it."""

import subprocess
import sys
import time
from typing import Any
from uuid import uuid4

import pytest

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import CassandraSettings
from tagmill.domain import timeuuid
from tagmill.domain.continuity.model import Progress
from tagmill.ledger import progress_rows, schema
from tagmill.ledger.runs import Ledger

IDS = 12_000
TICK = 17_952_444_000_000_000
OFFSET = str(timeuuid.lowest(TICK))
PROGRAM = """
import sys
from tagmill.config.settings import CassandraSettings
from tagmill.ledger.runs import Ledger
from tests.faults.test_progress_killed import rows_of
with Ledger(CassandraSettings(port=int(sys.argv[1]), ledger_keyspace=sys.argv[2])) as ledger:
    ledger.delivered.write_progress("p", 2, rows_of(2))
"""


def rows_of(run: int) -> list[tuple[str, str, Progress]]:
    """Return the progress that a run writes; each third id has gaps."""
    gaps = ((1, run),)
    return [
        (f"tag-{one % 5}", f"p-{one}", Progress(run, run + one, TICK, OFFSET, gaps if one % 3 == 0 else ()))
        for one in range(IDS)
    ]


@pytest.fixture
def configured(stack: Any) -> Any:
    """Yield settings of Cassandra with a ledger of this test's own."""
    keyspace = f"t_killed_{uuid4().hex[:8]}"
    settings = CassandraSettings(port=stack.cassandra.port, ledger_keyspace=keyspace)
    values = {"ledger": keyspace, "replication": "{'class': 'SimpleStrategy', 'replication_factor': 1}"}
    with Cassandra(settings) as cassandra:
        for statement in schema.statements("cassandra", values):
            cassandra.execute(statement)
    yield settings
    stack.session.execute(f"DROP KEYSPACE {keyspace}")


def test_progress_killed_in_the_middle_is_completed(
    configured: CassandraSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill a write over an older run's progress once some ids have it; written again, all have it."""
    monkeypatch.setattr(progress_rows, "ROWS_AT_ONCE", IDS // 3 + 1)
    with Ledger(configured) as ledger:
        older, newer = rows_of(1), rows_of(2)
        keys = [(tag, persistence_id) for tag, persistence_id, _ in newer]
        ledger.delivered.write_progress("p", 1, older)

        def stored() -> list[Progress | None]:
            return list(ledger.delivered.progress("p", keys))

        command = [sys.executable, "-c", PROGRAM, str(configured.port), configured.ledger_keyspace]
        process = subprocess.Popen(command)  # noqa: S603
        first = [("tag-0", "p-0")]
        while next(iter(ledger.delivered.progress("p", first))) == older[0][2]:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
        found = stored()
        changed = sum(one == row[2] for one, row in zip(found, newer, strict=True))
        assert 0 < changed < IDS
        assert all(one in (old[2], new[2]) for one, old, new in zip(found, older, newer, strict=True))
        for _ in range(2):
            assert ledger.delivered.write_progress("p", 2, newer) == IDS
            assert stored() == [row[2] for row in newer]
