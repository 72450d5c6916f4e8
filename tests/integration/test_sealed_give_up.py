"""`tagmill run give-up` of a sealed replication or view build whose manifest is lost."""

import json
from pathlib import Path

import pytest

from local.fixtures import WITHOUT_VIEWS
from tagmill.errors import SealedFileDamaged
from tagmill.kafka_journal.replicate import replicate
from tagmill.ledger import schema
from tagmill.ledger.replications import Replications
from tagmill.ledger.runs import Ledger
from tagmill.ledger.view_builds import Builds
from tests.conftest import FEW_ROWS
from tests.support.building import VIEWS, built, recorded, rows
from tests.support.delivery import OWNER, as_row, clickhouse_rows, deliver, only, shown_first, tagmill
from tests.support.errors import raises
from tests.support.leases import free_lease
from tests.support.topics import Crashed, crashing

WHY = ("--why", "seen in a test", "--yes")


def lose(settings, name, file):
    """Delete a manifest and the lease that a crash has left."""
    Path(settings.storage.root, file).unlink()
    with Ledger(settings.cassandra) as ledger:
        free_lease(ledger.cassandra.session, name, ledger.ledger_keyspace)


def given_up(file, name, *options):
    """Give up by the command line; return the exit status and all that it prints."""
    code, said, wrong = shown_first(file, "run", "give-up", "--pipeline", name, *options, *WHY)
    return code, said + wrong


def test_give_up_replication_next_one_replicates(kafka_journal, spark):
    """Give up a half-written replication: the next one writes the rest once, and a record set apart becomes a
    dead letter.
    """
    journal = kafka_journal()
    topic, settings = journal.topic(), journal.settings(FEW_ROWS)
    schema.apply(settings)
    for key in ("a", "b"):
        topic.append(key, [(1, 1), (2, 2)])
    topic.append("c", [(1, 1)])
    topic.delete("a", 1)
    topic.flush()
    replicated = {"owner": OWNER, "spark": lambda: spark}
    with crashing("replicate.after_entries"), pytest.raises(Crashed):
        replicate(settings, journal.name, **replicated)
    with Ledger(settings.cassandra) as ledger:
        manifest = Replications(ledger.cassandra, ledger.ledger_keyspace, journal.name).newest().manifest_file
    lose(settings, journal.name, manifest)
    topic.append("b", [(3, 3)])
    topic.append("c", [(2, 2)])
    topic.flush()
    with pytest.raises(
        SealedFileDamaged, match=f"or go on without it: tagmill run give-up --pipeline {journal.name}"
    ):
        replicate(settings, journal.name, **replicated)
    record = f"{topic.name}/0/5"
    code, said = given_up(journal.file, journal.name, "--set-apart", record)
    assert code == 0 and "replication 1 of pipeline" in said and "1 records become dead letters" in said, said
    assert given_up(journal.file, journal.name, "--set-apart", "c")[0] == 2
    replicate(settings, journal.name, **replicated)
    expected = [("a", 2, "2"), ("b", 1, "1"), ("b", 2, "2"), ("b", 3, "3"), ("c", 1, "1")]
    assert sorted((row["id"], row["seq_nr"], row["payload_txt"]) for row in journal.rows()) == expected
    letters = json.loads(
        tagmill(journal.file, "deadletters", "list", "--pipeline", journal.name, "--json")[1]
    )
    assert [(letter["offset"], letter["reason"]) for letter in letters] == [(5, "set apart: seen in a test")]
    code, said, _ = tagmill(journal.file, "check", "--pipeline", journal.name, "--json")
    assert code == 0 and json.loads(said)[0]["verdict"].endswith("; 1 dead letters")
    code, said = given_up(journal.file, journal.name)
    assert code == 2 and "has no replication to give up. Nothing was changed" in said


@pytest.mark.parametrize("gone", ["manifest.json", "records/*", "rows/*"])
def test_give_up_build_next_one_builds(gone, stack, keyspace, settings, spark):
    """Give up a build that wrote rows and numbers, but not its record: the next one adopts those numbers.

    Its manifest, or a folder of its files, is lost.
    """
    case = "partition-boundary"
    journal = keyspace(case, WITHOUT_VIEWS)
    configured = settings(journal, case=case, views="tagmill")
    name = only(configured)
    with crashing("build.after_progress"), pytest.raises(Crashed):
        built(configured, spark)
    with Ledger(configured.cassandra) as ledger:
        manifest = Builds(ledger.cassandra, ledger.ledger_keyspace, journal).newest().manifest_file
    folder = Path(configured.storage.root, manifest).parent
    for file in list(folder.glob(gone)):
        lose(configured, name, file.relative_to(configured.storage.root))
    before = {table: rows(stack, journal, table) for table in VIEWS}
    with raises(SealedFileDamaged, pipeline=name):
        built(configured, spark)
    assert before == {table: rows(stack, journal, table) for table in VIEWS}
    command = ("run", "give-up", "--pipeline", name, *WHY)
    code, said, wrong = shown_first(settings.file(name), *command)
    assert code == 0 and f"build 1 of journal {journal} is given up" in said, wrong
    refused = built(configured, spark)
    assert refused["rows"] == 0 and "--adopt" in refused["refusal"]
    assert built(configured, spark, adopt=True)["refused"] == 0
    for table in VIEWS:
        assert rows(stack, journal, table) == recorded(case, table), table
    deliver(configured, name, spark)
    assert clickhouse_rows(configured, name) == sorted(as_row(row) for row in recorded(case, "tag_views"))
    code, _, said = shown_first(settings.file(name), *command)
    assert code == 2 and "no open run to give up" in said
