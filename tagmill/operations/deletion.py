"""Declare the operations that delete by persistence_id: from a journal, or everywhere.

Airflow does them in the worker's own process.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from tagmill.errors import ConfigurationError
from tagmill.operations.model import OnlyInForm, Operation, Parameters, require_reason
from tagmill.operations.views import Ids

if TYPE_CHECKING:
    from tagmill.maintenance.journal_cleanup.model import Wanted

# The values of tagmill.maintenance.journal_cleanup.model.What, with the words of the form.
DELETE = {
    "to": "events up to a sequence_nr",
    "before_snapshot": "events and snapshots before the oldest snapshot that is kept",
    "snapshots": "old snapshots only",
    "all": "all events and snapshots: their actors must not be running",
}


class NamedParameters(Parameters):
    """The persistence ids that an operation is for: named, or in a file of the worker's input folder."""

    persistence_ids: Annotated[Ids, OnlyInForm()] = []
    persistence_ids_file: Annotated[
        str | None,
        Field(
            title="File of persistence ids",
            description="One a line; a file of the folder [airflow] input_dir on the worker.",
        ),
        OnlyInForm(),
    ] = None

    def check(self, *, dry_run: bool) -> None:
        """Raise ConfigurationError if no persistence id is named."""
        if not (self.persistence_ids or self.persistence_ids_file):
            raise ConfigurationError(
                "name persistence_ids, or a file of them in persistence_ids_file. Nothing was changed"
            )


class CleanParameters(NamedParameters):
    """What a journal cleanup deletes, and what it keeps."""

    delete: Annotated[
        Literal["to", "before_snapshot", "snapshots", "all"],
        Field(
            title="Delete",
            description="What is deleted of each persistence_id.",
            json_schema_extra={"values_display": dict(DELETE)},
        ),
        OnlyInForm(),
    ] = "to"
    to: Annotated[
        int | None,
        Field(ge=1, title="Up to sequence_nr", description="Delete events up to this sequence_nr."),
    ] = None
    keep: Annotated[
        int,
        Field(
            ge=1, title="Keep snapshots", description="Snapshots of each persistence_id that stay at least."
        ),
    ] = 1
    keep_newer_than: Annotated[
        datetime | None,
        Field(
            title="Keep newer snapshots",
            description="Keep newer snapshots than this moment, too (UTC).",
        ),
    ] = None
    never_again: Annotated[
        bool,
        Field(
            title="Never again",
            description="When all is deleted: their names go, too; they must never be used again.",
        ),
    ] = False
    views: Annotated[
        bool,
        Field(title="Rows of tag_views", description="Delete the rows of tag_views of the events that go."),
    ] = False
    force_undelivered: Annotated[
        bool,
        Field(
            title="Force: undelivered",
            description="Delete events that a pipeline has not delivered, too.",
        ),
    ] = False
    force_unread: Annotated[
        bool,
        Field(
            title="Force: unread",
            description="With the rows of tag_views: delete those that runs or other readers may still read, "
            "too.",
        ),
    ] = False

    def check(self, *, dry_run: bool) -> None:
        """Raise ConfigurationError if no persistence id is named, or options don't go together."""
        super().check(dry_run=dry_run)
        self.wanted()

    def wanted(self) -> Wanted:
        """Return the options of the cleanup; raises ConfigurationError for those that don't go together."""
        from tagmill.maintenance.journal_cleanup.model import Wanted, What

        return Wanted(
            What(self.delete),
            self.to,
            self.keep,
            self.keep_newer_than,
            self.never_again,
            self.views,
            self.force_undelivered,
            self.force_unread,
        )


class EraseParameters(NamedParameters):
    """The reason of an erasure."""

    why: Annotated[
        str | None,
        Field(title="Why", description="Reason; the ledger records it. Don't name the persistence_id."),
    ] = None

    def check(self, *, dry_run: bool) -> None:
        """Raise ConfigurationError if no persistence id is named, or there is no reason."""
        require_reason(self.why, dry_run=dry_run)
        super().check(dry_run=dry_run)


CLEAN = Operation(
    "journal clean",
    "tag_views",
    "deletes events, or snapshots, of the persistence ids named, as the plugin's Cleanup does",
    CleanParameters,
)
ERASE = Operation(
    "erase",
    "tag_views",
    "erases the persistence ids named, wherever they went, for good",
    EraseParameters,
)
