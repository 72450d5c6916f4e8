"""Query the journal of one pipeline from a notebook."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Literal, get_args
from uuid import UUID

from pyspark.sql import DataFrame, SparkSession

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.config.tag_views import PipelineSettings, moment
from tagmill.domain import identifiers
from tagmill.domain.timeuuid import from_datetime, lowest, ticks
from tagmill.errors import ConfigurationError, TerminalError, ViewNotBuilt
from tagmill.journal import frames
from tagmill.journal.tag_view_reader import VIEW_COLUMNS
from tagmill.ledger.preconditions import check_view
from tagmill.ledger.view_builds import Builds
from tagmill.queries import by_persistence_id, by_tag
from tagmill.spark.errors import explained

Gaps = Literal["fail", "keep"]
Moment = datetime | str | None
Offset = UUID | Moment
NOTHING = "Nothing was returned"
LAST_SEQUENCE_NR = 2**63 - 1


class ReadJournal:
    """The read journal of Akka and Pekko for Spark: currentPersistenceIds, currentEventsByPersistenceId,
    currentEventsByTag.

    A query raises errors in its arguments at once, and errors in the data, too, if `gaps` is "fail". The
    events themselves are read when the DataFrame is. They are in the plugin's order for everything that takes
    the rows as they come (show, limit, toLocalIterator, write); after a join or groupBy, sort again (events
    by tag: `tagmill.queries.in_order`).
    """

    def __init__(self, spark: SparkSession, settings: Settings, pipeline: str) -> None:
        """Read the schema of the pipeline's keyspace; raises ConfigurationError for an unknown pipeline or
        keyspace.
        """
        self.spark = spark
        self.settings = settings
        self.name = pipeline
        self.pipeline: PipelineSettings = settings.pipeline(pipeline)
        with self._reading() as journal:
            self.where = journal.cassandra.where

    def current_persistence_ids(self) -> DataFrame:
        """Return all persistence ids, each once, in no order: from all_persistence_ids, or if that is empty,
        from the keys of messages.
        """
        with self._reading() as journal, explained(self.where, NOTHING):
            _require(journal, journal.names.messages, frames.ID)
            return frames.persistence_ids(self.spark, journal)

    def current_events_by_persistence_id(
        self,
        persistence_ids: str | Iterable[str],
        from_sequence_nr: int = 0,
        to_sequence_nr: int = LAST_SEQUENCE_NR,
        *,
        gaps: Gaps = "fail",
    ) -> DataFrame:
        """Return the events of one persistence_id, or of several one after the other, in order of
        sequence_nr.

        Both bounds are inclusive. Deleted events are left out, even if their rows still exist. If two writers
        wrote events with one sequence_nr, both are returned. A persistence_id that the journal doesn't know
        has no events.

        Returns:
            by_persistence_id.COLUMNS: one row an event.

        Raises:
            EventsMissing: with gaps="fail", a sequence_nr is missing behind what is deleted, where the
                plugin's stream would fail.
        """
        with self._reading() as journal:
            _require(journal, journal.names.messages, *frames.REQUIRED)
            _one_of(gaps)
            given = [persistence_ids] if isinstance(persistence_ids, str) else persistence_ids
            wanted = list(dict.fromkeys(map(identifiers.key, given)))
            parts = by_persistence_id.partitions(journal, wanted, from_sequence_nr, to_sequence_nr)
            if gaps == "fail":
                with explained(self.where, NOTHING):
                    by_persistence_id.refuse_gaps(self.spark, journal, parts)
            return by_persistence_id.events(self.spark, journal, parts)

    def current_events_by_tag(
        self, tag: str, offset: Offset = None, until: Moment = None, *, gaps: Gaps = "fail"
    ) -> DataFrame:
        """Return the events with a tag, bucket by bucket, in order of offset.

        A tag that the view doesn't know has no events. Nothing before first_time_bucket is read.

        Args:
            tag: any tag of the journal, not only those of the pipeline.
            offset: a TimeUUID (exclusive), a moment (inclusive; UTC where it names no zone), or None for all.
            until: the last moment, at most now less eventual_consistency_delay_seconds, which is the default.
            gaps: "fail" as the plugin's stream does, "keep" for the rows as they are, duplicates included.

        Returns:
            by_tag.COLUMNS: one row an event.

        Raises:
            EventsMissing: with gaps="fail", a persistence_id's numbers have a gap or come out of order.
            ConfigurationError: the journal's view is now in another table; the tag is longer than any of
                Cassandra's keys.
        """
        with self._reading() as journal:
            check_view(journal.cassandra, self.settings, self.name)
            _require(journal, journal.view_table, *(name for name in VIEW_COLUMNS if name not in frames.META))
            _one_of(gaps)
            span = by_tag.Span(
                identifiers.key(tag),
                self.pipeline.bucket_size,
                self._after(offset),
                self._until(until, journal.cassandra),
            )
            events = partial(by_tag.events, self.spark, journal, span)
            if gaps == "keep":
                return events()
            with explained(self.where, NOTHING):
                again = by_tag.refuse_gaps(
                    events(by_tag.KEY), f"tag {tag!r} of journal {journal.keyspace}", self.name
                )
            return by_tag.without_duplicates(events()) if again else events()

    @contextmanager
    def _reading(self) -> Iterator[frames.JournalSchema]:
        """Yield the journal's schema as of now."""
        with Cassandra(self.settings.cassandra) as cassandra:
            yield frames.JournalSchema.load(cassandra, self.pipeline.journal)

    def _after(self, offset: Offset) -> UUID:
        """Return the TimeUUID behind which all events are read: the given offset, but at least the lowest of
        the first time bucket.
        """
        first = lowest(self.pipeline.first_ticks)
        if offset is None:
            return first
        try:
            found = _time_uuid(offset)
            return found if ticks(found) >= ticks(first) else first
        except (TypeError, ValueError):
            raise TerminalError(
                f"offset {offset!r} is neither a TimeUUID nor a moment. Nothing was read; give an "
                "event's own offset, "
                "or a moment like 2026-03-01T08:00:00Z"
            ) from None

    def _until(self, until: Moment, cassandra: Cassandra) -> int:
        """Return the last tick to read.

        Events younger than the delay, or than the last build, may be missing from the view yet.
        """
        delay = timedelta(seconds=self.pipeline.eventual_consistency_delay_seconds)
        latest = from_datetime(cassandra.now() - delay)
        if builder := self.settings.builder(self.pipeline.keyspace):
            latest = min(latest, self._built_to(builder, cassandra))
        try:
            return latest if until is None else min(latest, from_datetime(moment(until)))
        except (TypeError, ValueError):
            raise TerminalError(
                f"until {until!r} is no moment. Nothing was read; give one like 2026-03-01T08:00:00Z"
            ) from None

    def _built_to(self, builder: str, cassandra: Cassandra) -> int:
        journal = self.pipeline.keyspace
        newest = Builds(cassandra, self.settings.cassandra.ledger_keyspace, journal).newest()
        if newest is None or newest.built_to is None:
            raise ViewNotBuilt(
                f"pipeline {self.name}: the view of journal {journal} was never built "
                '(views = "tagmill"). '
                f"Nothing was read. Build it: tagmill views build --pipeline {builder}",
                pipeline=self.name,
            )
        return newest.built_to


def _require(journal: frames.JournalSchema, table: str, *columns: str) -> None:
    """Raise ConfigurationError unless the journal has a table with these columns."""
    there = journal.tables.get(table)
    if there is None:
        raise ConfigurationError(
            f"keyspace {journal.keyspace} has no table {table}. Nothing was read; is it the journal's keyspace?"
        )
    if missing := [name for name in columns if name not in there]:
        raise ConfigurationError(
            f"{journal.keyspace}.{table} has no column {' and '.join(missing)}. Nothing was "
            "read; migrate the journal first"
        )


def _one_of(gaps: str) -> None:
    if gaps not in get_args(Gaps):
        raise TerminalError(f'gaps={gaps!r}: it is "fail" or "keep". Nothing was read')


def _time_uuid(offset: UUID | datetime | str) -> UUID:
    if isinstance(offset, str):
        try:
            offset = UUID(offset)
        except ValueError:
            offset = moment(offset)
    return offset if isinstance(offset, UUID) else lowest(from_datetime(moment(offset)))
