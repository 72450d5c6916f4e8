"""The four steps of a run of a topic or a Kafka Journal, as the command line and Airflow call them.

Each takes the lease, does its work, and returns what it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tagmill.config.settings import Settings
from tagmill.delivery.closing import read_back
from tagmill.delivery.push import Destination, push_batches
from tagmill.delivery.topics.model import TopicManifest, TopicPlan
from tagmill.delivery.topics.plan import letters_planned, must_fit, planned
from tagmill.delivery.topics.run_files import ids_noted, read_manifest, read_plan
from tagmill.delivery.topics.same_journal import require_same_journal
from tagmill.delivery.topics.table_columns import sealed_layout
from tagmill.domain.batches.states import BatchState, RunState, may_close
from tagmill.domain.documents import Batch
from tagmill.errors import TransientError, about_pipeline
from tagmill.kafka.client import KafkaRecord
from tagmill.ledger.dead_letters import DeadLetter, DeadLetters
from tagmill.ledger.dedup import Deduplication, TopicOffsets
from tagmill.ledger.failures import forget_failures
from tagmill.ledger.runs import BatchRow, Ledger, RunRow
from tagmill.ledger.same_tables import first_abandon
from tagmill.ledger.set_apart import Kind, SetApart
from tagmill.runs import checkpoints
from tagmill.runs.ledger_comparison import require_up_to_date
from tagmill.runs.sealed_files import add_batches, create_planned_run
from tagmill.runs.storage import RunFiles
from tagmill.runs.workspace import Workspace, open_step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Result = dict[str, Any]
# Rows that are in memory at once: records as they came, which may be large, and rows that only name a record.
LETTERS_AT_ONCE, KEYS_AT_ONCE = 50, 1000


@about_pipeline
def plan(
    settings: Settings,
    pipeline: str,
    *,
    owner: str,
    accept_lost: bool = False,
    recreated: bool = False,
    letters: bool = False,
) -> Result:
    """Plan the next run, or take over the unfinished one.

    In the result, `run` is None when there is nothing to do.

    With `recreated`, topics that were created again are read from their first record. With `letters`, the run
    reads the pipeline's dead letters again.

    Raises GuardRefused: records are gone from Kafka that were never delivered (unless `accept_lost`).
    ConfigurationError: the ids of delivered events were made by another rule, or a schema file doesn't fit
    the columns.
    """
    chosen = settings.stream(pipeline)
    with open_step(settings, pipeline, owner=owner, wait=True, step="plan") as workspace:
        ledger = workspace.ledger
        number = ledger.free_number(pipeline)
        if unfinished := ledger.open_run(pipeline):
            return _resume_open_run(workspace, unfinished)
        ledger.delivered.write_times.require_own(pipeline, number)
        require_up_to_date(workspace, number)
        require_same_journal(workspace)
        must_fit(workspace)
        if letters:
            made = letters_planned(workspace, number)
        else:
            made = planned(workspace, number, accept_lost, recreated)
        if made is None:
            forget_failures(settings, workspace.cassandra, pipeline)
            workspace.give_back()
            nothing = f"pipeline {pipeline}: nothing to do"
            return {
                "run": None,
                "fence": 0,
                "state": "IDLE",
                "records": 0,
                "more": False,
                "planned_now": False,
                "message": nothing,
            }
        with workspace.clickhouse() as clickhouse:
            clickhouse.check_for_plan(chosen.destination, chosen.destination_retention_days)
        checkpoints.reached("plan.before_commit")
        row = create_planned_run(workspace, number, made, kind="deliver")
        checkpoints.reached("plan.after_commit")
        what = (
            "the dead letters"
            if letters
            else f"up to {made.records} records of {len(made.ranges)} partitions"
        )
        said = f"pipeline {pipeline}: run {number} planned, {what}"
        return {
            "run": number,
            "fence": row.fence,
            "state": row.state.value,
            "records": made.records,
            "few_rows": _has_few_records(settings, made),
            "more": made.more,
            "planned_now": True,
            "message": said,
        }


def _has_few_records(settings: Settings, made: TopicPlan) -> bool:
    """Return whether a run is sealed without Spark, unless too many of its ids may be known."""
    topic = settings.topics.get(made.pipeline)
    return topic is not None and not made.letters and made.records <= topic.small_run_rows


@about_pipeline
def seal(
    settings: Settings, pipeline: str, run: int, fence: int, *, owner: str, spark: Callable[[], SparkSession]
) -> Result:
    """Read and deduplicate the records of a planned run, seal its batches, and note their ids."""
    from tagmill.delivery.topics.seal import seal as seal_run
    from tagmill.spark.errors import explained

    noting = f"Run {run} is sealed, not all of its ids are noted yet"
    with (
        open_step(settings, pipeline, owner=owner, step="seal", run=run) as workspace,
        explained(workspace.cassandra.where, noting),
    ):
        ledger = workspace.ledger
        if ledger.current(pipeline, run, fence).state == RunState.PLANNED:
            require_same_journal(workspace, first_abandon(pipeline))
        manifest = seal_run(workspace, spark, run, fence)
        add_batches(ledger, manifest)
        return _summary(manifest, f"{len(manifest.batches)} batches sealed")


@about_pipeline
def push(
    settings: Settings,
    pipeline: str,
    run: int,
    fence: int,
    *,
    owner: str,
    progress: Callable[[int, int], None] | None = None,
) -> Result:
    """Insert the batches of a sealed run into ClickHouse, and verify each; raises TransientError if its ids
    are not noted yet.
    """
    chosen, files = settings.stream(pipeline), RunFiles(settings.storage.root)
    with open_step(settings, pipeline, owner=owner, step="push", run=run) as workspace:
        row = workspace.ledger.current(pipeline, run, fence)
        manifest = read_manifest(files, row)
        if chosen.rule and not ids_noted(files, manifest):
            raise TransientError(
                f"run {run} of pipeline {pipeline}: its ids are not noted yet. Nothing was pushed; seal "
                "it again",
                pipeline=pipeline,
                run=run,
            )
        if row.state == RunState.SEALED:
            sealed = sealed_layout(chosen, manifest.columns, f"run {run} of pipeline {pipeline}")
            to = Destination(chosen.destination, sealed, 1, chosen.seconds_between_inserts)
            push_batches(workspace, manifest, fence, to, progress)
        return _summary(manifest, f"{len(manifest.batches)} batches verified in ClickHouse")


@about_pipeline
def close(settings: Settings, pipeline: str, run: int, fence: int, *, owner: str) -> Result:
    """Close a pushed run: keep unreadable records as dead letters, move the offsets, and give the lease
    back.
    """
    with open_step(settings, pipeline, owner=owner, step="close", run=run) as workspace:
        manifest = close_run(workspace, run, fence)
        forget_failures(settings, workspace.cassandra, pipeline)
        workspace.give_back()
        return _summary(manifest, "closed")


def _forget_apart(ledger: Ledger, keyspace: str, plan: TopicPlan) -> None:
    """Remove what a run has settled: its records that are dead letters now, which only a replay reads again,
    and a returned id.
    """
    table = SetApart(ledger.cassandra, keyspace, plan.pipeline)
    if plan.only is not None:
        table.remove(Kind.SINCE, plan.only)
    for topic, partition, offset, _ in plan.apart.records:
        table.remove(Kind.RECORD, f"{topic}/{partition}/{offset}")


def close_run(workspace: Workspace, run: int, fence: int) -> TopicManifest:
    """Close a run whose batches are all in ClickHouse or void, under the caller's lease; a closed run is left
    as it is.
    """
    ledger, pipeline = workspace.ledger, workspace.name
    files, keyspace = workspace.files, workspace.ledger_keyspace
    row = ledger.current(pipeline, run, fence)
    manifest = read_manifest(files, row)
    if row.state == RunState.SEALED:
        batches = ledger.batches(pipeline, run)
        if not may_close([batch.state for batch in batches]) or len(batches) != len(manifest.batches):
            raise TransientError(
                f"run {run} of pipeline {pipeline} has batches that are not in ClickHouse yet. Push first",
                pipeline=pipeline,
                run=run,
            )
        letters, rule = workspace.store(DeadLetters), read_plan(files, row).rule
        letters.add(_letters(files, manifest))
        checkpoints.reached("close.before_progress")
        voided = {batch.number for batch in batches if batch.state == BatchState.VOIDED}
        if voided:
            # The next run reads the same records: delivered ids stay known, so the ids of voided batches must
            # be forgotten.
            if rule:
                ids = Deduplication(workspace.cassandra, keyspace, pipeline, rule)
                written = ledger.delivered.write_times.of(pipeline, run)
                ids.forget(
                    _ids(files, [batch for batch in manifest.batches if batch.number in voided], written)
                )
        else:
            letters.forget(_replayed(files, manifest))
            offsets = workspace.store(TopicOffsets)
            with read_back(ledger, pipeline, run, fence):
                offsets.write(run, {one.topic_partition: one.end for one in manifest.ranges})
            _forget_apart(ledger, keyspace, read_plan(files, row))
        _count_as_delivered(workspace, batches)
        checkpoints.reached("close.before_end")
        ledger.finish_run(pipeline, run, fence, RunState.SEALED, RunState.CLOSED)
    files.remove_attempts(pipeline, run, but=manifest.attempt)
    return manifest


def _count_as_delivered(workspace: Workspace, batches: Iterable[BatchRow]) -> None:
    """Let the ids of delivered batches count, also of those that a give-up set apart before it was ended."""
    table = workspace.store(SetApart)
    delivered = {str(batch.batch_id) for batch in batches if batch.state == BatchState.IN_CLICKHOUSE}
    for item in delivered.intersection(table.items(Kind.BATCH)):
        table.remove(Kind.BATCH, item)


def _letters(files: RunFiles, manifest: TopicManifest) -> Iterator[DeadLetter]:
    for part in _sealed_parts(files, manifest, manifest.letters, LETTERS_AT_ONCE):
        for row in part.to_pylist():
            moment = datetime.fromtimestamp(row["created_at"] / 1000, UTC)
            headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
            record = KafkaRecord(
                row["topic"], row["partition"], row["offset"], moment, row["key"], row["payload"], headers
            )
            yield DeadLetter(record, row["reason"])


def _replayed(files: RunFiles, manifest: TopicManifest) -> Iterator[tuple[str, int, int]]:
    for part in _sealed_parts(files, manifest, manifest.replayed, KEYS_AT_ONCE):
        for row in part.to_pylist():
            yield row["topic"], row["partition"], row["offset"]


def _sealed_parts(
    files: RunFiles, manifest: TopicManifest, folder: str, rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a folder's sealed files, `rows` at once; raises SealedFileDamaged if one is gone or changed."""
    for name, sha256 in manifest.sha256.items():
        if name.startswith(f"{folder}/"):
            with files.open_sealed(name, sha256) as source:
                yield from pq.ParquetFile(source).iter_batches(rows)


def _ids(files: RunFiles, batches: Iterable[Batch], written: int) -> Iterator[tuple[int, str, int]]:
    for batch in batches:
        with files.open_sealed(batch.file, batch.sha256) as source:
            for part in pq.ParquetFile(source).iter_batches(KEYS_AT_ONCE, columns=["shard", "unique_id"]):
                for row in part.to_pylist():
                    yield row["shard"], row["unique_id"], written


def _resume_open_run(workspace: Workspace, row: RunRow) -> Result:
    row = workspace.ledger.raise_fence(row, workspace.owner)
    said = f"pipeline {row.pipeline}: run {row.run} was not finished ({row.state}), going on with it"
    return {
        "run": row.run,
        "fence": row.fence,
        "state": row.state.value,
        "records": 0,
        "more": True,
        "planned_now": False,
        "message": said,
    }


def _summary(manifest: TopicManifest, outcome: str) -> Result:
    counts = manifest.counts
    rows = sum(batch.rows for batch in manifest.batches)
    return {
        "run": manifest.run,
        "batches": len(manifest.batches),
        "rows": rows,
        **counts.model_dump(),
        "more": manifest.more,
        "warnings": manifest.warnings,
        "message": f"pipeline {manifest.pipeline}: run {manifest.run} {outcome}, {rows} new events of "
        f"{counts.records} records "
        f"({counts.known} known, {counts.twice} twice, {counts.unreadable} unreadable)"
        + (f", {counts.nulled} values of columns null" if counts.nulled else ""),
    }
