"""Reasons for which an event of the journal cannot be in a view yet, or at all."""

from enum import StrEnum


class Reason(StrEnum):
    """The reason why a persistence_id waits in front of an event."""

    GAP = "hole"
    TWO_WRITERS = "two_writers"
    BEFORE_0_10 = "before_0_10"
    OLD_TAGS = "old_tags"
    NO_EVENT = "no_event"
    NO_TIME_UUID = "no_time_uuid"
    YOUNG = "young"
    ELSEWHERE = "elsewhere"
    DELETED = "deleted"
    NUMBER_TAKEN = "number_taken"
    WRITTEN_AHEAD = "written_ahead"
    TOO_LARGE = "too_large"

    @property
    def text(self) -> str:
        """The reason in words, for reports and logs."""
        return _TEXTS[self]


_TEXTS = {
    Reason.GAP: "a sequence_nr is missing and was not deleted",
    Reason.TWO_WRITERS: "two events claim one sequence_nr (two writers)",
    Reason.BEFORE_0_10: "the event is in the column message, as plugins before 0.10 wrote it",
    Reason.OLD_TAGS: "the tags are in the columns tag1 to tag3, as plugins before 0.80 wrote them",
    Reason.NO_EVENT: "the event or its serializer id is null",
    Reason.NO_TIME_UUID: "the timestamp is no TimeUUID, or of another age",
    Reason.YOUNG: "younger than eventual_consistency_delay_seconds",
    Reason.ELSEWHERE: "somebody else has numbered it since the last build",
    Reason.DELETED: "tags of its view were deleted and not rebuilt since",
    Reason.NUMBER_TAKEN: "a row that is kept, of an event without tags in the journal, has a number that "
    "another event would get",
    Reason.WRITTEN_AHEAD: "a row that would go or change was written by a clock that is ahead: nothing "
    "covers it until that time has come",
    Reason.TOO_LARGE: "its row of the view is larger than Cassandra takes in one write "
    "(max_mutation_size, [cassandra] max_write_bytes)",
}
