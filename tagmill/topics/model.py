"""What one step of a topic's run hands to the next: the plan and the manifest, as files that a person can read."""

from datetime import datetime

from tagmill.delivery.model import Batch, Document
from tagmill.kafka.ranges import Range
from tagmill.topics.apart import Apart


class TopicPlan(Document):
    """What a run reads: ranges of offsets. Never changed, so a replay reads the same records.

    `known_since`: ids that were first seen before (milliseconds) don't count as known. `rule`: how ids are made; of a Kafka Journal, whose
    events are there once already, empty. `letters`: the run reads the pipeline's dead letters instead, and no range. `delivered`: batch
    files with events of these ranges that an earlier run has delivered, whose other batches were voided (a topic's ids tell them).
    `begun`: partitions of a Kafka Journal that the same backlog's runs have read from their first record on, as far as they did.
    `apart`: what a person has set apart. `only`: the one id of a Kafka Journal that the run reads, since it is set apart no longer.
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
        """At most; offsets may have holes."""
        return sum(one.end - one.first for one in self.ranges)


class TopicCounts(Document):
    """Records of a run by what became of them; `twice`: again within the run, `known`: delivered before.

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
    """What a run sealed. Folders of Parquet files: `letters`, the records that can't be read; `replayed`, the dead letters that now can."""

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

    `equal`: ids that fall together with another one, so that their events count as one from now on; `changed` and `same` are about the
    ids that are left. `unreadable`: ids whose payload gives none under the new rule.
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
        """In a sentence."""
        if self.old_rule == self.new_rule:
            return f"pipeline {self.pipeline}: its ids are made as configured; nothing to do"
        what = "would be" if self.dry_run else "are"
        return (
            f"pipeline {self.pipeline}: {self.ids} ids {what} made by {self.new_rule} instead of {self.old_rule}: {self.same} stay, "
            f"{self.changed} change, {self.equal} fall together with another one, {self.unreadable} can't be made"
        )


class Expired(Document):
    """What `tagmill dedup expire` did, or would."""

    pipeline: str
    before: datetime
    ids: int
    dry_run: bool

    @property
    def message(self) -> str:
        """In a sentence."""
        what = "would go" if self.dry_run else "are gone"
        return f"pipeline {self.pipeline}: {self.ids} ids delivered before {self.before:%Y-%m-%d %H:%M} {what}"
