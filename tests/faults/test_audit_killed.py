"""A killed audit leaves no record that the next one would trust, and a killed repair finishes when it is
started again.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.conftest import Delivery
from tests.support.delivery import clickhouse_rows


@pytest.mark.long
@pytest.mark.timeout(900)
def test_audit_killed_then_repeated_reports_correctly(delivery: Callable[..., Delivery]) -> None:
    """Kill one audit and crash another; the third agrees and sweeps the files of the ones before."""
    audited = delivery("partition-boundary")
    audited.start("audit", at="audit.view_read").kill()
    audited.crash("audit", at="audit.before_end")
    home = Path(audited.settings.storage.root) / audited.pipeline / "audit"
    assert [folder.name for folder in home.iterdir()] == ["00000002"], (
        "the first one's files are swept by the second one"
    )
    ended = audited.here("audit", "--json")
    assert ended.code == 0, ended
    report = json.loads(ended.out)
    assert (report["audit"], report["agrees"]) == (3, True)
    assert sum(line["view"] for line in report["tags"]) == 2 * 864
    assert [folder.name for folder in home.iterdir()] == ["00000003"]
    listed = json.loads(audited.said("audits", "--json").out)
    assert [(row["audit"], row["state"], row["agrees"]) for row in listed] == [
        (3, "DONE", True),
        (2, "RUNNING", None),
        (1, "RUNNING", None),
    ]


@pytest.mark.timeout(900)
def test_repair_crashed_then_repeated_restores_all(delivery: Callable[..., Delivery]) -> None:
    """Crash a repair and the next one; the third restores view and ClickHouse."""
    repaired = delivery("partition-boundary", lease_seconds=5)
    repaired.finish()
    delivered, view = clickhouse_rows(repaired.settings, repaired.table), repaired.view()
    repaired.sql(
        f"ALTER TABLE {repaired.table} DELETE WHERE batch_id = "
        f"toUUID('{repaired.manifest().batches[0].batch_id}')"
    )
    session, table = repaired.stack.session, f"{repaired.keyspace}.tag_views"
    row = session.execute(f"SELECT * FROM {table} LIMIT 1").one()
    key = ("tag_name", "timebucket", "timestamp", "persistence_id", "tag_pid_sequence_nr")
    where = " AND ".join(f"{name} = %s" for name in key)
    session.execute(f"DELETE FROM {table} WHERE {where}", [getattr(row, name) for name in key])
    repair = ("repair", "--why", "seen in a test", "--yes", "--json")
    repaired.crash(*repair, at="repair.rows_written")
    repaired.crash(*repair, at="repair.resent")
    ended = repaired.here(*repair)
    assert ended.code == 0, ended
    report = json.loads(ended.out)
    assert report["agrees"] and report["findings"] == {}
    # clickhouse_rows leaves out the generation, which the resend has raised.
    assert clickhouse_rows(repaired.settings, repaired.table) == delivered
    assert repaired.view() == view
    assert repaired.check().code == 0
