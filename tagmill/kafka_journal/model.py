"""The manifest of a replication, and the reports on replicating, purging and reading a Kafka Journal."""

from collections.abc import Callable, Sequence
from datetime import date, datetime

from tagmill.domain.documents import Document
from tagmill.kafka.offset_ranges import Range

Tell = Callable[[str], None]
JOURNAL_KINDS = ("append", "delete", "purge", "mark")


class Counts(Document):
    """Counts of records by kind.

    `skipped`: not journal records; `unreadable`: now dead letters; `applied`: replicated before; `forks`: appends
    that begin with a sequence number which their id had reached before.
    """

    records: int = 0
    appends: int = 0
    deletes: int = 0
    purges: int = 0
    marks: int = 0
    skipped: int = 0
    unreadable: int = 0
    applied: int = 0
    events: int = 0
    ids: int = 0
    warnings: int = 0
    forks: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """Return the sum of these counts and others."""
        return Counts(**{name: value + getattr(other, name) for name, value in self.model_dump().items()})


class Manifest(Document):
    """A sealed replication.

    The records and folds in `folder` are written with the timestamp `written_at` (microseconds).
    """

    replication: int
    folder: str
    written_at: int
    ranges: list[Range]
    counts: Counts
    warnings: list[str]


class HeadEvent(Document):
    """An event as a reader sees it: a payload is text, or bytes in hexadecimal.

    `replicated`: it comes from Cassandra, else from Kafka.
    """

    seq_nr: int
    timestamp: datetime
    tags: list[str]
    payload_type: str | None
    payload: str | None
    replicated: bool


class Head(Document):
    """An id as its readers see it now.

    `seq_nr` None: the id has no journal; `unreplicated`: its records that are only in Kafka so far.

    `looked_to`: the sequence number up to which Cassandra's events were searched until the time was over;
    None: all were.
    """

    topic: str
    id: str
    seq_nr: int | None = None
    delete_to: int | None = None
    created: datetime | None = None
    updated: datetime | None = None
    expire_on: date | None = None
    unreplicated: int = 0
    events: list[HeadEvent] = []
    more: bool = False
    looked_to: int | None = None


class PartitionStatus(Document):
    """How far a partition is replicated.

    `replicated_to` (None: not at all) and `end` are offsets behind the last record.

    `waiting`: how many offsets the next replication reads. `not_readable`: offsets behind an open
    transaction. `problem`: why the next replication stops at the partition; None: it doesn't.
    """

    topic: str
    partition: int
    replicated_to: int | None
    first: int
    end: int
    waiting: int
    not_readable: int = 0
    problem: str | None = None


class PurgeReport(Document):
    """What a purge published, or in a dry run would publish: `purged` Purge actions for ids that expired on
    `until` or before.
    """

    pipeline: str
    until: date
    dry_run: bool
    purged: int
    examples: list[str]

    @property
    def lines(self) -> Sequence[Document]:
        """The lines that a log shows."""
        return []

    @property
    def message(self) -> str:
        """The outcome in one line."""
        done = (
            "would be published"
            if self.dry_run
            else "were published; the next replication deletes what they name"
        )
        return (
            f"{self.pipeline}: {self.purged} ids have expired by {self.until}: {self.purged} Purge "
            f"actions {done}"
        )


class ReplicationReport(Document):
    """What a call of `replicate` did: the number of pieces (`replications`), their ranges, and counts of
    their records.
    """

    pipeline: str
    keyspace: str
    replications: int
    ranges: list[Range]
    counts: Counts
    warnings: list[str]

    @property
    def lines(self) -> Sequence[Range]:
        """The lines that a log shows."""
        return self.ranges

    @property
    def message(self) -> str:
        """The outcome in one line."""
        c = self.counts
        if not self.replications:
            return f"{self.keyspace} has everything that the topics of {self.pipeline} hold"
        unreadable = (
            f"; {c.unreadable} can't be read: tagmill deadletters list --pipeline {self.pipeline}"
            if c.unreadable
            else ""
        )
        forks = (
            f"; {c.forks} appends begin below an id's last sequence number (see the warnings)"
            if c.forks
            else ""
        )
        topics = len({one.topic for one in self.ranges})
        return (
            f"{c.records} records of {topics} topics are in {self.keyspace}: {c.events} events of "
            f"{c.ids} ids, "
            f"{c.deletes} deletes, {c.purges} purges, {c.marks} marks, {c.skipped} skipped{forks}{unreadable}"
        )
