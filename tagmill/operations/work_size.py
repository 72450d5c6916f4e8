"""Decide before Spark starts whether an operation has few rows to read, so that its session suits them.

A wrong answer costs time and changes no result. Looking is bounded: it ends behind `[spark] small_job_rows` rows
or after SECONDS, and then the answer is no. So it is where a store does not answer; the operation itself says why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tagmill.config.settings import Settings
from tagmill.errors import TagmillError

if TYPE_CHECKING:
    from tagmill.cassandra.client import Cassandra

# Seconds that counting keys may take: rows may be large.
SECONDS = 2.0
PAGE_ROWS = 5000
HasFewRows = Callable[[Settings, str], bool]


def never(_settings: Settings, _pipeline: str) -> bool:
    """Return False: the operation is Spark's work, whatever it has to read."""
    return False


def few_events(settings: Settings, pipeline: str) -> bool:
    """Return whether the journal and the view of a pipeline of tag views have few rows together."""
    from tagmill.cassandra.client import FAULTS, Cassandra

    most, journal = settings.spark.small_job_rows, settings.pipeline(pipeline).journal
    if not most:
        return False
    until = time.monotonic() + SECONDS
    tables = map(journal.cql, (journal.messages, journal.view))
    queries = [f"SELECT sequence_nr FROM {table}" for table in tables]
    with suppress(TagmillError, *FAULTS), Cassandra(settings.cassandra) as cassandra:
        return _count(cassandra.application, queries, most, until) is not None
    return False


def little_to_audit(settings: Settings, pipeline: str) -> bool:
    """Return whether the journal and the view of a pipeline have few rows together, or what an audit has proven of them is
    told in few.
    """
    from tagmill.audit import baseline
    from tagmill.runs.storage import RunFiles

    days, most = settings.pipeline(pipeline).audit_full_days, settings.spark.small_job_rows
    with suppress(TagmillError, OSError):
        proven = baseline.newest(RunFiles(settings.storage.root), pipeline)
        if proven and proven.holds(datetime.now(UTC), days) and sum(proven.rows.values()) <= most:
            return True
    return few_events(settings, pipeline)


def built_without_spark(settings: Settings, pipeline: str) -> bool:
    """Return whether a journal has so few persistence ids that a build numbers its new events without Spark, unless
    these are many.
    """
    from tagmill.cassandra.client import FAULTS, Cassandra

    chosen = settings.pipeline(pipeline)
    most, names = chosen.small_run_rows, chosen.journal
    if not most:
        return False
    until = time.monotonic() + SECONDS
    listed = f"SELECT persistence_id FROM {names.cql(names.all_persistence_ids)}"
    keys = f"SELECT DISTINCT persistence_id, partition_nr FROM {names.cql(names.messages)}"
    with suppress(TagmillError, *FAULTS), Cassandra(settings.cassandra) as cassandra:
        count = _count(cassandra.application, [listed], most, until)
        if count == 0:
            count = _count(cassandra.application, [keys], most, until)
        return count is not None
    return False


def few_waiting_records(settings: Settings, pipeline: str) -> bool:
    """Return whether few records of a Kafka Journal wait for their replication."""
    return _wait_at_most(settings.spark.small_job_rows, settings, pipeline)


def replicated_without_spark(settings: Settings, pipeline: str) -> bool:
    """Return whether so few records of a Kafka Journal wait that a replication reads them without Spark."""
    return _wait_at_most(settings.kafka_journal(pipeline).small_run_rows, settings, pipeline)


def _wait_at_most(most: int, settings: Settings, pipeline: str) -> bool:
    from tagmill.kafka_journal.replicate import status

    with suppress(TagmillError):
        return bool(most) and sum(place.waiting for place in status(settings, pipeline)) <= most
    return False


def few_replicated_records(settings: Settings, pipeline: str) -> bool:
    """Return whether few records of a Kafka Journal were ever replicated, by their offsets."""
    from tagmill.kafka_journal.replicate import status

    most = settings.spark.small_job_rows
    with suppress(TagmillError):
        return bool(most) and sum(place.replicated_to or 0 for place in status(settings, pipeline)) <= most
    return False


def few_ids(settings: Settings, pipeline: str) -> bool:
    """Return whether a topic has few ids of delivered events, by the offsets that it was delivered to."""
    from tagmill.cassandra.client import Cassandra
    from tagmill.ledger.dedup import TopicOffsets

    most = settings.spark.small_job_rows
    with suppress(TagmillError), Cassandra(settings.cassandra) as cassandra:
        delivered_to = TopicOffsets(cassandra, settings.cassandra.ledger_keyspace, pipeline).read_to()
        return bool(most) and sum(delivered_to.values()) <= most
    return False


def _count(cassandra: Cassandra, queries: Sequence[str], most: int, until: float) -> int | None:
    """Return how many rows queries have together; None if there are more than `most`, or counting lasts too long."""
    rows = 0
    for query in queries:
        for page in _pages(cassandra, query, until):
            rows += page
            if rows > most or time.monotonic() > until:
                return None
    return rows


def _pages(cassandra: Cassandra, query: str, until: float) -> Iterator[int]:
    """Yield the number of rows of each page."""
    statement: Any = cassandra.prepare(query).bind(())
    statement.fetch_size = PAGE_ROWS
    page = cassandra.session.execute(statement, timeout=max(until - time.monotonic(), 0.1))
    yield len(page.current_rows)
    while page.has_more_pages:
        page.fetch_next_page()
        yield len(page.current_rows)
