"""An audit counts what an earlier one has proven, reads what has come since, and reads everything where a count, a
write time or a sum is not as it was.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tagmill.audit import baseline
from tagmill.audit.audit import message
from tagmill.audit.destination_reader import Stored
from tagmill.audit.model import AuditReport
from tagmill.config.settings import Settings
from tagmill.ledger import schema
from tagmill.maintenance.view_cleanup.clean import clean
from tagmill.operations.work_size import few_events, little_to_audit
from tests.support.auditing import audited
from tests.support.delivery import OWNER, deliver, only
from tests.support.events import Journal, event, events

DAYS, IDS, EACH = 3, 6, 20


@dataclass
class Case:
    """A delivered journal whose events of earlier days an audit has proven."""

    journal: Journal
    settings: Settings
    spark: Any
    stack: Any
    began: datetime

    def come(self, *records: dict[str, Any]) -> None:
        """Write events into journal and view, and deliver them."""
        self.journal.both(records)
        deliver(self.settings, only(self.settings), self.spark)

    def audit(self, **options: Any) -> AuditReport:
        """Audit the pipeline."""
        return audited(self.settings, self.spark, **options)

    def kinds(self) -> dict[str, int]:
        """Audit the pipeline by reading everything, and return the findings."""
        report = self.audit()
        assert report.proven_by == 0
        return {kind.value: count for kind, count in report.findings.items()}

    def old(self, table: str, persistence_id: str, number: int) -> str:
        """Return the WHERE that names an event of the first day in a table."""
        row = event(persistence_id, number, self.began + timedelta(seconds=number))
        if table == "messages":
            return (
                f"persistence_id = '{persistence_id}' AND partition_nr = 0 AND sequence_nr = {number} "
                f"AND timestamp = {row['timestamp']}"
            )
        return (
            f"tag_name = 't' AND timebucket = {row['timebucket']} AND timestamp = {row['timestamp']} "
            f"AND persistence_id = '{persistence_id}' AND tag_pid_sequence_nr = {number}"
        )

    def run(self, statement: str) -> None:
        """Run a statement on the journal's keyspace, {k}."""
        self.stack.session.execute(statement.format(k=self.journal.keyspace))


def recent(persistence_id: str, *numbers: int, **columns: Any) -> list[dict[str, Any]]:
    """Return events of just now."""
    begin = datetime.now(UTC) - timedelta(milliseconds=100)
    return [
        event(persistence_id, number, begin + timedelta(milliseconds=n), **columns)
        for n, number in enumerate(numbers)
    ]


@pytest.fixture
def proven(
    journal: Any, settings: Any, stack: Any, spark: Any, monkeypatch: Any
) -> Iterator[Callable[..., Case]]:
    """Yield proven(), which makes a case and audits it once, as if its rows were many."""
    monkeypatch.setattr("tagmill.spark.bulk_load.FEW_ROWS", 0)

    def make(**keys: Any) -> Case:
        began = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=DAYS)
        made = journal()
        configured = settings(
            made.keyspace,
            tags=["t"],
            bucket_size="Hour",
            first_time_bucket=began.isoformat(),
            look_back_seconds=0,
            **keys,
        )
        schema.apply(configured)
        case = Case(made, configured, spark, stack, began)
        old = [
            record
            for day in range(DAYS)
            for one in range(IDS)
            for record in events(
                f"id-{one}", range(day * EACH + 1, (day + 1) * EACH + 1), began + timedelta(days=day)
            )
        ]
        case.come(*old)
        first = case.audit()
        assert first.agrees and first.proven_by == 0 and first.journal == DAYS * IDS * EACH
        return case

    yield make


def staged(case: Case, report: AuditReport, table: str) -> int:
    """Return the number of rows that an audit has read of a table."""
    folder = Path(case.settings.storage.root) / report.folder / table
    return sum(pq.read_metadata(file).num_rows for file in folder.rglob("*.parquet"))


def test_audit_reads_only_what_came(proven):
    """Known ids, a new id and none of an id: the figures are those of an audit that reads everything."""
    case = proven()
    spark = case.settings.spark.model_copy(update={"small_job_rows": 100})
    few = case.settings.model_copy(update={"spark": spark})
    assert little_to_audit(few, only(few)) and not few_events(few, only(few))
    case.come(*recent("id-0", 61, 62), *recent("new", 1, 2, 3))
    report = case.audit()
    assert report.agrees and report.proven_by == 1 and report.journal == DAYS * IDS * EACH + 5
    assert (staged(case, report, "journal"), staged(case, report, "view")) == (5, 5)
    assert "what audit 1 has proven before" in message(report)
    whole = case.audit(full=True)
    assert whole.agrees and whole.proven_by == 0 and staged(case, whole, "journal") == report.journal
    assert [line.model_dump() for line in report.tags] == [line.model_dump() for line in whole.tags]
    nothing_new = case.audit()
    assert nothing_new.proven_by == whole.audit and nothing_new.tags == whole.tags


@pytest.mark.long
def test_audit_proof_grows_with_time(proven, monkeypatch):
    """Each audit takes over what has become old, so that the next one does not read it again."""
    case = proven()
    with monkeypatch.context() as patch:  # as if it were an hour earlier
        before = baseline.border
        patch.setattr(baseline, "border", lambda scope: before(scope) - 2 * 24 * 3600 * 10**7)
        assert case.audit(full=True).agrees
    assert case.audit().proven_by == 2
    report = case.audit()
    assert report.proven_by == 3 and staged(case, report, "journal") == 0
    assert report.journal == DAYS * IDS * EACH


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        pytest.param(
            "DELETE FROM {k}.tag_views WHERE {view}", {"missing_in_view": 1}, marks=pytest.mark.long
        ),
        ("UPDATE {k}.tag_views SET event = 0x01 WHERE {view}", {"differs_in_view": 1}),
        pytest.param(
            "DELETE FROM {k}.messages WHERE {messages}",
            {"extra_in_view": 1, "journal_hole": 1},
            marks=pytest.mark.long,
        ),
        (
            "UPDATE {k}.messages SET event = 0x01 WHERE {messages}",
            {"differs_in_view": 1, "differs_in_clickhouse": 1},
        ),
    ],
    ids=["view row gone", "view row changed", "event gone", "event changed"],
)
def test_changed_past_is_read_again(statement: str, finding: dict[str, int], proven: Any) -> None:
    """A row of the past that is deleted or changed in Cassandra is found by name, as if nothing had been proven."""
    case = proven()
    case.come(*recent("id-1", 61))
    where = {table: case.old(table, "id-1", 5) for table in ("messages", "tag_views")}
    case.run(statement.replace("{view}", where["tag_views"]).replace("{messages}", where["messages"]))
    assert case.kinds() == finding
    # What disagrees proves nothing for the next one.
    assert case.kinds() == finding


@pytest.mark.long
def test_changed_clickhouse_is_read_again(proven, stack):
    """A payload of the past that is changed in ClickHouse is found, though no count differs."""
    case = proven()
    client = stack.client(settings={"mutations_sync": 2})
    name = only(case.settings)
    client.command(
        f"ALTER TABLE `{name}` UPDATE event = 'x' WHERE persistence_id = 'id-2' AND sequence_nr = 7"
    )
    client.close()
    assert case.kinds() == {"differs_in_clickhouse": 1}


@pytest.mark.long
@pytest.mark.parametrize(
    ("records", "finding"),
    [
        (
            [event("id-0", 61, datetime.now(UTC) - timedelta(days=1))],
            {"missing_in_view": 1, "missing_in_clickhouse": 1},
        ),
        ([event("id-0", 61, datetime.now(UTC)), event("id-0", 63, datetime.now(UTC))], {"journal_hole": 1}),
        ([event("id-0", 63, datetime.now(UTC), tag="other")], {"journal_hole": 1}),
    ],
    ids=["event of yesterday", "gap among the new", "gap in front of the new"],
)
def test_wrong_new_events_are_found(
    records: list[dict[str, Any]], finding: dict[str, int], proven: Any
) -> None:
    case = proven()
    case.journal.messages(records)
    found = case.kinds()
    assert found.items() >= finding.items()


@pytest.mark.parametrize(
    ("persistence_id", "number", "partition_nr", "kind"),
    [
        ("id-0", 61, 7, "missing_in_view"),
        pytest.param("new", 1, 7, "missing_in_view", marks=pytest.mark.long),
        pytest.param("id-0", 5, 1, "two_writers", marks=pytest.mark.long),
    ],
    ids=["next event far away", "new id far away", "second writer"],
)
def test_events_elsewhere_are_found(
    persistence_id: str, number: int, partition_nr: int, kind: str, proven: Any
) -> None:
    """An event in a partition where none is looked for is counted, so everything is read."""
    case = proven()
    writer = "0a1b2c3d-0000-4000-8000-000000000002"
    case.journal.messages(recent(persistence_id, number, partition_nr=partition_nr, writer_uuid=writer))
    assert kind in case.kinds()


def test_wrong_new_number_is_found(proven):
    """The first new row of a tag has the wrong number."""
    case = proven()
    (record,) = recent("id-3", 61)
    case.journal.messages([record])
    case.journal.view([{**record, "tag_pid_sequence_nr": 62}])
    assert "wrong_number" in case.kinds()


@pytest.mark.long
def test_progress_ahead_is_found(proven):
    """The ledger's progress is ahead of all that is there."""
    case = proven()
    name = only(case.settings)
    ledger = case.settings.cassandra.ledger_keyspace
    case.stack.session.execute(
        f"UPDATE {ledger}.progress SET tag_pid_sequence_nr = 70 WHERE pipeline = '{name}' AND tag = 't' "
        "AND persistence_id = 'id-4'"
    )
    assert case.kinds() == {"progress_differs": 1}


@pytest.mark.parametrize("full", [False, True], ids=["from a baseline", "everything"])
def test_audit_beside_ended_hold_agrees(full: bool, proven: Any) -> None:
    """A run ends a hold after progress was read: what it delivers is not more than progress says."""
    case = proven()
    rows = recent("held", *range(1, 8))
    late = rows.pop(3)
    case.come(*rows)

    def tell(step: str) -> None:
        if step.startswith("reading the journal"):
            case.journal.both([late])
            (closed,) = deliver(case.settings, only(case.settings), case.spark)
            assert closed["rows"] == 4

    report = case.audit(full=full, tell=tell)
    assert report.findings == {} and report.proven_by == (0 if full else 1)
    assert report.clickhouse == DAYS * IDS * EACH + 7


@pytest.mark.parametrize("full", [False, True], ids=["from a baseline", "everything"])
def test_audit_beside_resend_agrees(full: bool, proven: Any, stack: Any, monkeypatch: Any) -> None:
    """Rows of a batch that is sent again are away while ClickHouse's ids are read, and back soon after."""
    case = proven()
    case.come(*recent("new", 1, 2, 3))
    table, sent, is_new = only(case.settings), f"{only(case.settings)}_sent", "persistence_id = 'new'"
    stack.rows(f"CREATE TABLE {sent} ENGINE = Memory AS SELECT * FROM {table} WHERE {is_new}")
    read, names = Stored.ids, list[str]()

    def ids(self: Stored, name: str, since: int | None = None) -> Any:
        if not names:
            stack.rows(f"ALTER TABLE {table} DELETE WHERE {is_new} SETTINGS mutations_sync = 2")
        found = read(self, name, since)
        if not names:
            stack.rows(f"INSERT INTO {table} SELECT * FROM {sent}")
        names.append(name)
        return found

    monkeypatch.setattr(Stored, "ids", ids)
    report = case.audit(full=full)
    stack.rows(f"DROP TABLE {sent}")
    assert report.findings == {} and report.proven_by == (0 if full else 1)
    assert names[:2] == ["ids", "ids-again"]


def test_deleted_events_are_no_doubt(proven):
    """The application deletes events of the past, as the plugin does: the proof goes on."""
    case = proven()
    case.journal.deleted_to("id-0", 30)
    case.journal.deleted_to("id-1", 60)
    for one, upto in (("id-0", 30), ("id-1", 60)):
        case.run(
            f"DELETE FROM {{k}}.messages WHERE persistence_id = '{one}' AND partition_nr = 0 AND sequence_nr <= {upto}"
        )
    case.come(*recent("id-1", 61))
    report = case.audit()
    assert report.agrees and report.proven_by == 1
    assert case.audit().proven_by == 1


@pytest.mark.long
def test_cleaned_partitions_are_no_doubt(proven):
    """A cleanup takes partitions that were proven: the proof goes on, and the figures say so."""
    case = proven(cleanup={"enabled": True, "older_than_days": 1, "other_readers": []})
    assert clean(case.settings, only(case.settings), owner=OWNER, delete=True)["buckets"]
    report = case.audit()
    assert report.agrees and report.proven_by == 1
    assert report.tags == case.audit(full=True).tags
    assert report.view < report.journal == report.view + report.tags[0].cleaned


@pytest.mark.long
def test_expired_rows_are_no_doubt(proven):
    """The application's TTL takes rows that were proven, also some of a partition: the proof goes on."""
    case = proven(cleanup={"application_ttl_seconds": 2 * 24 * 3600})
    rows = [row for row in case.journal.rows() if row["sequence_nr"] <= EACH + 5]
    case.journal.view(rows, ttl=1)
    time.sleep(1.5)
    case.come(*recent("id-1", 61))
    report = case.audit()
    assert report.agrees and report.proven_by == 1
    assert report.tags == case.audit(full=True).tags
    assert report.tags[0].cleaned == len(rows) == report.journal - report.view


@pytest.mark.long
@pytest.mark.parametrize("change", ["lost file", "damaged file", "other tags", "off", "old"])
def test_proof_that_does_not_fit_is_left(change: str, proven: Any) -> None:
    """A baseline with a lost or damaged file, of another scope, switched off or too old is not begun from."""
    case = proven()
    name = only(case.settings)
    if change.endswith("file"):
        folder = Path(case.settings.storage.root) / name / "audit" / "baseline-00000001" / "places"
        file = next(file for file in folder.glob("*.parquet") if pq.read_metadata(file).num_rows)
        file.unlink()
        if change == "damaged file":
            file.write_bytes(b"PAR1")
    elif change == "other tags":
        case.settings = _with(case.settings, name, first_time_bucket=case.began + timedelta(days=1))
    elif change == "off":
        case.settings = _with(case.settings, name, audit_full_days=0)
    else:
        folder = Path(case.settings.storage.root) / name / "audit" / "baseline-00000001"
        file = folder / "baseline.json"
        document = baseline.Baseline.model_validate_json(file.read_bytes())
        then = document.read_all_at - timedelta(days=case.settings.pipelines[name].audit_full_days)
        file.write_text(document.model_copy(update={"read_all_at": then}).model_dump_json())
    report = case.audit()
    assert report.agrees and report.proven_by == 0


def _with(settings: Settings, name: str, **keys: Any) -> Settings:
    changed = settings.pipelines[name].model_copy(update=keys)
    return settings.model_copy(update={"pipelines": {name: changed}})
