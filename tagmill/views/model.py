"""Define the manifest of a build, and the values for reasons to wait, differences and migration steps."""

from collections.abc import Callable
from enum import StrEnum

from tagmill.delivery.tag_views.model import Document
from tagmill.domain.journal_tables import VIEW_TABLE

Tell = Callable[[str], None]
VIEW_KEY = ("tag_name", "timebucket", "timestamp", "persistence_id", "tag_pid_sequence_nr")


class Reason(StrEnum):
    """The reason why a persistence_id waits in front of an event."""

    HOLE = "hole"
    TWO_WRITERS = "two_writers"
    BEFORE_0_10 = "before_0_10"
    OLD_TAGS = "old_tags"
    NO_EVENT = "no_event"
    NO_TIME_UUID = "no_time_uuid"
    YOUNG = "young"
    ELSEWHERE = "elsewhere"
    NUMBER_TAKEN = "number_taken"
    WRITTEN_AHEAD = "written_ahead"
    TOO_LARGE = "too_large"

    @property
    def text(self) -> str:
        """The reason in words, for reports and logs."""
        return _TEXTS[self]


_TEXTS = {
    Reason.HOLE: "a sequence_nr is missing and was not deleted",
    Reason.TWO_WRITERS: "two events claim one sequence_nr (two writers)",
    Reason.BEFORE_0_10: "the event is in the column message, as plugins before 0.10 wrote it",
    Reason.OLD_TAGS: "the tags are in the columns tag1 to tag3, as plugins before 0.80 wrote them",
    Reason.NO_EVENT: "the event or its serializer id is null",
    Reason.NO_TIME_UUID: "the timestamp is no TimeUUID, or of another age",
    Reason.YOUNG: "younger than eventual_consistency_delay_seconds",
    Reason.ELSEWHERE: "somebody else has numbered it since the last build",
    Reason.NUMBER_TAKEN: "a row that is kept, of an event without tags in the journal, has a number that another event would get",
    Reason.WRITTEN_AHEAD: "a row that would go or change was written by a clock that is ahead: nothing covers it until that time has come",
    Reason.TOO_LARGE: "its row of the view is larger than Cassandra takes in one write (max_mutation_size, [cassandra] max_write_bytes)",
}


class Difference(StrEnum):
    """How a row of the view compares with the journal.

    SAME: right; ADDED: missing; CHANGED: with other content; REMOVED: wrong; UNKNOWN: the journal doesn't know the event; CLEANED: missing,
    since a cleanup deleted it.
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

    `late_from`: per tag, the earliest row (ticks) at a time that the build before had passed. `rows_in`: the folder of the rows to write.
    For rebuilds and deletions: `removed`, rows of tag_views to delete; `forgotten`, lines of tag_write_progress to delete; `recorded`,
    whether Tagmill keeps view_progress of this journal.
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
