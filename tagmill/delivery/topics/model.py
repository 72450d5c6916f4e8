"""The plan and the manifest that one step of a topic's run hands to the next, as files that a person can
read.
"""

from datetime import datetime

from tagmill.domain.documents import Batch, Document
from tagmill.kafka.offset_ranges import Range
from tagmill.kafka.set_apart import Apart


class TopicPlan(Document):
    """What a run reads: ranges of offsets. A plan never changes, so a replay reads the same records.

    - `known_since`: ids that were first seen before this time (milliseconds since 1970) don't count as known.
    - `rule`: how ids are made; empty for a Kafka Journal, whose tables have each event once.
    - `letters`: the run reads the pipeline's dead letters instead of ranges.
    - `delivered`: batch files with events of these ranges that an earlier run of a Kafka Journal has
      delivered before its other batches were voided (a topic doesn't need them: its ids show which events are
      delivered).
    - `begun`: partitions of a Kafka Journal that runs of the same backlog have read from their first record
      on, and how far.
    - `apart`: what a person has set apart.
    - `only`: the one id of a Kafka Journal that the run reads, since it is no longer set apart.
    """

    pipeline: str
    run: int
    planned_at: datetime
    ranges: list[Range]
    known_since: int
    rule: str
    letters: bool = False
    delivered: list[str] = []
    begun: list[Range] = []
    apart: Apart = Apart()
    only: str | None = None
    warnings: list[str]
    more: bool

    @property
    def records(self) -> int:
        """The number of records at most: offsets may have gaps."""
        return sum(one.end - one.first for one in self.ranges)


class TopicCounts(Document):
    """Counts of a run's records by outcome. `twice`: repeated within the run; `known`: delivered before.

    `nulled`: values of these records that are null, since their columns can't hold them.
    """

    records: int = 0
    new: int = 0
    twice: int = 0
    known: int = 0
    unreadable: int = 0
    tombstones: int = 0
    nulled: int = 0


class TopicManifest(Document):
    """What a run sealed.

    Two folders have Parquet files: `letters` the unreadable records, `replayed` dead letters that now can be
    read.
    """

    pipeline: str
    run: int
    sealed_at: datetime
    attempt: str
    generation: int
    ranges: list[Range]
    batches: list[Batch]
    counts: TopicCounts
    columns: list[str]
    required: list[str]
    letters: str
    replayed: str
    sha256: dict[str, str]
    warnings: list[str]
    more: bool


class Rekeyed(Document):
    """What `tagmill dedup rekey` did, or would: ids by what becomes of them under the new rule.

    `equal`: ids that become equal to another one, so that their events count as one from now on.
    `unreadable`: ids whose payload gives no id under the new rule. `changed` and `same` count all ids but the
    unreadable ones.
    """

    pipeline: str
    old_rule: str
    new_rule: str
    ids: int = 0
    same: int = 0
    changed: int = 0
    equal: int = 0
    unreadable: int = 0
    examples: list[str] = []
    dry_run: bool = False

    @property
    def message(self) -> str:
        """The outcome in a sentence."""
        if self.old_rule == self.new_rule:
            return f"pipeline {self.pipeline}: its ids are made as configured; nothing to do"
        what = "would be" if self.dry_run else "are"
        return (
            f"pipeline {self.pipeline}: {self.ids} ids {what} made by {self.new_rule} instead of "
            f"{self.old_rule}: {self.same} stay, "
            f"{self.changed} change, {self.equal} fall together with another one, {self.unreadable} "
            "can't be made"
        )


class Expired(Document):
    """What `tagmill dedup expire` did, or would."""

    pipeline: str
    before: datetime
    ids: int
    dry_run: bool

    @property
    def message(self) -> str:
        """The outcome in a sentence."""
        what = "would go" if self.dry_run else "are gone"
        return (
            f"pipeline {self.pipeline}: {self.ids} ids delivered before {self.before:%Y-%m-%d %H:%M} {what}"
        )
