"""Journal cleanup: what it deletes, what it refuses, and that the audit agrees afterwards."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from tagmill.errors import ConfigurationError, LeaseTaken, WorkUnfinished
from tagmill.ledger.lease import Lease
from tagmill.ledger.runs import Ledger
from tagmill.maintenance.journal_cleanup.clean import IDS_AT_ONCE
from tests.support import auditing
from tests.support.building import built
from tests.support.delivery import (
    OWNER,
    clickhouse_rows,
    deliver,
    delivered_first,
    only,
    tagmill,
    verdicts,
)
from tests.support.errors import raises
from tests.support.events import event, events, this_hour
from tests.support.journal_cleaning import (
    add_snapshots,
    cleaned,
    in_journal,
    metadata,
    reasons,
    snapshots,
    tables,
)
from tests.support.leases import free_lease

HOUR = timedelta(hours=1)
BEGIN = this_hour() - timedelta(days=3)
CLEANUP = {"other_readers": [], "persistence_ids_per_second": 10_000}


def kept(case, name="t"):
    """Return the tag numbers of a persistence id's rows in the view."""
    return [row["tag_pid_sequence_nr"] for row in case.journal.rows(name)]


class Applied:
    """A journal and one pipeline on the given tags, which is delivered unless `delivered` is false."""

    def __init__(
        self, journal, settings, spark, records, *, tags=("t",), delivered=True, cleanup=None, **keys
    ):
        self.journal, self.spark, self.session = journal, spark, journal.session
        journal.both(records)
        for persistence_id in {record["persistence_id"] for record in records}:
            self.session.execute(
                f"INSERT INTO {journal.keyspace}.all_persistence_ids (persistence_id) VALUES (%s)",
                (persistence_id,),
            )
        self.settings = settings(
            journal.keyspace,
            tags=list(tags),
            bucket_size="Hour",
            first_time_bucket=BEGIN.isoformat(),
            cleanup={
                key: value for key, value in {**CLEANUP, **(cleanup or {})}.items() if value is not None
            },
            **keys,
        )
        self.name = only(self.settings)
        self.file = settings.file(self.name)
        self.snapshots = f"{journal.keyspace}_snapshot"
        if delivered:
            delivered_first(self.settings, spark)
            free_lease(self.session, self.name)

    def state(self):
        """Return all rows of the journal's tables."""
        return tables(self.session, self.journal.keyspace)

    def events(self):
        """Return the sequence_nrs in the journal by persistence id."""
        return in_journal(self.session, self.journal.keyspace)

    def deleted_to(self):
        """Return the journal's deleted_to by persistence id."""
        return metadata(self.session, self.journal.keyspace)

    def command(self, *arguments, answer=None):
        """Run `tagmill journal clean`; return exit status, stdout and stderr."""
        return tagmill(self.file, "journal", "clean", "--pipeline", self.name, *arguments, answer=answer)


# What tests share that clean up delivered events of their own persistence ids only.
SHARED = [
    *(
        {**record, "partition_nr": (record["sequence_nr"] - 1) // 2}
        for record in events("p", range(1, 41), BEGIN)
    ),
    *(
        {**record, "partition_nr": 2 * (record["sequence_nr"] // 3)}
        for record in events("q", range(1, 13), BEGIN)
    ),
    *(record for name in "abcd" for record in events(name, range(1, 6), BEGIN)),
    *({**record, "partition_nr": 40} for name in "abcd" for record in events(name, range(6, 11), BEGIN)),
    *({**record, "partition_nr": 9} for record in events("first", range(1, 6), BEGIN)),
    *(record for name in "efkl" for record in events(name, range(1, 6), BEGIN)),
    *(record for name in "ghijm" for record in events(name, range(1, 11), BEGIN)),
]


class Part:
    """Some persistence ids of a journal that several tests share; the rest is that of the whole."""

    def __init__(self, whole, ids):
        self.whole, self.ids = whole, ids

    def __getattr__(self, name):
        return getattr(self.whole, name)

    def _mine(self, found):
        return {name: value for name, value in found.items() if name in self.ids}

    def events(self):
        """Return the sequence_nrs in the journal by persistence id."""
        return self._mine(self.whole.events())

    def deleted_to(self):
        """Return the journal's deleted_to by persistence id."""
        return self._mine(self.whole.deleted_to())

    def kept_snapshots(self):
        """Return the sequence_nrs of the snapshots by persistence id."""
        return self._mine(snapshots(self.session, self.whole.snapshots))


@pytest.fixture(scope="module")
def shared(module_journal, module_settings, spark):
    """Yield shared(ids), which returns these persistence ids of one delivered journal."""
    whole = Applied(module_journal(), module_settings, spark, SHARED)
    yield lambda ids: Part(whole, ids)
    whole.session.execute(f"DROP KEYSPACE IF EXISTS {whole.snapshots}")


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


# -- what goes


@pytest.mark.long
def test_clean_delivered_events_leaves_audit_agreeing(applied):
    """Delete delivered events in each way: the audit agrees, and the application and deliveries continue."""
    case = applied([record for name in "abcdefg" for record in events(name, range(1, 11), BEGIN)])
    delivered = clickhouse_rows(case.settings, case.name)
    assert len(delivered) == 70
    done = cleaned(case.settings, "a", "to", to=4)
    assert (done["events"], done["view_rows"], done["refused"], done["unknown"]) == (4, 0, 0, 0)
    assert cleaned(case.settings, "b", "to", to=4, views=True)["view_rows"] == 4
    cleaned(case.settings, "c", "all")
    cleaned(case.settings, "d", "all", views=True)
    cleaned(case.settings, "e", "all", never_again=True)
    done = cleaned(case.settings, "f", "all", never_again=True, views=True)
    assert (done["events"], done["view_rows"]) == (10, 10) and "no snapshots were looked for" in done[
        "warnings"
    ][0]
    some, whole = list(range(5, 11)), list(range(1, 11))
    assert case.events() == {"a": some, "b": some, "g": whole}
    assert case.deleted_to() == {"a": 4, "b": 4, "c": 10, "d": 10}
    assert [kept(case, name) for name in "abcdefg"] == [whole, some, whole, [], whole, [], whole]
    listed = {
        row[0]
        for row in case.session.execute(
            f"SELECT persistence_id FROM {case.journal.keyspace}.all_persistence_ids"
        )
    }
    assert listed == {"a", "b", "c", "d", "g"}
    report = auditing.audited(case.settings, case.spark)
    assert report.agrees, report
    # The application continues with its next numbers.
    case.journal.both([event(name, 11, datetime.now(UTC)) for name in "abcdg"])
    assert sum(run["rows"] for run in deliver(case.settings, case.name, case.spark)) == 5
    assert [row for row in clickhouse_rows(case.settings, case.name) if row.sequence_nr <= 10] == delivered
    assert set(verdicts(case.settings, case.name).values()) == {
        "exactly once; the view has 24 rows fewer than were delivered"
    }
    assert auditing.audited(case.settings, case.spark).agrees


def test_clean_lost_events_are_still_audit_findings(applied, stack):
    """Report events that journal and view lost without a cleanup, although another id was cleaned up
    altogether.
    """
    case = applied([record for name in "ab" for record in events(name, range(1, 4), BEGIN)])
    cleaned(case.settings, "a", "all", never_again=True, views=True)
    stack.session.execute(
        f"DELETE FROM {case.journal.keyspace}.messages WHERE persistence_id = 'b' AND partition_nr = 0"
    )
    for row in case.journal.rows("b"):
        case.journal.remove(row)
    report = auditing.audited(case.settings, case.spark)
    assert {kind.value: count for kind, count in report.findings.items()} == {"extra_in_clickhouse": 3}


def test_clean_reaches_emptied_and_skipped_partitions(shared):
    """Delete events from every partition, also behind partitions that were emptied before or never
    written.
    """
    case = shared("pq")
    assert cleaned(case.settings, "p", "to", to=31)["events"] == 31
    assert cleaned(case.settings, "p", "to", to=35)["events"] == 4
    assert cleaned(case.settings, "q", "to", to=7)["events"] == 7
    assert case.events() == {"p": list(range(36, 41)), "q": list(range(8, 13))} and case.deleted_to() == {
        "p": 35,
        "q": 7,
    }
    assert cleaned(case.settings, "p", "all")["events"] == 5 and case.deleted_to()["p"] == 40


def test_events_go_also_behind_several_empty_partitions(shared):
    """Delete events behind several empty partitions in each way, and count them in a dry run."""
    case = shared([*"abcd", "first"])
    add_snapshots(case.session, case.snapshots, "c", {9: BEGIN})
    assert cleaned(case.settings, "a", "all", delete=False)["events"] == 10
    assert cleaned(case.settings, "a", "all", views=True)["view_rows"] == 10
    assert cleaned(case.settings, "b", "to", to=8)["events"] == 8
    assert cleaned(case.settings, "c", "before_snapshot")["events"] == 9
    assert cleaned(case.settings, "d", "to", to=3)["events"] == 3
    assert cleaned(case.settings, ["first"], "to", to=2)["events"] == 2
    assert case.events() == {"b": [9, 10], "c": [10], "d": list(range(4, 11)), "first": [3, 4, 5]}
    assert case.deleted_to() == {"a": 10, "b": 8, "c": 9, "d": 3, "first": 2}


def test_clean_beyond_last_event_keeps_deleted_to(shared):
    """Set deleted_to at most to the last event's number, and never back to a lower one."""
    case = shared("ef")
    cleaned(case.settings, "ef", "to", to=1000)
    assert case.events() == {} and case.deleted_to() == {"e": 5, "f": 5}
    before = case.state()
    done = cleaned(case.settings, "ef", "to", to=3)
    assert (done["persistence_ids"], done["events"], done["unknown"]) == (2, 0, 0) and case.state() == before


def test_clean_snapshots_kept_by_number_and_age(shared):
    """Keep snapshots by number and by age, and delete the events before the oldest one kept."""
    case = shared("ghij")
    taken = {2: BEGIN, 4: BEGIN + HOUR, 6: BEGIN + 2 * HOUR, 8: BEGIN + 3 * HOUR}
    for name in "ghi":
        add_snapshots(case.session, case.snapshots, name, taken)
    dry = cleaned(case.settings, ["g"], "before_snapshot", keep=2, delete=False)
    assert (dry["events"], dry["snapshots"]) == (6, 2) and case.kept_snapshots()["g"] == [
        2,
        4,
        6,
        8,
    ]
    assert cleaned(case.settings, ["g"], "before_snapshot", keep=2)["snapshots"] == 2
    assert cleaned(case.settings, ["h"], "snapshots", keep=1, keep_newer_than=BEGIN + HOUR / 2)["events"] == 0
    cleaned(case.settings, ["i", "j"], "before_snapshot", keep=9)
    assert case.kept_snapshots() == {"g": [6, 8], "h": [4, 6, 8], "i": [2, 4, 6, 8]}
    whole = list(range(1, 11))
    assert case.events() == {"g": whole[6:], "h": whole, "i": whole[2:], "j": whole}
    cleaned(case.settings, ["h"], "snapshots")
    assert case.kept_snapshots()["h"] == [8]
    cleaned(case.settings, ["h"], "all")
    assert case.kept_snapshots() == {"g": [6, 8], "i": [2, 4, 6, 8]}
    assert "h" not in case.events() and case.deleted_to() == {"g": 6, "h": 10, "i": 2}


# -- what is refused


def test_clean_undelivered_events_refuse_whole_id(shared, tmp_path):
    """Refuse an id with undelivered events as a whole and clean up the others; --force-undelivered deletes
    them all the same.
    """
    case = shared("kl")
    case.journal.both(events("k", range(6, 9), BEGIN))
    before = [row for row in case.state()["messages"] if "('persistence_id', 'k')" in row]
    ids = tmp_path / "ids"
    ids.write_text("k\nl\n\nnobody\n")
    code, said, wrong = case.command("--persistence-ids", str(ids), "--to", "7", "--yes", "--json")
    done = json.loads(said)
    assert code == 3, wrong
    assert (done["persistence_ids"], done["refused"], done["unknown"], done["unknown_ids"]) == (
        3,
        1,
        1,
        ["nobody"],
    )
    text = done["refusals"][0]["text"]
    assert (
        "persistence id 'k', tag 't'" in text
        and "delivered to sequence_nr 5; 2 events up to sequence_nr 7 would be lost" in text
    )
    assert "left untouched; --force-undelivered deletes them all the same" in text
    assert case.events() == {"k": list(range(1, 9))} and case.deleted_to() == {"l": 5}
    assert [row for row in case.state()["messages"] if "('persistence_id', 'k')" in row] == before
    code, said, _ = case.command("--persistence-id", "k", "--to", "7", "--yes")
    assert code == 3 and "1 refused" in said
    assert case.command("--persistence-id", "k", "--to", "5", "--yes")[0] == 0 and case.events() == {
        "k": [6, 7, 8]
    }
    code, said, _ = case.command("--persistence-id", "k", "--to", "7", "--yes", "--force-undelivered")
    assert code == 0 and case.events() == {"k": [8]}


def test_clean_held_or_never_delivered_is_refused(applied):
    """Refuse events behind a hold, and events below the progress that were never delivered."""
    records = events("h", range(1, 11), BEGIN)
    case = applied(records, delivered=False, quality={"max_held_share_percent": 100})
    case.journal.remove(records[4])
    case.session.execute(
        f"DELETE FROM {case.journal.keyspace}.messages WHERE persistence_id = 'h' AND partition_nr = 0 "
        "AND sequence_nr = 5"
    )
    delivered_first(case.settings, case.spark)
    assert reasons(cleaned(case.settings, "h", "to", to=6)) == [("h", "t", "held")]
    code, *_ = tagmill(
        case.file,
        "holds",
        "close",
        "-p",
        case.name,
        "--tag",
        "t",
        "--persistence-id",
        "h",
        "--why",
        "a test",
        "--yes",
    )
    assert code == 0
    deliver(case.settings, case.name, case.spark)
    case.journal.messages(records[4:5])  # the event turns up in the journal
    assert reasons(cleaned(case.settings, "h", "to", to=6)) == [("h", "t", "not_delivered")]
    assert cleaned(case.settings, "h", "to", to=4)["events"] == 4
    assert case.events() == {"h": list(range(5, 11))}


def test_what_begins_before_the_pipeline_does_stays(applied):
    case = applied(
        events("s", range(1, 11), BEGIN),
        start_from={"t": (BEGIN + timedelta(seconds=5)).isoformat()},
        first_seen="assume_first",
    )
    assert [row.sequence_nr for row in clickhouse_rows(case.settings, case.name)] == [5, 6, 7, 8, 9, 10]
    assert reasons(cleaned(case.settings, "s", "to", to=8)) == [("s", "t", "not_delivered")]
    assert case.events() == {"s": list(range(1, 11))}


def test_clean_asks_every_pipeline_on_journal(shared):
    """Ask every pipeline on the journal, but not about tags and times that it never wanted."""
    case = shared("m")
    chosen = case.settings.pipeline(case.name)

    def beside(**keys):
        other = chosen.model_copy(update={"destination": "mirror", **keys})
        return case.settings.model_copy(update={"pipelines": {case.name: chosen, "mirror": other}})

    from tagmill.maintenance.journal_cleanup.clean import clean
    from tagmill.maintenance.journal_cleanup.model import Wanted, What

    def done(settings):
        return clean(settings, case.name, "m", Wanted(What.TO, 4), owner="cli/x/1/1", delete=False)

    (line,) = done(beside())["refusals"]
    assert "pipeline mirror: not delivered at all; 4 events up to sequence_nr 4 would be lost" in line["text"]
    assert done(beside(tags=["u"]))["refused"] == 0
    assert done(beside(start_from={"t": BEGIN + HOUR}))["refused"] == 0


def test_clean_view_rows_still_read_stay(applied):
    """Keep rows of the view that a run may still read, or while readers are not stated and --force-unread is
    not given.
    """
    case = applied(events("v", range(1, 6), BEGIN), cleanup={"other_readers": None})
    done = cleaned(case.settings, "v", "to", to=3, views=True)
    assert (
        reasons(done) == [("v", "t", "readers_not_stated")]
        and "--force-unread deletes them" in done["refusals"][0]["text"]
    )
    assert case.events() == {"v": list(range(1, 6))}
    assert cleaned(case.settings, "v", "to", to=3, views=True, force_unread=True)["view_rows"] == 3
    assert kept(case, "v") == [4, 5]
    young = applied([*events("w", range(1, 3), BEGIN), event("w", 3, this_hour())])
    assert reasons(cleaned(young.settings, "w", "all", views=True)) == [("w", "t", "still_read")]
    assert cleaned(young.settings, "w", "to", to=2, views=True)["view_rows"] == 2


def test_clean_unbuilt_view_is_refused(applied):
    """Refuse events that are not yet in the view that Tagmill keeps, until it is built."""
    case = applied(events("b", range(1, 4), BEGIN, tag="other"), delivered=False, views="tagmill")
    case.session.execute(f"TRUNCATE {case.journal.keyspace}.tag_views")
    built(case.settings, case.spark)
    assert cleaned(case.settings, "b", "to", to=1)["events"] == 1
    case.journal.messages(events("b", range(4, 6), BEGIN, tag="other"))
    assert reasons(cleaned(case.settings, "b", "to", to=5)) == [("b", "other", "not_built")]
    built(case.settings, case.spark)
    assert cleaned(case.settings, "b", "to", to=5)["events"] == 4 and case.events() == {}


def test_clean_refused_during_delivery_or_open_run(applied):
    """Refuse while a delivery holds the lease or a run is not finished, and delete nothing."""
    case = applied(events("r", range(1, 4), BEGIN))
    before = case.state()
    with Ledger(case.settings.cassandra) as ledger:
        lease = Lease(ledger.cassandra, "tagmill_test", case.name, "cli/elsewhere/1/1", 30)
        lease.take()
        code, _, wrong = case.command("--persistence-id", "r", "--to", "2", "--yes")
        lease.give_back()
    assert code == 75 and "is at work" in wrong
    case.journal.both([event("r", 4, datetime.now(UTC))])
    from tagmill.delivery.tag_views import steps

    planned = steps.plan(case.settings, case.name, owner="cli/x/1/1")
    free_lease(case.session, case.name)
    with raises(WorkUnfinished, pipeline=case.name, run=planned["run"]):
        cleaned(case.settings, "r", "to", to=2)
    assert {row for row in before["messages"]} <= set(case.state()["messages"]) and case.deleted_to() == {}


def test_clean_that_lost_its_lease_deletes_nothing_more(applied):
    """Let the next attempt take the lease while a cleaning looks at its second persistence id: that one stays."""
    case = applied(events("l", range(1, 4), BEGIN) + events("m", range(1, 4), BEGIN))

    def ids():
        yield from ["l", *(f"unknown-{n}" for n in range(IDS_AT_ONCE - 1))]
        case.session.execute(
            "UPDATE tagmill_test.leases SET owner = %s WHERE pipeline = %s IF EXISTS",
            [f"{OWNER}#0123456789abcdef", case.name],
        )
        yield "m"

    with raises(LeaseTaken, pipeline=case.name):
        cleaned(case.settings, ids(), "to", to=2)
    free_lease(case.session, case.name)
    assert case.deleted_to() == {"l": 2} and case.events() == {"l": [3], "m": [1, 2, 3]}


# -- what is said


def test_clean_dry_run_counts_unknown_ids_refused(applied):
    """Count in a dry run what would be deleted; refuse a request with unknown ids only, unconfirmed, or
    without a table of snapshots.
    """
    case = applied(events("x", range(1, 6), BEGIN))
    before = case.state()
    code, said, _ = case.command(
        "--persistence-id", "x", "--persistence-id", "y", "--all", "--views", "--never-again", "--dry-run"
    )
    assert (
        code == 0
        and "5 events, 5 rows of the view and 0 snapshots would be deleted; 1 not in the journal" in said
    )
    assert "not in the journal: 'y'" in said
    code, _, wrong = case.command("--persistence-id", "y", "--all", "--yes")
    assert code == 2 and "knows none of the 1 persistence ids (the first: 'y')" in wrong
    code, _, wrong = case.command("--persistence-id", "x", "--all")
    assert code == 2 and "nothing was done (answer yes, or give --yes)" in wrong
    code, said, _ = case.command("--persistence-id", "x", "--all", answer="n\n")
    assert code == 2 and said.index("5 events, 0 rows of the view") < said.index("in journal")
    with pytest.raises(ConfigurationError, match=f"there is no table {case.snapshots}.snapshots"):
        cleaned(case.settings, "x", "snapshots")
    assert case.state() == before


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--persistence-id", "x"], "give exactly one of --to, --before-snapshot, --snapshots and --all"),
        (["--persistence-id", "x", "--to", "3", "--all"], "give exactly one of"),
        (["--to", "3"], "name persistence ids"),
        (
            ["--persistence-id", "x", "--to", "3", "--keep", "2"],
            "keep and keep-newer-than are about snapshots",
        ),
        (["--persistence-id", "x", "--to", "3", "--never-again"], "never-again is for deleting all"),
        (["--persistence-id", "x", "--snapshots", "--views"], "deleting snapshots deletes no events"),
        (
            ["--persistence-id", "x", "--to", "3", "--force-unread"],
            "--force-unread is about rows of the view",
        ),
        (
            ["--persistence-id", "\udcff", "--to", "3", "--yes"],
            "'\\udcff': what was given is no text in UTF-8",
        ),
        (["--persistence-ids", "/nowhere", "--to", "3", "--yes"], "'/nowhere' does not exist"),
    ],
)
def test_clean_contradicting_options_are_refused(stack, settings, options, said):
    """Refuse options that contradict each other, are incomplete or can't be read, and name them."""
    configured = settings("nowhere", tags=["t"], bucket_size="Hour", first_time_bucket="20260101T00:00")
    code, _, wrong = tagmill(
        settings.file(only(configured)), "journal", "clean", "--pipeline", only(configured), *options
    )
    assert code == 2 and said in " ".join(wrong.replace("│", " ").split()), wrong
