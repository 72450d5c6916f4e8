"""Delete the ids of events that were delivered before the window: they no longer count as known, whether they
are deleted or not.

An id stays while its batch is not in ClickHouse, and while a run that is already planned counts it as known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import CassandraSettings, Settings
from tagmill.delivery.batch_verification import runs_with_new
from tagmill.delivery.topics.model import Expired
from tagmill.delivery.topics.run_files import read_plan
from tagmill.domain.batches.states import BatchState
from tagmill.errors import about_pipeline
from tagmill.ledger.dedup import Deduplication, Rules, shards_of
from tagmill.ledger.runs import Ledger
from tagmill.runs.clock import agreed_now
from tagmill.runs.workspace import Workspace, open_step

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Ids that are deleted at once: a shard may have any number of them.
FORGOTTEN_AT_ONCE = 10_000


@about_pipeline
def expire(
    settings: Settings, pipeline: str, *, owner: str, spark: Callable[[], SparkSession], dry_run: bool = False
) -> Expired:
    """Delete the ids that a pipeline delivered before its window; with `dry_run`, only count them.

    Raises LeaseTaken: the pipeline is at work; StoreUnavailable.
    """
    from tagmill.spark.errors import explained

    chosen = settings.topic(pipeline)
    with (
        open_step(settings, pipeline, owner=owner, wait=True) as workspace,
        explained(workspace.cassandra.where, "Ids that are not gone yet stay"),
    ):
        before = agreed_now(settings, workspace.cassandra) - timedelta(days=chosen.window_days)
        before = min(before, _known_since(workspace) or before)
        keyspace = settings.cassandra.ledger_keyspace
        rule, count = workspace.store(Rules).current(), 0
        if rule is not None:
            work = partial(
                _expire,
                cassandra=settings.cassandra,
                ledger=keyspace,
                pipeline=pipeline,
                rule=rule.rule,
                before=before,
                undelivered_runs=_not_in_clickhouse(workspace.ledger, keyspace, pipeline),
                dry_run=dry_run,
            )
            shards = shards_of(rule.rule)
            running = spark()
            tasks = min(shards, 8 * running.sparkContext.defaultParallelism)
            found = (
                running.range(0, shards, numPartitions=tasks)
                .mapInArrow(work, "ids bigint")
                .groupBy()
                .sum("ids")
                .first()
            )
            count = int((found[0] if found else 0) or 0)
        workspace.give_back()
    return Expired(pipeline=pipeline, before=before, ids=count, dry_run=dry_run)


def _known_since(workspace: Workspace) -> datetime | None:
    """Return the time from which ids count as known for the unfinished run; None if there is no such run."""
    row = workspace.ledger.open_run(workspace.name)
    if row is None or not row.plan_file:
        return None
    return datetime.fromtimestamp(read_plan(workspace.files, row).known_since / 1000, UTC)


def _not_in_clickhouse(ledger: Ledger, keyspace: str, pipeline: str) -> frozenset[int]:
    """Return the runs with a batch that is still to come to ClickHouse: the unfinished one, and those with a
    batch that is sent again.
    """
    row, found = ledger.open_run(pipeline), set(runs_with_new(ledger, keyspace, pipeline))
    if row is not None:
        batches = ledger.batches(pipeline, row.run)
        if not batches or any(one.state != BatchState.IN_CLICKHOUSE for one in batches):
            found.add(row.run)
    return frozenset(found)


def _expire(
    batches: Iterable[pa.RecordBatch],
    cassandra: CassandraSettings,
    ledger: str,
    pipeline: str,
    rule: str,
    before: datetime,
    undelivered_runs: frozenset[int],
    dry_run: bool,
) -> Iterator[pa.RecordBatch]:
    with Cassandra(cassandra) as connected:
        reading = Deduplication(connected, ledger, pipeline, rule)
        for batch in batches:
            counts = []
            for shard in batch["id"].to_pylist():
                found, count = (
                    (
                        (shard, one, written)
                        for one, written in reading.expired(shard, before, undelivered_runs)
                    ),
                    0,
                )
                while part := list(islice(found, FORGOTTEN_AT_ONCE)):
                    count += len(part) if dry_run else reading.forget(part)
                counts.append(count)
            yield pa.RecordBatch.from_pydict({"ids": counts}, pa.schema({"ids": pa.int64()}))
