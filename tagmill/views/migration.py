"""What of a migration is to be done, and what was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tagmill.delivery.model import Document
from tagmill.errors import ConfigurationError
from tagmill.views.chosen import Chosen, ViewReport
from tagmill.views.ids import IdsReport
from tagmill.views.layout import Change
from tagmill.views.model import Step


@dataclass(frozen=True, slots=True)
class Plan:
    """These steps in their order; the tags of what was `chosen` (None: they are only looked at, in a dry run).

    `snapshot_keyspace`: where the pipeline's snapshot_table is (None: in the journal's, if there is one). `drop_old`: afterwards, what is
    old goes.
    """

    steps: tuple[Step, ...]
    chosen: Chosen | None = None
    snapshot_keyspace: str | None = None
    drop_old: bool = False

    @classmethod
    def of(
        cls,
        steps: Sequence[str] = (),
        persistence_ids: Sequence[str] = (),
        *,
        offline: bool = False,
        drop_old: bool = False,
        snapshot_keyspace: str | None = None,
        dry_run: bool = False,
    ) -> Plan:
        """What a person said; raises ConfigurationError when it needs to be said who may write meanwhile.

        Without steps: all of them, but for the tags where neither persistence ids are named nor the application is offline.
        """
        if drop_old and persistence_ids:
            raise ConfigurationError(
                "dropping the old columns concerns all persistence ids: say that the application is offline, and name none. Nothing "
                "was changed"
            )
        named = bool(persistence_ids) or offline
        needed = drop_old or Step.TAGS in steps
        chosen = Chosen.of(persistence_ids, [], offline=offline) if named or needed and not dry_run else None
        default = [step for step in Step if step != Step.TAGS or named or dry_run]
        wanted = [step for step in Step if step in steps] if steps else default
        return cls(tuple(wanted), chosen, snapshot_keyspace or None, drop_old)

    @property
    def needs_spark(self) -> bool:
        """Whether more is asked than the schema says."""
        return self.drop_old or Step.PIDS in self.steps or Step.TAGS in self.steps


class MigrationReport(Document):
    """What was done to a journal, or would be.

    `schema_changes`: tables and columns that came; `dropped`: what went, `kept`: why it would not go; `notes`: what is left to do.
    """

    journal: str
    dry_run: bool
    schema_changes: list[Change]
    pids: IdsReport | None
    tags: ViewReport | None
    dropped: list[Change]
    kept: str | None
    notes: list[str]

    @property
    def lines(self) -> Sequence[Document]:
        """What a job prints, a line each."""
        return [*self.schema_changes, *(self.tags.lines if self.tags else ()), *self.dropped]

    @property
    def message(self) -> str:
        """One line."""
        would = "would be " if self.dry_run else ""
        parts = [f"{self.journal}: {len(self.schema_changes)} tables and columns {would}added"]
        parts += [done.message for done in (self.pids, self.tags) if done]
        if self.dropped:
            parts.append(f"{len(self.dropped)} views and columns {would}dropped" + (f", but {self.kept}" if self.kept else ""))
        return "; ".join([*parts, *self.notes])
