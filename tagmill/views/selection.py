"""Define which persistence ids and tags of a view to rebuild or delete, and the report of what that
changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tagmill.domain import identifiers
from tagmill.domain.documents import Document
from tagmill.errors import ConfigurationError, PersistenceIdsUnknown
from tagmill.views.model import Difference

EXAMPLES = 20


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen persistence ids (None: all of the journal) and tags (None: all)."""

    persistence_ids: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None

    @classmethod
    def of(cls, persistence_ids: Sequence[str], tags: Sequence[str], *, offline: bool) -> "Selection":
        """Return the choice that the operator's arguments make.

        Raises ConfigurationError unless they are either persistence ids or `offline` (all of the journal),
        and for a name that could not be a key in Cassandra.
        """
        if bool(persistence_ids) == offline:
            raise ConfigurationError(
                "name persistence ids that nobody writes to (--persistence-id), or say that the application is "
                "offline to have all of the journal (--offline): one of the two. Nothing was changed"
            )
        return cls(
            tuple(map(identifiers.key, persistence_ids)) or None, tuple(map(identifiers.key, tags)) or None
        )


@dataclass(frozen=True, slots=True)
class Unknown:
    """The chosen persistence ids and tags that neither the journal nor the view knows.

    `ids`: their number; `examples`: the first ones.
    """

    ids: int
    examples: list[str]
    tags: list[str]


class TagChange(Document):
    """Numbers of rows of one tag, by model.Difference."""

    tag: str
    same: int = 0
    added: int = 0
    changed: int = 0
    removed: int = 0
    unknown: int = 0
    cleaned: int = 0


class Changed(Document):
    """A row that changes. `what`: how it does (model.Difference)."""

    tag: str
    persistence_id: str
    sequence_nr: int
    tag_pid_sequence_nr: int
    what: str


class Skipped(Document):
    """A persistence_id that is left as it is, because of the event behind this sequence_nr."""

    persistence_id: str
    sequence_nr: int
    why: str


class ViewReport(Document):
    """The report of what was done to a view, or would be. The lists are the first EXAMPLES.

    `progress`: persistence ids whose lines of tag_write_progress change or are deleted; `left`: those that
    are left as they are. `unfinished`: a build or rebuild that was committed and then killed. It is finished
    first; a dry run counts against the view without it.
    """

    journal: str
    view_table: str
    dry_run: bool
    persistence_ids: int
    tags: list[TagChange]
    progress: int
    changes: list[Changed]
    left: int
    left_examples: list[Skipped]
    unknown_ids: int
    unknown_examples: list[str]
    unknown_tags: list[str]
    unfinished: int | None = None

    @property
    def lines(self) -> Sequence[Document]:
        """The documents that a log shows, one a line."""
        return [*self.tags, *self.changes, *self.left_examples]

    def total(self, difference: str) -> int:
        """Return the number of rows of all tags with this difference (model.Difference)."""
        return sum(getattr(line, difference) for line in self.tags)

    @property
    def message(self) -> str:
        """The report as one line of text."""
        would = "would be " if self.dry_run else ""
        changes = [
            f"{self.total(what)} rows {would}{what}"
            for what in (Difference.ADDED, Difference.CHANGED, Difference.REMOVED)
        ]
        changes += [f"{count} {text}" for count, text in self._others() if count]
        unknown = (
            f"; tags that nothing has: {identifiers.quoted(self.unknown_tags)}" if self.unknown_tags else ""
        )
        return (
            f"{self.journal}.{self.view_table}, {self.persistence_ids} persistence ids: "
            f"{', '.join(changes)}{unknown}{self._first}"
        )

    @property
    def _first(self) -> str:
        if self.unfinished is None:
            return ""
        then = (
            "would be finished first: this is counted against the view as it stands"
            if self.dry_run
            else "was finished first"
        )
        return f"; build {self.unfinished}, committed and not finished, {then}"

    def _others(self) -> Sequence[tuple[int, str]]:
        return (
            (self.total(Difference.SAME), "right already"),
            (self.total(Difference.UNKNOWN), "kept whose events the journal doesn't know"),
            (self.total(Difference.CLEANED), "not brought back, since they were cleaned up or have expired"),
            (self.left, "persistence ids left as they are"),
            (
                self.unknown_ids,
                f"persistence ids unknown ({identifiers.quoted(self.unknown_examples, self.unknown_ids)})",
            ),
        )


def unknown_ids_error(keyspace: str, count: int, first: Sequence[str]) -> PersistenceIdsUnknown:
    """Return the error for a journal that knows none of the persistence ids that were named."""
    return PersistenceIdsUnknown(
        f"journal {keyspace} knows none of the persistence ids, neither event nor view row nor progress: "
        f"{identifiers.quoted(first, count)}. Nothing was written"
    )
