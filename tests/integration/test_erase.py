"""An erasure leaves nothing of a persistence id anywhere and changes nothing else; deliveries and audits
continue.
"""

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.tag_views import steps
from tagmill.domain.batches.states import BatchState
from tagmill.errors import (
    BatchDiffers,
    ConfigurationError,
    PersistenceIdsUnknown,
    WorkUnfinished,
)
from tagmill.ledger.attempts import of_builds
from tagmill.ledger.cleanups import Cleaning, CleanupLog
from tagmill.ledger.erasure_plans import ErasurePlans
from tagmill.ledger.erasures import Erasures, ErasureState
from tagmill.ledger.failures import Failures
from tagmill.ledger.runs import Ledger
from tagmill.maintenance.erasure.journal import JournalOfIds
from tagmill.maintenance.view_cleanup.clean import clean
from tagmill.runs.storage import RunFiles
from tagmill.runs.workspace import open_workspace
from tests.support import auditing
from tests.support.cleaning import with_keys
from tests.support.delivery import (
    OWNER,
    clickhouse_rows,
    deliver,
    delivered_first,
    manifests,
    only,
    tagmill,
    verdicts,
)
from tests.support.erasing import erased, left
from tests.support.errors import raises
from tests.support.events import event, events, this_hour
from tests.support.journal_cleaning import add_snapshots, cleaned, in_journal, snapshots
from tests.support.leases import free_lease
from tests.support.rebucketing import switched
from tests.support.topics import Crashed, crashing

HOUR = timedelta(hours=1)
BEGIN = this_hour() - timedelta(days=3)
GONE, SECRET = "customer/it's #17", "S3CR3T"
TAGS = ("t", "u")
COUNTED = (
    "events",
    "snapshots",
    "view_rows",
    "not_delivered",
    "batch_rows",
    "clickhouse_rows",
    "progress",
    "holds",
)


def of(persistence_id, numbers, tag="t", begin=BEGIN):
    """Return events whose payload names their persistence id; those of GONE also contain SECRET."""
    payload = (SECRET if persistence_id == GONE else "plain").encode()
    return events(
        persistence_id, numbers, begin, tag, event=b"payload of " + persistence_id.encode() + b": " + payload
    )


def both(persistence_id, numbers, begin=BEGIN):
    """Return events that have both tags, as rows of each tag."""
    numbers = list(numbers)
    records = [*of(persistence_id, numbers, "t", begin), *of(persistence_id, numbers, "u", begin)]
    return [{**record, "tags": set(TAGS)} for record in records]


def name_in_files(settings, pipeline):
    """Write files that name GONE as jobs leave them: reports, also half of one, arguments, and a trace."""
    for file in (
        "all/reports/deliver.json",
        f"{pipeline}/reports/seal.part",
        f"{pipeline}/reports/seal.arguments",
        "_logs/seal.log",
    ):
        path = Path(settings.storage.root, file)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"persistence id '{GONE}'\n")


def soon():
    """Return a start time for events that the next run reads."""
    return datetime.now(UTC) - timedelta(seconds=30)


class Applied:
    """A journal whose tags t and u are delivered."""

    def __init__(self, journal, settings, spark, records, **keys):
        self.journal, self.spark, self.session = journal, spark, journal.session
        self.write(records)
        self.settings = settings(
            journal.keyspace, tags=list(TAGS), bucket_size="Hour", first_time_bucket=BEGIN.isoformat(), **keys
        )
        self.name = only(self.settings)
        self.file = settings.file(self.name)
        self.snapshots = f"{journal.keyspace}_snapshot"
        delivered_first(self.settings, spark)
        self.free()

    def write(self, records):
        """Write events and the list of persistence ids as the application does."""
        self.journal.both(records)
        for persistence_id in {record["persistence_id"] for record in records}:
            self.session.execute(
                f"INSERT INTO {self.journal.keyspace}.all_persistence_ids (persistence_id) VALUES (%s)",
                (persistence_id,),
            )

    def free(self):
        """Delete the lease that a delivery in this process has left."""
        free_lease(self.session, self.name)

    def deliver(self, **options):
        done = deliver(self.settings, self.name, self.spark, **options)
        self.free()
        return done

    def rows(self, *, but=GONE):
        return [row for row in clickhouse_rows(self.settings, self.name) if row.persistence_id != but]

    def left(self, text, settings=None):
        """Return the places where a text still is."""
        return left(self.session, settings or self.settings, text, self.journal.keyspace, self.snapshots)

    def command(self, *arguments, answer=None):
        """Run a command of the pipeline; return exit status, stdout and stderr."""
        return tagmill(self.file, *arguments, "--pipeline", self.name, answer=answer)

    def agrees(self):
        """Check that the audit, the verdicts and `tagmill check` find nothing wrong."""
        report = auditing.audited(self.settings, self.spark)
        assert report.agrees, report
        assert set(verdicts(self.settings, self.name).values()) == {"exactly once"}
        assert self.command("check")[0] == 0


@pytest.fixture
def applied(journal, settings, spark):
    """Yield applied(records, …), which returns an Applied with its own journal; drop its snapshots after the
    test.
    """
    made = []

    def make(records, **options):
        made.append(Applied(journal(), settings, spark, records, **options))
        return made[-1]

    yield make
    for one in made:
        one.session.execute(f"DROP KEYSPACE IF EXISTS {one.snapshots}")


def test_erase_leaves_nothing_and_work_continues(applied):
    """Erase a persistence id from every store; afterwards deliver, resend, withdraw, re-read, and use its
    name again.
    """
    case = applied(
        [*both(GONE, range(1, 9)), *of("kept", range(1, 11)), *of("kept-u", range(1, 5), "u")],
        quality={"max_held_share_percent": 100},
    )
    others = case.rows()
    # Besides delivered rows, there are rows behind a gap and rows whose events the journal has deleted.
    case.write([*both(GONE, range(10, 13), soon()), *of(GONE, range(20, 22), "other", soon())])
    case.deliver()
    cleaned(case.settings, [GONE], "to", to=4, force_undelivered=True)
    for name in (GONE, "kept"):
        add_snapshots(case.session, case.snapshots, name, {4: BEGIN})
    auditing.audited(case.settings, case.spark)  # leaves keys and a page behind
    named = ("--tag", "u", "--persistence-id", GONE, "--why", "to be named in the ledger", "--yes")
    assert case.command("holds", "close", *named)[0] == 0
    case.session.execute(
        "INSERT INTO tagmill_test.view_waiting (journal, reason, ids, persistence_id, sequence_nr, since) "
        "VALUES (%s, 'hole', 2, %s, 13, toTimestamp(now()))",
        (case.journal.keyspace, GONE),
    )
    assert {place.split("/")[0].split(".")[0] for place in case.left(GONE)} == {
        case.journal.keyspace,
        case.snapshots,
        "tagmill_test",
        case.name,
        f"ClickHouse {case.name}",
    }

    name_in_files(case.settings, case.name)
    twice, key = f"{case.name}_twice", ("persistence_id", "sequence_nr")
    with ClickHouse(case.settings.clickhouse) as clickhouse:
        clickhouse.insert_rows(twice, key, [(GONE, 1), ("kept", 1)])

    request = ("erase", "--persistence-id", GONE, "--why", "asked for", "--json")
    code, said, wrong = case.command(*request, "--dry-run")
    dry = json.loads(said)
    assert code == 0 and dry["dry_run"] and len(case.rows(but=None)) == len(others) + 16, wrong
    code, said, wrong = case.command(*request, "--yes")
    assert code == 0, wrong
    done = json.loads(said)
    assert done["counts"] == dry["counts"] and done["erasures"] == [1]
    assert {place: done["counts"][place] for place in COUNTED} == {
        "events": 9,
        "snapshots": 1,
        "view_rows": 24,
        "not_delivered": 6,
        "batch_rows": 16,
        "clickhouse_rows": 16,
        "progress": 2,
        "holds": 2,
    }

    assert case.left(SECRET) == [] and case.left(GONE) == []
    with ClickHouse(case.settings.clickhouse) as clickhouse:
        assert clickhouse.rows(f"SELECT persistence_id FROM {twice}") == [("kept",)]
    assert case.rows(but=None) == others
    assert in_journal(case.session, case.journal.keyspace).keys() == {"kept", "kept-u"}
    assert snapshots(case.session, case.snapshots) == {"kept": [4]}
    case.agrees()

    # Deliver, send a batch again, withdraw one and read it again: ClickHouse has the same rows and no others.
    case.write(of("kept", range(11, 13), begin=soon()))
    assert sum(run["rows"] for run in case.deliver()) == 2
    everything = case.rows(but=None)
    batch = next(batch for batch in manifests(case.settings, case.name)[0].batches if batch.tag == "t")
    assert (batch.rows, "/erased-00000001-" in batch.file) == (10, True)
    again = (batch.batch_id, "--run", "1", "--why", "a test", "--yes")
    assert case.command("batches", "resend", *again)[0] == 0
    assert case.rows(but=None) == everything
    assert case.command("batches", "withdraw", *again)[0] == 0
    case.deliver(reread=(BEGIN.isoformat(), datetime.now(UTC).isoformat()))
    assert [row._replace(late=0) for row in case.rows(but=None)] == everything
    case.agrees()

    # The name may be used again, as that of a new persistence id.
    case.write(of(GONE, range(1, 3), begin=soon()))
    assert sum(run["rows"] for run in case.deliver()) == 2
    case.agrees()
    assert erased(case.settings, [GONE])["erasures"] == [2] and case.left(SECRET) == []
    assert erased(case.settings, [GONE])["erased_before"] == 1
    code, said, _ = case.command("erasures", "--json")
    lines = [(line["erasure"], line["state"], line["why"]) for line in json.loads(said)]
    assert code == 0 and lines == [(2, "ERASED", "asked for"), (1, "ERASED", "asked for")]


@pytest.mark.long
def test_erase_batch_without_other_rows_is_voided(applied):
    """Void a batch that has erased rows only, and erase also what is past retention or cleaned up."""
    case = applied(
        [*of(GONE, range(1, 5)), *of("kept", range(1, 5)), *of("gone-u", range(1, 4), "u")], batch_rows=2
    )
    case.write(of("kept", [5], begin=soon()))
    case.deliver()
    case.session.execute(
        "UPDATE tagmill_test.runs SET closed_at = %s WHERE pipeline = %s AND run = 1",
        (datetime.now(UTC) - timedelta(days=40), case.name),
    )
    auditing.audited(case.settings, case.spark)
    cleaning = with_keys(
        case.settings, case.name, enabled=True, older_than_days=1, other_readers=[], deletes_per_second=1000
    )
    swept = clean(cleaning, case.name, owner=OWNER, delete=True)
    assert (swept["runs"], swept["rows"]) == (1, 11), swept
    case.write(of("gone-u", range(4, 6), "u", soon()))
    case.deliver()
    others = case.rows()
    last = [manifest for manifest in manifests(case.settings, case.name) if manifest.batches][-1]
    (batch,) = last.batches
    sealed = RunFiles(case.settings.storage.root).read(batch.file)

    done = erased(case.settings, [GONE, "gone-u", "nobody"])
    assert (done["counts"]["clickhouse_rows"], done["counts"]["batch_rows"], done["unknown_ids"]) == (
        9,
        2,
        ["nobody"],
    )
    assert case.left(SECRET) == [] and case.left("gone-u") == []
    assert [row.persistence_id for row in case.rows(but=None)] == ["kept"] * 5
    assert case.rows(but=None) == [row for row in others if row.persistence_id == "kept"]
    with Ledger(case.settings.cassandra) as ledger:
        (row,) = ledger.batches(case.name, last.run)
    assert (row.rows, row.state) == (0, BatchState.VOIDED)
    case.agrees()

    # A delayed process that still has the batch's bytes inserts nothing with them.
    with ClickHouse(case.settings.clickhouse) as clickhouse:
        clickhouse.insert_batch(case.name, row.batch_id, 2, sealed)
    assert sum(run["rows"] for run in case.deliver()) == 0 and len(case.rows(but=None)) == 5


def test_earlier_tables_of_the_view_are_erased_too(applied):
    case = applied([*of(GONE, range(1, 5)), *of("kept", range(1, 5))])
    now = switched(case.settings, case.spark, "Day")
    assert any("tag_views" in place for place in case.left(SECRET))
    done = erased(now, [GONE])
    assert done["counts"]["view_rows"] == 8 and case.left(SECRET, now) == []


def test_erase_refused_while_other_work_unfinished(applied):
    """Refuse to erase while a run or a cleanup is unfinished, and refuse other commands while an erasure is
    unfinished.
    """
    case = applied([*of(GONE, range(1, 4)), *of("kept", range(1, 4))])
    case.write(of("kept", [4], begin=soon()))
    steps.plan(case.settings, case.name, owner=OWNER)
    case.free()
    with raises(WorkUnfinished, pipeline=case.name, run=2):
        erased(case.settings, [GONE])
    assert case.left(SECRET) != []
    case.deliver()
    with Ledger(case.settings.cassandra) as ledger:
        record = CleanupLog(
            ledger.cassandra, "tagmill_test", case.journal.keyspace, case.settings.pipeline(case.name).view
        )
        half_done = Cleaning("t", 0, 0, datetime.now(UTC))
        record.decide(case.name, half_done)
        with raises(WorkUnfinished, match="first: tagmill cleanup", pipeline=case.name, run=None):
            erased(case.settings, [GONE])
        record.done(case.name, half_done)
        erasures = Erasures(ledger.cassandra, "tagmill_test", case.journal.keyspace)
        erased(case.settings, [GONE])
        erasures.begin(
            replace(
                erasures.newest(1)[0], erasure=2, state=ErasureState.ERASING, plan_file="x", plan_sha256="x"
            )
        )
    for command in (
        ("run", "deliver"),
        ("cleanup", "--dry-run"),
        ("journal", "clean", "--persistence-id", "kept", "--to", "1", "--yes"),
        ("holds", "close", "--tag", "t", "--persistence-id", "kept", "--why", "a test", "--yes"),
    ):
        code, _, wrong = case.command(*command)
        assert (
            code == 2 and "erasure 2 of journal" in wrong and "finish it: tagmill erase --pipeline" in wrong
        ), (command, wrong)


def test_erase_killed_needs_no_plan_file(applied):
    """Finish an erasure whose folder below the storage root is lost; also one of an earlier version, whose
    plan is a file.
    """
    case = applied([*of(GONE, range(1, 4)), *of("earlier", range(1, 5)), *of("kept", range(1, 3))])
    folder = Path(case.settings.storage.root, case.name, "erasures")
    plans = f"tagmill_test.erasure_plans WHERE journal = '{case.journal.keyspace}'"
    # A plan that was written and never recorded is removed, and its number is not used again.
    for instant, numbers in (("erase.planned", {1}), ("erase.recorded", {2})):
        with crashing(instant), pytest.raises(Crashed):
            erased(case.settings, [GONE])
        assert {row.erasure for row in case.session.execute(f"SELECT erasure FROM {plans}")} == numbers
    dry = erased(case.settings, ["kept"], delete=False)
    assert (dry["counts"]["events"], dry["warnings"][0].split(" of ")[0]) == (2, "erasure 2")
    shutil.rmtree(folder, ignore_errors=True)
    code, said, wrong = case.command("erase", "--yes", "--json")
    assert (code, json.loads(said or "{}").get("erasures")) == (0, [2]), wrong
    assert case.left(SECRET) == [] and case.left(GONE) == [] and not folder.exists()
    assert not list(case.session.execute(f"SELECT * FROM {plans}"))
    assert case.command("check")[0] == 0

    with crashing("erase.recorded"), pytest.raises(Crashed):
        erased(case.settings, ["earlier"])
    file = folder / "00000003-0.json"
    folder.mkdir()
    with Ledger(case.settings.cassandra) as ledger:
        erasures = Erasures(ledger.cassandra, "tagmill_test", case.journal.keyspace)
        file.write_bytes(ErasurePlans(ledger.cassandra, "tagmill_test", erasures).read(erasures.newest(1)[0]))
    case.session.execute(f"DELETE FROM {plans}")
    case.session.execute(
        "UPDATE tagmill_test.erasures SET plan_file = %s WHERE journal = %s AND erasure = 3",
        (f"{case.name}/erasures/{file.name}", case.journal.keyspace),
    )
    kept = file.rename(folder.parent / "plan.json")
    code, _, wrong = case.command("erase", "--yes")
    assert code == 2 and file.name in wrong, wrong
    folder.mkdir(exist_ok=True)
    kept.rename(file)
    code, _, wrong = case.command("erase", "--yes")
    assert code == 0, wrong
    assert case.left("earlier") == [] and not folder.exists()
    assert [row.persistence_id for row in case.rows(but=None)] == ["kept"] * 2
    with Ledger(case.settings.cassandra) as ledger:
        newest = Erasures(ledger.cassandra, "tagmill_test", case.journal.keyspace).newest(9)
    assert [(row.erasure, row.state, row.persistence_ids, row.plan_sha256) for row in newest] == [
        (number, ErasureState.ERASED, ids, None) for number, ids in ((3, 1), (2, 1), (1, 0))
    ]
    assert case.command("check")[0] == 0


def test_erase_unknown_id_refused_dry_run_harmless(applied):
    """Refuse a request with unknown ids only, without a reason or without confirmation; a dry run changes
    nothing.
    """
    case = applied([*of(GONE, range(1, 4)), *of("kept", range(1, 4))])
    before = case.left(SECRET)
    dry = erased(case.settings, [GONE, "nobody"], delete=False)
    assert (dry["counts"]["events"], dry["unknown"], case.left(SECRET)) == (3, 1, before)
    with raises(PersistenceIdsUnknown, match=r"\(the first: 'nobody'\)", pipeline=case.name):
        erased(case.settings, ["nobody"])
    for options, said in (
        (["--persistence-id", GONE, "--yes"], "give --why"),
        (["--persistence-id", GONE, "--why", "a test"], "nothing was done (answer yes, or give --yes)"),
        (["--yes"], "no persistence id was named, and no erasure is to be finished"),
    ):
        code, _, wrong = case.command("erase", *options)
        assert code == 2 and said in " ".join(wrong.replace("│", " ").split()), wrong
    named = ["--persistence-id", GONE, "--persistence-id", "nobody", "--why", "a test"]
    code, shown, _ = case.command("erase", *named, answer="n\n")
    assert code == 2 and shown.index("events") < shown.index("unknown: 'nobody'") < shown.index("for good?")
    assert case.left(SECRET) == before
    code, shown, wrong = case.command("erase", *named, answer="y\n")  # all tests share the ledger
    assert code == 0 and case.left(SECRET) == [], (shown, wrong)


def test_erase_finds_snapshots_of_every_pipeline(applied, settings):
    """Erase snapshots in the keyspace of every pipeline on the journal; warn or refuse if a table of
    snapshots is missing.
    """
    case = applied([*of(GONE, range(1, 4)), *of("other", range(1, 4))])
    dry = erased(case.settings, [GONE], delete=False)
    said = (
        f"there is no table {case.snapshots}.snapshots (snapshot_keyspace): no snapshots were looked "
        "for, and none erased"
    )
    assert dry["warnings"] == [said]
    # Another pipeline on the journal keeps its snapshots elsewhere.
    elsewhere = f"{case.journal.keyspace}_s"
    beside = case.settings.pipeline(case.name).model_copy(update={"snapshot_keyspace": elsewhere})
    both_of = case.settings.model_copy(
        update={"pipelines": {case.name: case.settings.pipeline(case.name), "z_beside": beside}}
    )
    of_ids = lambda: JournalOfIds(workspace)  # noqa: E731
    try:
        with open_workspace(both_of, case.name) as workspace:
            with pytest.raises(
                ConfigurationError, match=f"no table {elsewhere}.snapshots, where pipelines on journal"
            ):
                of_ids()
        add_snapshots(case.session, elsewhere, GONE, {2: BEGIN})
        with open_workspace(both_of, case.name) as workspace:
            assert (of_ids().look([GONE])[0]["snapshots"], of_ids().warnings()) == (1, [])
            of_ids().erase_events([GONE])
        assert snapshots(case.session, elsewhere) == {}
    finally:
        case.session.execute(f"DROP KEYSPACE IF EXISTS {elsewhere}")
    with Ledger(case.settings.cassandra) as ledger:
        builds = Failures(ledger.cassandra, case.settings.cassandra.ledger_keyspace, of_builds(case.name))
        builds.note("views build", None, "persistence_id 'other' was numbered", passing=False)
        assert erased(case.settings, ["other"])["warnings"] == [said]
        assert "'other'" not in builds.current().error and "was numbered" in builds.current().error
        assert any(one.what.endswith(said) for one in ledger.interventions(case.name))
    erased(case.settings, [GONE])  # all tests share the ledger


@pytest.mark.long
def test_erase_keeps_longer_names_reports_earlier_changes(applied, stack):
    """Keep ids with a longer name; report batches that were changed before the erasure once everything is
    erased.
    """
    far = event("key-1", 2, BEGIN, partition_nr=7)  # behind more empty partitions than the plugin searches
    case = applied([*(event(name, 1, BEGIN) for name in ("key-1", "key-11", "key-1-1")), far])
    assert erased(case.settings, ["key-1"])["counts"]["events"] == 2
    assert in_journal(case.session, case.journal.keyspace).keys() == {"key-11", "key-1-1"}
    assert [row.persistence_id for row in clickhouse_rows(case.settings, case.name)] == ["key-1-1", "key-11"]
    case.agrees()
    client = stack.client(settings={"mutations_sync": 2})
    client.command(f"ALTER TABLE {case.name} UPDATE ser_manifest = 'Forged' WHERE persistence_id = 'key-1-1'")
    client.close()
    (batch,) = [batch for manifest in manifests(case.settings, case.name) for batch in manifest.batches]
    with raises(BatchDiffers, match="erasure 2 is done", pipeline=case.name, batch=batch.batch_id):
        erased(case.settings, ["key-11"])
    assert case.left("key-11") == [] and case.command("erase", "--yes")[0] == 2
    assert case.command("batches", "resend", batch.batch_id, "--run", "1", "--why", "a test", "--yes")[0] == 0
    case.agrees()
