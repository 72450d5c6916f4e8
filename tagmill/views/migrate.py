"""Migrate a journal of an older plugin: do what the plugin's EventsByTagMigration does, for journals of any
size, and the steps before it.

The steps are model.Step; docs/migrate.md says what each does. Each step reads the current state and does what
is left, so a migration that was killed, or that another tool has half done, goes on from there. The step
`tags` is a rebuild (rebuild.py), where an event's tags include those of tag1 to tag3 (tables.event_tags).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.domain.journal_tables import OLD_TAGS, tag_columns
from tagmill.errors import ConfigurationError, GuardRefused, about_pipeline
from tagmill.journal.flaws import Reason
from tagmill.ledger.schema_steps import SchemaSteps
from tagmill.ledger.view_builds import Builds
from tagmill.runs import checkpoints
from tagmill.runs.workspace import Workspace, open_step
from tagmill.views import legacy_schema
from tagmill.views.legacy_schema import Change, Layout
from tagmill.views.migration_plan import MigrationReport, Plan
from tagmill.views.model import Difference, Step
from tagmill.views.persistence_ids import IdsReport, rebuild_ids
from tagmill.views.rebuild import rebuild
from tagmill.views.selection import (
    EXAMPLES,
    Selection,
    Skipped,
    TagChange,
    Unknown,
    ViewReport,
    unknown_ids_error,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tagmill.journal.frames import JournalSchema
    from tagmill.runs.progress import Tell

ID = "persistence_id"


@about_pipeline
def migrate(
    settings: Settings,
    pipeline: str,
    plan: Plan,
    *,
    owner: str,
    spark: SparkSession | None = None,
    dry_run: bool = False,
    tell: Tell | None = None,
) -> MigrationReport:
    """Migrate a pipeline's journal as planned; with `dry_run` only report what would be done.

    `spark` is required if Plan.needs_spark.

    Raises:
        ConfigurationError: there is no such journal, a column has another type, a step before the chosen ones
            was not done.
        GuardRefused: the old columns and views were to be dropped but are still needed, or the application
            numbered meanwhile.
        FenceRaised, LeaseTaken: as rebuild.
    """
    from tagmill.spark.errors import KEPT, explained

    with Cassandra(settings.cassandra) as cassandra, explained(cassandra.where, KEPT):
        SchemaSteps(cassandra, settings.cassandra.ledger_keyspace).require_known()
        return _Migrator(
            settings, pipeline, plan, cassandra, owner, spark, dry_run, tell or (lambda _: None)
        ).run()


class _Migrator:
    """One migration of one journal."""

    def __init__(
        self,
        settings: Settings,
        pipeline: str,
        plan: Plan,
        cassandra: Cassandra,
        owner: str,
        spark: SparkSession | None,
        dry_run: bool,
        tell: Tell,
    ) -> None:
        self.settings, self.pipeline, self.plan, self.cassandra = settings, pipeline, plan, cassandra
        self.owner, self.maybe_spark, self.dry_run, self.tell = owner, spark, dry_run, tell
        chosen = settings.pipeline(pipeline)
        self.journal, self.keyspace, self.builder = (
            chosen.journal,
            chosen.keyspace,
            settings.builder(chosen.keyspace),
        )
        self.snapshot_table, self.snapshot_keyspace = (
            chosen.snapshot_table,
            plan.snapshot_keyspace or chosen.snapshot_keyspace,
        )
        self.notes: list[str] = []

    @property
    def spark(self) -> SparkSession:
        assert self.maybe_spark is not None, "this plan needs a Spark session"
        return self.maybe_spark

    def run(self) -> MigrationReport:
        """Run the planned steps in order and report them."""
        due = self._due()
        if due and not self.dry_run:
            self._change_schema()
        pids = self._pids() if Step.PIDS in self.plan.steps else None
        tags = self._tags() if Step.TAGS in self.plan.steps else None
        if Step.TAGS not in self.plan.steps:
            self._note_tags()
        if Step.COLUMNS in self.plan.steps and self.snapshot_table not in self._layout().of_snapshots:
            self.notes.append(
                f"there is no table {self.snapshot_table} of snapshots (snapshot_keyspace): none were "
                "looked at"
            )
        dropped, kept = self._drop() if self.plan.drop_old else ([], None)
        return MigrationReport(
            journal=self.keyspace,
            dry_run=self.dry_run,
            schema_changes=due,
            pids=pids,
            tags=tags,
            dropped=dropped,
            kept=kept,
            notes=self.notes,
        )

    # -- the steps

    def _layout(self) -> Layout:
        return Layout(self.cassandra, self.journal, self.snapshot_table, self.snapshot_keyspace)

    def _due(self) -> list[Change]:
        return self._layout().due(self.plan.steps)

    def _change_schema(self) -> None:
        with open_step(self.settings, self.pipeline, owner=self.owner, wait=True) as workspace:
            self._run(self._due())
            workspace.give_back()

    def _run(self, due: list[Change], require: Callable[[], None] = lambda: None) -> None:
        """Run the changes, each after `require`, which may refuse it."""
        for one in due:
            self.tell(one.what)
            require()
            legacy_schema.run(self.cassandra, one, still_due=partial(self._still_due, one))
            checkpoints.reached("migrate.changed")

    def _still_due(self, change: Change) -> bool:
        return change in [*self._due(), *self._layout().too_much()]

    def _pids(self) -> IdsReport:
        return rebuild_ids(
            self.settings, self.pipeline, spark=self.spark, dry_run=self.dry_run, tell=self.tell
        )

    def _tags(self) -> ViewReport | None:
        if self.builder:
            self.notes.append(
                "Tagmill numbers this journal, tag1 to tag3 too: tagmill views build --pipeline "
                f"{self.builder}"
            )
            return None
        if self.dry_run and not self._ready():
            return self._counted()
        return self._rebuild(self.plan.selection or Selection(), dry_run=self.dry_run)

    def _note_tags(self) -> None:
        """Add the note that tag1 to tag3 were not looked at, if the journal has such columns and the plan
        doesn't drop them.
        """
        if not self.plan.drop_old and any(name in self._layout().columns() for name in OLD_TAGS):
            self.notes.append("tag1 to tag3 were not looked at: name persistence ids, or give --offline")

    def _rebuild(self, selection: Selection, *, dry_run: bool) -> ViewReport:
        return rebuild(
            self.settings,
            self.pipeline,
            selection,
            owner=self.owner,
            spark=self.spark,
            dry_run=dry_run,
            tell=self.tell,
        )

    def _ready(self) -> bool:
        """Return whether the steps before `tags` are done."""
        try:
            self._journal(ready=True)
        except ConfigurationError:
            return False
        return True

    def _journal(self, *, ready: bool = False) -> JournalSchema:
        from tagmill.journal.frames import JournalSchema

        look = JournalSchema.load_checked if ready else JournalSchema.load
        return look(self.cassandra, self.journal)

    def _counted(self) -> ViewReport:
        """Count the tags of a journal without a view to compare with: all would be added, except those of
        persistence ids that are left.

        Left are those with events that plugins before 0.10 wrote, which are in the column message.
        """
        from pyspark.sql import functions as F

        self.tell("counting tags")
        chosen = self.plan.selection or Selection()
        there = self._layout().columns()
        unread = [name for name in ("event", "message") if name in there]
        events = self._tagged("sequence_nr", *unread)
        unknown = Unknown(0, [], [])
        if chosen.persistence_ids is not None:
            named = self.spark.createDataFrame(
                [(one,) for one in chosen.persistence_ids], f"{ID} string"
            ).distinct()
            unknown = self._without_events(named)
            events = events.join(F.broadcast(named), ID, "left_semi")
        old = F.col("message").isNotNull() if "message" in there else F.lit(False)
        if "event" in there:
            old &= F.col("event").isNull()
        rows = events.select(
            ID, "sequence_nr", F.explode("all_tags").alias("tag"), old.alias("old")
        ).localCheckpoint()
        left = rows.where("old").groupBy(ID).agg((F.min("sequence_nr") - 1).alias("upto")).localCheckpoint()
        rows = rows.join(left, ID, "left_anti")
        found = rows.groupBy("tag").agg(F.count("*").alias("rows")).orderBy("tag").collect()
        ids = rows.select(ID).distinct().count()
        tags = [TagChange(tag=line.tag, added=line["rows"]) for line in found]
        self.notes.append(
            "counted without the steps before: events that are deleted, or in the way, show once those "
            "are done"
        )
        return ViewReport(
            journal=self.keyspace,
            view_table=self.journal.view,
            dry_run=True,
            persistence_ids=ids,
            tags=tags,
            progress=ids,
            changes=[],
            left=left.count(),
            unknown_ids=unknown.ids,
            unknown_examples=unknown.examples,
            unknown_tags=[],
            left_examples=[
                Skipped(
                    persistence_id=line.persistence_id, sequence_nr=line.upto, why=Reason.BEFORE_0_10.text
                )
                for line in left.orderBy(ID).limit(EXAMPLES).collect()
            ],
        )

    def _without_events(self, named: DataFrame) -> Unknown:
        """Return the named persistence ids without events; raises ConfigurationError when none of them has
        any.
        """
        from tagmill.journal import frames

        unknown = named.join(
            frames.with_events(self.spark, self._journal()), ID, "left_anti"
        ).localCheckpoint()
        count, first = unknown.count(), [line[ID] for line in unknown.orderBy(ID).limit(EXAMPLES).collect()]
        if count == named.count():
            raise unknown_ids_error(self.keyspace, count, first)
        return Unknown(count, first, [])

    def _tagged(self, *columns: str) -> DataFrame:
        """Return persistence_id, `columns` and `all_tags` of the events with tags."""
        from pyspark.sql import functions as F

        from tagmill.journal import frames

        journal = self._journal()
        there = tag_columns(journal.messages)
        rows = frames.all_events(self.spark, journal, list(dict.fromkeys([ID, *columns, *there])))
        return rows.select(ID, *columns, frames.event_tags(there).alias("all_tags")).where(
            F.size("all_tags") > 0
        )

    # -- dropping old columns and views

    def _drop(self) -> tuple[list[Change], str | None]:
        """Drop the old columns and views if nothing needs them; return them, and in a dry run why they would
        stay.

        Raises GuardRefused when something still needs them.
        """
        old = self._layout().too_much()
        if not old:
            return [], None
        self.tell("looking whether anything needs what is old")
        fence = self._fence()
        reason = self._still_needed()
        if self.dry_run:
            return old, reason
        if reason:
            raise GuardRefused(
                f"journal {self.keyspace}: {reason}. Nothing was dropped; what was migrated before stays"
            )
        with open_step(self.settings, self.pipeline, owner=self.owner) as workspace:
            self._run(old, partial(self._require_judged, workspace, fence))
            workspace.give_back()
        return old, None

    def _fence(self) -> int:
        """Return the fence of the journal's builds, 0 before the first: each process that numbers raises it."""
        newest = Builds(self.cassandra, self.settings.cassandra.ledger_keyspace, self.keyspace).newest()
        return newest.fence if newest else 0

    def _require_judged(self, workspace: Workspace, fence: int) -> None:
        """Raise LeaseTaken or GuardRefused if another process has numbered since `fence` was read: what is old may
        be needed by now.

        The look takes and gives back the lease, so it is before the lease of the drop. A process that freezes
        between this look and the drop behind it still drops.
        """
        checkpoints.reached("migrate.before_drop")
        workspace.require_leases()
        if self._fence() != fence:
            raise GuardRefused(
                f"journal {self.keyspace}: another process has numbered events since it was looked at. Nothing more "
                "was dropped, what was migrated before stays; run the same command again",
                pipeline=self.pipeline,
            )

    def _still_needed(self) -> str | None:
        """Return why the old columns and views may not be dropped yet, or None."""
        there = self._layout()
        if others := sorted(there.views - set(legacy_schema.OLD_VIEWS)):
            return (
                f"{self.journal.messages} has other materialized views ({', '.join(others)}), "
                "Cassandra drops no column under one"
            )
        if not self._ready():
            return "the steps before tags are not done"
        if self.builder and (unbuilt := self._unbuilt()):
            return (
                f"{unbuilt} persistence ids have tagged events that no build has reached (tagmill "
                "views build)"
            )
        if mixed := self._in_both():
            return (
                f"{mixed} events have tags in tag1 to tag3 and others in tags: without the columns they "
                "would seem to have only the "
                "latter, and rebuilds would take the rows of the former away. Add them to tags first"
            )
        if "message" in there.columns() and (unread := self._in_message()):
            return f"{unread} events are in the column message, which only the application can read"
        seen = self._rebuild(Selection(), dry_run=True)
        open_rows = sum(
            seen.total(what) for what in (Difference.ADDED, Difference.CHANGED, Difference.REMOVED)
        )
        if open_rows or seen.left:
            return f"the view isn't what the tags say: {seen.message}"
        return None

    def _in_message(self) -> int:
        from tagmill.journal import frames

        return (
            frames.all_events(self.spark, self._journal(), [ID, "message"])
            .where("message is not null")
            .count()
        )

    def _in_both(self) -> int:
        """Count the events that have tags in `tags` and others in tag1 to tag3 only."""
        from pyspark.sql import functions as F

        there = self._journal().messages
        if "tags" not in there or not any(name in there for name in OLD_TAGS):
            return 0
        return (
            self._tagged("tags").where((F.size("tags") > 0) & (F.size("tags") < F.size("all_tags"))).count()
        )

    def _unbuilt(self) -> int:
        """Count the persistence ids that have tagged events behind what Tagmill's builds have reached."""
        from pyspark.sql import functions as F

        from tagmill.journal import frames

        last = (
            self._tagged("sequence_nr").groupBy(ID).agg(F.max("sequence_nr").alias("last")).localCheckpoint()
        )
        records = frames.with_records(self.spark, self._journal(), last.select(ID), by_key=False)
        return last.join(records, ID).where("sequence_nr is null or sequence_nr < last").count()
