"""Options of a journal cleanup, and its outcome for each persistence id; docs/journal-clean.md has the
table.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum

from tagmill.domain.timeuuid import from_datetime
from tagmill.errors import ConfigurationError
from tagmill.journal.event_store import Snapshot

FORCE_UNDELIVERED, FORCE_UNREAD = "--force-undelivered", "--force-unread"


class What(StrEnum):
    """What is deleted of each persistence id; the value is the word in params and reports."""

    TO = "to"
    BEFORE_SNAPSHOT = "before_snapshot"
    ALL = "all"
    SNAPSHOTS = "snapshots"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of one journal cleanup.

    `keep`, `keep_newer_than`: snapshots, for before_snapshot and snapshots; at least `keep` stay.
    """

    what: What
    to: int | None = None
    keep: int = 1
    keep_newer_than: datetime | None = None
    never_again: bool = False
    views: bool = False
    force_undelivered: bool = False
    force_unread: bool = False

    def __post_init__(self) -> None:
        """Raise ConfigurationError for options that are out of range or don't go together."""
        mistakes = {
            "a sequence_nr to delete to is missing, or below 1": self.what is What.TO
            and (self.to is None or self.to < 1),
            "a sequence_nr is for deleting up to it only": self.what is not What.TO and self.to is not None,
            "at least one snapshot is kept": self.keep < 1,
            "keep and keep-newer-than are about snapshots: with before-snapshot or snapshots only": not self._keeps
            and (self.keep != 1 or self.keep_newer_than is not None),
            "keep-newer-than has no time zone; put a Z behind it for UTC": self.keep_newer_than is not None
            and self.keep_newer_than.tzinfo is None,
            "never-again is for deleting all": self.never_again and self.what is not What.ALL,
            "deleting snapshots deletes no events, so there are no rows of the view to delete": self.views
            and not self.of_events,
            f"{FORCE_UNREAD} is about rows of the view": self.force_unread and not self.views,
        }
        if said := "; ".join(text for text, is_so in mistakes.items() if is_so):
            raise ConfigurationError(f"{said}. Nothing was deleted")

    @property
    def of_events(self) -> bool:
        """Whether events are deleted."""
        return self.what is not What.SNAPSHOTS

    @property
    def _keeps(self) -> bool:
        return self.what in (What.BEFORE_SNAPSHOT, What.SNAPSHOTS)

    def oldest_kept(self, newest_first: Iterable[Snapshot]) -> Snapshot | None:
        """Return the oldest snapshot that stays: at least `keep` stay, and all that are newer than
        keep_newer_than.

        None if there are no snapshots. Source: Cleanup.deleteBeforeSnapshot of the plugin.
        """
        newer_than = None if self.keep_newer_than is None else from_datetime(self.keep_newer_than) // 10_000
        oldest = None
        for place, snapshot in enumerate(newest_first):
            if place >= self.keep and (newer_than is None or snapshot.timestamp <= newer_than):
                break
            oldest = snapshot
        return oldest


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a persistence id is left as it is: `reason` is the word, `text` the sentence."""

    tag: str
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome for one persistence id, actual or expected: `to`, events up to here; None: the journal has
    nothing to delete.
    """

    persistence_id: str
    to: int | None = None
    events: int = 0
    view_rows: int = 0
    snapshots: int = 0
    refused: Refused | None = None
    unknown: bool = False


@dataclass(slots=True)
class Total:
    """Sums over all persistence ids, with the first examples of refused and of unknown ones."""

    persistence_ids: int = 0
    events: int = 0
    view_rows: int = 0
    snapshots: int = 0
    refused: int = 0
    unknown: int = 0
    refusals: list[dict[str, str]] = field(default_factory=list)
    unknown_ids: list[str] = field(default_factory=list)

    def add(self, outcomes: Sequence[Outcome], named: int) -> None:
        """Add outcomes to the sums; keep at most `named` examples each of refused and of unknown persistence
        ids.
        """
        for one in outcomes:
            self.persistence_ids += 1
            if one.unknown:
                self.unknown += 1
                if len(self.unknown_ids) < named:
                    self.unknown_ids.append(one.persistence_id)
            elif one.refused:
                self.refused += 1
                if len(self.refusals) < named:
                    self.refusals.append({"persistence_id": one.persistence_id, **asdict(one.refused)})
            else:
                self.events += one.events
                self.view_rows += one.view_rows
                self.snapshots += one.snapshots
