"""The application writes rows of the view with a TTL: expired rows are no loss, and rows that Tagmill writes expire too."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from tagmill.audit.repair import repair
from tagmill.config.settings import Settings
from tagmill.ledger import schema
from tagmill.views.model import Difference
from tagmill.views.rebuild import rebuild
from tagmill.views.selection import Selection
from tests.support.auditing import audited
from tests.support.delivery import OWNER, deliver, only
from tests.support.events import Journal, events, this_hour

TTL = 2 * 86_400
OLD, NEW = this_hour() - timedelta(days=3), this_hour() - timedelta(hours=2)


@dataclass
class Expired:
    """A delivered journal of which the TTL has taken the first three of four old rows."""

    journal: Journal
    settings: Settings
    new: list[dict[str, Any]]

    def left(self, persistence_id: str) -> dict[int, int | None]:
        """Return the seconds that each row of the view has left, by sequence_nr."""
        rows = self.journal.session.execute(
            "SELECT persistence_id, sequence_nr, ttl(event) AS left FROM "
            f"{self.journal.keyspace}.{self.journal.view_table}"
        )
        return {row.sequence_nr: row.left for row in rows if row.persistence_id == persistence_id}


@pytest.fixture
def expired(journal: Any, settings: Any, spark: Any) -> Iterator[Callable[..., Expired]]:
    """Yield expired(), which makes a case; a delivery has healed the second new row."""

    def make() -> Expired:
        made, old, new = journal(), events("old", range(1, 5), OLD), events("new", range(1, 5), NEW)
        configured = settings(
            made.keyspace,
            tags=["t"],
            bucket_size="Hour",
            first_time_bucket=OLD.isoformat(),
            cleanup={"application_ttl_seconds": TTL},
        )
        schema.apply(configured)
        made.messages([*old, *new])
        made.view([*old, new[0], *new[2:]])
        deliver(configured, only(configured), spark)
        made.view(old[:3], ttl=1)
        time.sleep(1.5)
        return Expired(made, configured, new)

    yield make


def test_audit_expired_rows_are_no_loss(expired: Any, spark: Any) -> None:
    """Rows past the TTL may be gone from the view; a row that a delivery has healed expires as others do."""
    case = expired()
    assert set(case.left("old")) == {4}
    healed = case.left("new")[2]
    assert healed is not None and TTL - 600 < healed <= TTL
    report = audited(case.settings, spark)
    assert report.agrees
    (line,) = report.tags
    assert (line.journal, line.view, line.clickhouse, line.cleaned) == (8, 5, 8, 3)


@pytest.mark.long
def test_repair_and_rebuild_leave_expired_rows(expired: Any, spark: Any) -> None:
    """Rows come back that are missing within the TTL, or were never delivered; expired rows stay away."""
    case = expired()
    name = only(case.settings)
    case.journal.remove(case.new[2])
    case.journal.messages(events("lost", [1], OLD))
    for persistence_id, last in (("old", 4), ("new", 4), ("lost", 1)):
        case.journal.session.execute(
            f"INSERT INTO {case.journal.keyspace}.tag_write_progress (persistence_id, tag, sequence_nr, "
            "tag_pid_sequence_nr, offset) VALUES (%s, 't', %s, %s, %s)",
            (persistence_id, last, last, case.new[3]["timestamp"]),
        )
    first = audited(case.settings, spark)
    kinds = {kind.value: count for kind, count in first.findings.items()}
    assert kinds == {"missing_in_view": 2, "missing_in_clickhouse": 1}
    repair(case.settings, name, first.audit, spark=spark, owner=OWNER, who="tester", why="a test")
    assert 0 < (case.left("new")[3] or 0) <= TTL and set(case.left("old")) == {4}
    assert 0 < (case.left("lost")[1] or 0) <= TTL
    case.journal.remove(case.new[3])
    report = rebuild(case.settings, name, Selection(), owner=OWNER, spark=spark)
    assert (report.total(Difference.ADDED), report.total(Difference.CLEANED)) == (1, 3)
    assert 0 < (case.left("new")[4] or 0) <= TTL
    assert audited(case.settings, spark).agrees
