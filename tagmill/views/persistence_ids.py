"""Rebuild all_persistence_ids from the keys of messages: add what is missing, and never remove anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tagmill.config.settings import Settings
from tagmill.domain.documents import Document
from tagmill.errors import ConfigurationError, GuardRefused, about_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tagmill.runs.progress import Tell


class IdsReport(Document):
    """Numbers of persistence ids: `listed` before, `with_events` in messages, `added` to all_persistence_ids
    (or would be).
    """

    journal: str
    table: str
    dry_run: bool
    listed: int
    with_events: int
    added: int

    @property
    def lines(self) -> Sequence[Document]:
        """The documents that a log shows: none."""
        return []

    @property
    def message(self) -> str:
        """The report as one line of text."""
        return (
            f"{self.journal}.{self.table}: {self.added} {'would be ' if self.dry_run else ''}added; "
            f"{self.listed} were listed, "
            f"{self.with_events} have events"
        )


@about_pipeline
def rebuild_ids(
    settings: Settings, pipeline: str, *, spark: SparkSession, dry_run: bool = False, tell: Tell | None = None
) -> IdsReport:
    """Add the persistence ids that have events and are not listed; safe while the application runs, and to
    repeat.

    Raises ConfigurationError: the journal has no such table. GuardRefused: a deletion with a later timestamp
    hides what was written.
    """
    from tagmill.cassandra.client import Cassandra
    from tagmill.journal.frames import ID, JournalSchema, with_events
    from tagmill.ledger.schema_steps import SchemaSteps
    from tagmill.spark.errors import explained

    chosen = settings.pipeline(pipeline)
    say = tell or (lambda _: None)
    with Cassandra(settings.cassandra) as cassandra, explained(cassandra.where, "Ids that were added stay"):
        SchemaSteps(cassandra, settings.cassandra.ledger_keyspace).require_known()
        journal = JournalSchema.load(cassandra, chosen.journal)
        ids = journal.names.all_persistence_ids
        if missing := [name for name in (journal.names.messages, ids) if name not in journal.tables]:
            if not dry_run or journal.names.messages in missing:
                raise ConfigurationError(
                    f"keyspace {journal.keyspace} has no table {' and '.join(missing)}. Nothing was "
                    "written; create it: "
                    f"tagmill views migrate --pipeline {pipeline} --step tables",
                    pipeline=pipeline,
                )
        say("looking which persistence ids have events")
        found = with_events(spark, journal).localCheckpoint()
        listed = found.where("false") if missing else journal.table(ids).rows(spark, ID)
        new = found.join(listed, ID, "left_anti").localCheckpoint()
        report = IdsReport(
            journal=journal.keyspace,
            table=ids,
            dry_run=dry_run,
            listed=listed.count(),
            with_events=found.count(),
            added=new.count(),
        )
        if report.added and not dry_run:
            say(f"adding {report.added} persistence ids")
            journal.table(ids).append(new, cassandra.now_microseconds())
            there = journal.table(ids).rows_of(new, [ID]).count()
            if there < report.added:
                raise GuardRefused(
                    f"journal {journal.keyspace}: {report.added - there} of {report.added} persistence "
                    f"ids are not in {ids} though they "
                    "were written: deletions of a clock that was ahead cover them. Run the same command "
                    "again once that time has come"
                )
    return report
