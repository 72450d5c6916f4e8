"""Declare the operations on tag views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from tagmill.domain.time_buckets import BucketSize
from tagmill.errors import ConfigurationError
from tagmill.operations.model import Key, NoParameters, Operation, Option, Parameters, Work
from tagmill.operations.work_size import built_without_spark
from tagmill.views.model import Step

if TYPE_CHECKING:
    from tagmill.views.migration_plan import Plan
    from tagmill.views.selection import Selection

UNWRITTEN = "Only this persistence_id. No application may write to it."
Ids = Annotated[
    list[Key],
    Field(title="Persistence ids", description="Only this persistence_id."),
    Option("--persistence-id", file="--persistence-ids"),
]
Tags = Annotated[list[Key], Field(title="Tags", description="Only this tag."), Option("--tag")]
Offline = Annotated[bool, Field(title="Offline")]
DropOld = Annotated[bool, Field(title="Drop what is old")]
STOPPED = "The application, or whatever else numbers, is stopped on every node."


class TagsParameters(Parameters):
    """The persistence ids whose tags are listed; none: the tags of the view."""

    persistence_ids: Ids = []


class BuildParameters(Parameters):
    """Where the numbers of a build begin."""

    adopt: Annotated[
        bool,
        Field(
            title="Adopt",
            description="Begin with the numbers that an application has written; it must no longer number.",
        ),
    ] = False


class SelectionParameters(Parameters):
    """The rows of a view that an operation is for."""

    persistence_ids: Annotated[Ids, Field(description=UNWRITTEN)] = []
    offline: Annotated[Offline, Field(description=f"All persistence_ids. {STOPPED}")] = False
    tags: Tags = []

    def selection(self) -> Selection:
        """Return the selection; raises ConfigurationError unless it is either of ids or of all."""
        from tagmill.views.selection import Selection

        return Selection.of(self.persistence_ids, self.tags, offline=self.offline)

    def check(self, *, dry_run: bool) -> None:
        """Raise ConfigurationError unless it is either of named persistence ids or of all."""
        self.selection()


class TruncateParameters(Parameters):
    """The condition of emptying a view."""

    offline: Annotated[Offline, Field(description=STOPPED)] = False

    def check(self, *, dry_run: bool) -> None:
        """Raise ConfigurationError unless the application is stopped."""
        if not self.offline:
            raise ConfigurationError(
                "the application must be stopped: say that it is offline. Nothing was changed"
            )


class MigrateParameters(Parameters):
    """The steps of a migration, and the persistence ids that it is for."""

    steps: Annotated[
        list[Step],
        Field(
            title="Steps",
            description="Only this step. Default: all; tags only with persistence ids or offline.",
            json_schema_extra={"uniqueItems": True},
        ),
        Option("--step"),
    ] = []
    persistence_ids: Annotated[Ids, Field(description=UNWRITTEN)] = []
    offline: Annotated[Offline, Field(description=f"All persistence_ids. {STOPPED}")] = False
    snapshot_keyspace: Annotated[
        str | None,
        Field(
            title="Snapshots",
            description="Keyspace of the table snapshots; default: the pipeline's, else the journal's.",
            json_schema_extra={"pattern": "^[A-Za-z0-9_]+$"},
        ),
    ] = None
    drop_old: Annotated[
        DropOld,
        Field(
            description="Afterwards drop the views eventsbytag… and the columns tag1 to tag3 and message, if "
            "nothing needs them. No way back."
        ),
    ] = False

    def check(self, *, dry_run: bool) -> None:
        """Raise ConfigurationError for parameters that contradict each other."""
        self.plan(dry_run=dry_run)

    def plan(self, *, dry_run: bool) -> Plan:
        """Return the plan; raises ConfigurationError for parameters that contradict each other."""
        from tagmill.views.migration_plan import Plan

        return Plan.of(
            self.steps,
            self.persistence_ids,
            offline=self.offline,
            drop_old=self.drop_old,
            snapshot_keyspace=self.snapshot_keyspace,
            dry_run=dry_run,
        )


class RebucketParameters(Parameters):
    """The bucket size that a view is to have, and the step of the way there."""

    bucket_size: Annotated[
        BucketSize,
        Field(title="Bucket size", description="Bucket size that the view is to have."),
        Option("--to"),
    ]
    table: Annotated[
        str | None,
        Field(
            title="New table",
            description="Name of the new table; default: tag_views_ and the size, in lower case.",
            json_schema_extra={"pattern": "^[a-z][a-z0-9_]{0,47}$"},
        ),
    ] = None
    offline: Annotated[
        Offline, Field(description="The application is stopped: copy what came since, verify, and switch.")
    ] = False
    drop_old: Annotated[
        DropOld,
        Field(description="After the switch: drop the old table, if the new one has every row of it."),
    ] = False
    abandon: Annotated[
        bool,
        Field(title="Give it up", description="Give it up before the switch: drop the new table."),
    ] = False

    def check(self, *, dry_run: bool) -> None:
        """Raise ConfigurationError for two steps at once."""
        if self.offline + self.drop_old + self.abandon > 1:
            raise ConfigurationError(
                "offline, drop_old and abandon are steps of their own: give one of them. Nothing was changed"
            )


def _build(work: Work, parameters: BuildParameters) -> Any:
    from tagmill.views.build import build, check

    check(work.settings, work.pipeline)
    return build(
        work.settings,
        work.pipeline,
        owner=work.owner,
        spark=work.spark,
        adopt=parameters.adopt,
        tell=work.tell,
    )


def _rebuild(work: Work, parameters: SelectionParameters) -> Any:
    from tagmill.views.rebuild import rebuild

    selection = parameters.selection()
    return work.do(rebuild, spark=work.spark(), selection=selection)


def _delete(work: Work, parameters: SelectionParameters) -> Any:
    from tagmill.views.delete import delete

    selection = parameters.selection()
    return work.do(delete, spark=work.spark(), selection=selection)


def _truncate(work: Work, parameters: TruncateParameters) -> Any:
    from tagmill.views.delete import truncate

    return work.do(truncate, spark=work.spark())


def _pids(work: Work, parameters: NoParameters) -> Any:
    from tagmill.views.persistence_ids import rebuild_ids

    return rebuild_ids(work.settings, work.pipeline, spark=work.spark(), dry_run=work.dry_run, tell=work.tell)


def _migrate(work: Work, parameters: MigrateParameters) -> Any:
    from tagmill.views.migrate import migrate

    plan = parameters.plan(dry_run=work.dry_run)
    return work.do(migrate, plan=plan, spark=work.spark() if plan.needs_spark else None)


def _rebucket(work: Work, parameters: RebucketParameters) -> Any:
    from tagmill.views.rebucket import rebucket as library

    if parameters.abandon:
        return library.abandon(work.settings, work.pipeline, owner=work.owner, dry_run=work.dry_run)
    to, table = parameters.bucket_size, parameters.table
    library.check(work.settings, work.pipeline, to, table)
    steps = {"offline": parameters.offline, "drop_old": parameters.drop_old}
    return work.do(library.rebucket, spark=work.spark(), to=to, table=table, **steps)


TAGS = Operation(
    "views tags",
    "tag_views",
    "lists the tags that the view has rows of, or those of the persistence ids named",
    TagsParameters,
    changes=False,
)
BUILD = Operation(
    "views build",
    "tag_views",
    "numbers the new events of the journal and writes tag_views",
    BuildParameters,
    "build",
    _build,
    needs_no_spark=built_without_spark,
)
REBUILD = Operation(
    "views rebuild",
    "tag_views",
    "makes tag_views what the journal says, as the plugin would number it",
    SelectionParameters,
    "rebuild",
    _rebuild,
)
DELETE = Operation(
    "views delete",
    "tag_views",
    "deletes rows of tag_views, and their progress, that a rebuild can bring back",
    SelectionParameters,
    "delete",
    _delete,
)
TRUNCATE = Operation(
    "views truncate",
    "tag_views",
    "empties tag_views, tag_write_progress and tag_scanning",
    TruncateParameters,
    "truncate",
    _truncate,
)
PIDS = Operation(
    "views pids",
    "tag_views",
    "adds to all_persistence_ids those that have events and are not listed",
    NoParameters,
    "pids",
    _pids,
)
MIGRATE = Operation(
    "views migrate",
    "tag_views",
    "brings a journal of an older plugin to today's tables, columns and tag views",
    MigrateParameters,
    "migrate",
    _migrate,
)
REBUCKET = Operation(
    "views rebucket",
    "tag_views",
    "copies the view into a table with another bucket size; with offline, makes that the view",
    RebucketParameters,
    "rebucket",
    _rebucket,
)
