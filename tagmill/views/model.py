"""Define the manifest of a build, and the values for reasons to wait, differences and migration steps."""

from enum import StrEnum

from tagmill.domain.documents import Document
from tagmill.domain.journal_tables import VIEW_TABLE
from tagmill.journal.flaws import Reason

VIEW_KEY = ("tag_name", "timebucket", "timestamp", "persistence_id", "tag_pid_sequence_nr")


class Difference(StrEnum):
    """How a row of the view compares with the journal.

    SAME: right; ADDED: missing; CHANGED: with other content; REMOVED: wrong; UNKNOWN: the journal doesn't
    know the event; CLEANED: missing, since a cleanup or the application's TTL deleted it.
    """

    SAME = "same"
    ADDED = "added"
    CHANGED = "changed"
    REMOVED = "removed"
    UNKNOWN = "unknown"
    CLEANED = "cleaned"


class Step(StrEnum):
    """The steps of a migration, in their order."""

    TABLES = "tables"
    TAGS_COLUMN = "tags-column"
    COLUMNS = "columns"
    PIDS = "pids"
    TAGS = "tags"


class Waiting(Document):
    """A persistence_id that waits in front of an event."""

    persistence_id: str
    sequence_nr: int
    reason: Reason


class Manifest(Document):
    """A sealed build: where its files are, and what they hold. `until`: ticks; `written_at`: microseconds.

    `late_from`: per tag, the earliest row (ticks) at a time that the build before had passed. `rows_in`: the
    folder of the rows to write. For rebuilds and deletions: `removed`, rows of tag_views to delete;
    `forgotten`, lines of tag_write_progress to delete; `recorded`, whether Tagmill keeps view_progress of
    this journal. `sealed_rows`: rows by folder of files when it was sealed; empty: sealed before releases noted
    them.
    """

    journal: str
    view_table: str = VIEW_TABLE
    pipeline: str
    build: int
    folder: str
    until: int
    written_at: int
    persistence_ids: int
    moved: int
    events: int
    rows: int
    before_first_time_bucket: int
    late_from: dict[str, int]
    waiting: dict[Reason, int]
    examples: list[Waiting]
    rows_in: str = "rows"
    removed: int = 0
    forgotten: int = 0
    ttl_seconds: int | None = None
    recorded: bool = True
    sealed_rows: dict[str, int] = {}
