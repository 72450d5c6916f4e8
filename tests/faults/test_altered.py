"""Changes behind Tagmill's back are found: in a sealed file, a manifest, a plan, or a row in ClickHouse."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def flip(file: Path, position: int) -> None:
    """Change one bit of the byte at a position."""
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def refused(one: Any, file: Path) -> None:
    """Assert that the delivery ends with one line that names the file, and that the run stays SEALED."""
    ended = one.said("run", "deliver")
    assert (ended.code, str(file) in ended.err) == (2, True), ended
    assert "Traceback" not in ended.err
    assert one.run_state()[0] == "SEALED"


@pytest.mark.long
def test_deliver_sealed_file_damaged_refuses_until_restored(delivery: Callable[..., Any]) -> None:
    """Change or remove sealed files and the manifest; each delivery refuses and sends nothing until the file
    is restored.
    """
    one = delivery(tags=["tag-0"])
    one.sealed()
    batch = one.manifest().batches[0]
    file = one.path(batch.file)
    for position in (5, -5):
        flip(file, position)
        refused(one, file)
        assert batch.batch_id in one.said("run", "deliver").err
        flip(file, position)
    content = file.read_bytes()
    file.unlink()
    refused(one, file)
    file.write_bytes(content)
    (manifest,) = Path(one.settings.storage.root).rglob("manifest*.json")
    text = manifest.read_text()
    manifest.write_text(text.replace('"rows"', '"rows" ', 1))
    refused(one, manifest)
    manifest.write_text(text)
    assert one.rows() == []
    assert {state for *_, state, _ in one.batches()} == {"NEW"}
    # Close writes from these files; the batches are in ClickHouse when it reads them.
    for what in ("progress", "holds", "repairs"):
        file = next(one.path(name) for name in one.manifest().sha256 if what in name)
        flip(file, 20)
        refused(one, file)
        flip(file, 20)
    one.finish()
    assert len(one.rows()) == sum(b.rows for b in one.manifest().batches)
    assert one.check().code == 0


def test_a_changed_plan_is_not_followed(delivery: Callable[..., Any]) -> None:
    one = delivery(tags=["tag-0"])
    one.crash("run", "deliver", at="plan.after_commit")
    (file,) = Path(one.settings.storage.root).rglob("plan*.json")
    file.write_text(file.read_text().replace('"reread"', '"rows" ', 1))
    ended = one.here("run", "deliver")
    assert ended.code == 2, ended
    assert (
        f"{file}: the plan of run 1, pipeline {one.pipeline}, is not the one that the ledger names"
        in ended.error
    )
    assert one.rows() == []


CHANGES = {
    "event": "ALTER TABLE {table} UPDATE event = concat(event, ' ') WHERE {one}",
    "ser_manifest": "ALTER TABLE {table} UPDATE ser_manifest = 'other' WHERE {one}",
    "tag_pid_sequence_nr": "ALTER TABLE {table} UPDATE tag_pid_sequence_nr = tag_pid_sequence_nr + 1 "
    "WHERE {one}",
    "late": "ALTER TABLE {table} UPDATE late = 1 WHERE {one}",
    "a row less": "ALTER TABLE {table} DELETE WHERE {one}",
    "a row twice": "INSERT INTO {table} SELECT * FROM {table} WHERE {one}",
    "generation": "ALTER TABLE {table} UPDATE generation = 2 WHERE {one}",
}


@pytest.mark.long
def test_check_row_changed_in_clickhouse_names_batch(delivery: Callable[..., Any]) -> None:
    """Change one row in each way; `check` names its batch, and sending the batch again repairs it."""
    one = delivery(tags=["tag-0"])
    one.sealed()
    one.finish()
    (batch,) = one.manifest().batches[:1]
    persistence_id, sequence_nr = one.stack.rows(
        f"SELECT persistence_id, sequence_nr FROM {one.table} LIMIT 1"
    )[0]
    key = f"persistence_id = '{persistence_id}' AND sequence_nr = {sequence_nr}"
    for what, statement in CHANGES.items():
        one.sql(statement.format(table=one.table, one=key))
        found = one.check()
        assert found.code == 3, (what, found)
        assert batch.batch_id in found.out, (what, found)
        repeated = one.said("batches", "resend", batch.batch_id, "--run", "1", "--why", what, "--yes")
        assert repeated.code == 0, (what, repeated)
        assert one.check().code == 0, what


@pytest.mark.long
def test_check_row_of_unknown_batch_is_named(delivery: Callable[..., Any]) -> None:
    """Insert a row with a batch_id that no run has; `check` fails and names that batch_id."""
    one = delivery(tags=["tag-0"])
    one.sealed()
    one.finish()
    foreign = "00000000-0000-4000-8000-000000000001"
    columns = "persistence_id, tag, sequence_nr"
    one.sql(
        f"INSERT INTO {one.table} ({columns}, batch_id, generation) VALUES ('nobody', 'tag-0', 1, "
        f"'{foreign}', 1)"
    )
    found = one.check()
    assert found.code == 3, found
    assert foreign in found.out
