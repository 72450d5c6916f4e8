"""Define the plan of a migration and its report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tagmill.domain.documents import Document
from tagmill.errors import ConfigurationError
from tagmill.views.legacy_schema import Change
from tagmill.views.model import Step
from tagmill.views.persistence_ids import IdsReport
from tagmill.views.selection import Selection, ViewReport


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps to do, in order.

    `selection`: what the step `tags` migrates (None: the step is only for a dry run, which looks at all).

    `snapshot_keyspace`: where the pipeline's snapshot_table is (None: as the pipeline's settings say).
    `drop_old`: drop the old columns and views afterwards.
    """

    steps: tuple[Step, ...]
    selection: Selection | None = None
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
        """Return the plan that the operator's arguments make.

        Without `steps`, it has all of them, but `tags` only with persistence ids, `offline` or `dry_run`.
        Raises ConfigurationError when the arguments contradict each other, or need to say which persistence
        ids the application doesn't write to.
        """
        if drop_old and persistence_ids:
            raise ConfigurationError(
                "dropping the old columns concerns all persistence ids: say that the application is "
                "offline, and name none. Nothing "
                "was changed"
            )
        named = bool(persistence_ids) or offline
        needed = drop_old or Step.TAGS in steps
        chosen = (
            Selection.of(persistence_ids, [], offline=offline) if named or needed and not dry_run else None
        )
        default = [step for step in Step if step != Step.TAGS or named or dry_run]
        wanted = [step for step in Step if step in steps] if steps else default
        return cls(tuple(wanted), chosen, snapshot_keyspace or None, drop_old)

    @property
    def needs_spark(self) -> bool:
        """Whether the plan has more to read than the schema."""
        return self.drop_old or Step.PIDS in self.steps or Step.TAGS in self.steps


class MigrationReport(Document):
    """The report of what was done to a journal, or would be.

    `schema_changes`: tables and columns that were added; `dropped`: what was dropped; `kept`: why it would
    not be; `notes`: what is left to do.
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
        """The documents that a job prints, one a line."""
        return [*self.schema_changes, *(self.tags.lines if self.tags else ()), *self.dropped]

    @property
    def message(self) -> str:
        """The report as one line of text."""
        would = "would be " if self.dry_run else ""
        parts = [f"{self.journal}: {len(self.schema_changes)} tables and columns {would}added"]
        parts += [done.message for done in (self.pids, self.tags) if done]
        if self.dropped:
            parts.append(
                f"{len(self.dropped)} views and columns {would}dropped"
                + (f", but {self.kept}" if self.kept else "")
            )
        return "; ".join([*parts, *self.notes])
