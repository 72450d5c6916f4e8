"""The vocabulary of an audit: kinds of findings, lines, and the report. Pure.

Times are ticks (100 ns since 1970 UTC), timebuckets milliseconds since then. A row counts in the bucket that
its own time falls in.
"""

from datetime import datetime
from enum import StrEnum

from tagmill.domain.documents import Document


class Kind(StrEnum):
    """A kind of disagreement.

    The value is the word in JSON, tables and docs/audit.md, the text is for people.
    """

    MISSING_IN_VIEW = "missing_in_view"
    EXTRA_IN_VIEW = "extra_in_view"
    DUPLICATED_IN_VIEW = "duplicated_in_view"
    MISPLACED = "misplaced"
    DIFFERS_IN_VIEW = "differs_in_view"
    WRONG_NUMBER = "wrong_number"
    TWO_WRITERS = "two_writers"
    MISSING_IN_CLICKHOUSE = "missing_in_clickhouse"
    EXTRA_IN_CLICKHOUSE = "extra_in_clickhouse"
    DUPLICATED_IN_CLICKHOUSE = "duplicated_in_clickhouse"
    DIFFERS_IN_CLICKHOUSE = "differs_in_clickhouse"
    HELD = "held"
    PROGRESS_DIFFERS = "progress_differs"
    JOURNAL_GAP = "journal_hole"
    UNREADABLE = "unreadable"

    @property
    def text(self) -> str:
        """The kind in words, for people."""
        return _TEXTS[self]


_TEXTS = {
    Kind.MISSING_IN_VIEW: "the journal has the event, tag_views has no row of it",
    Kind.EXTRA_IN_VIEW: "tag_views has a row that the journal knows no event of",
    Kind.DUPLICATED_IN_VIEW: "tag_views has the event more than once",
    Kind.MISPLACED: "the row lies in a timebucket that its time isn't in",
    Kind.DIFFERS_IN_VIEW: "time, writer or payload in tag_views is not the journal's",
    Kind.WRONG_NUMBER: "tag_pid_sequence_nr is not the one that the plugin would give",
    Kind.TWO_WRITERS: "two events of the journal claim one sequence_nr",
    Kind.MISSING_IN_CLICKHOUSE: "the event should be delivered, ClickHouse has no row of it",
    Kind.EXTRA_IN_CLICKHOUSE: "ClickHouse has a row that neither journal nor tag_views know",
    Kind.DUPLICATED_IN_CLICKHOUSE: "ClickHouse has the event more than once",
    Kind.DIFFERS_IN_CLICKHOUSE: "a row in ClickHouse is not what the journal or tag_views say",
    Kind.HELD: "the event waits behind an open hold",
    Kind.PROGRESS_DIFFERS: "the ledger's progress is not what was delivered",
    Kind.JOURNAL_GAP: "a sequence_nr is missing in the journal and was not deleted",
    Kind.UNREADABLE: "the event has no sound time or payload, or its tags are in the columns of an old "
    "layout",
}

# Schema of the findings staged below the audit's folder, one row each; null if a column doesn't apply.
FINDING_SCHEMA = (
    "kind string, tag string, persistence_id string, sequence_nr bigint, writer_uuid string, timebucket "
    "bigint, "
    "view_timebucket bigint, view_offset string, view_number bigint, journal_offset string, "
    "journal_partition_nr bigint, "
    "expected_number bigint, batch_id string, detail string"
)


class Finding(Document):
    """One finding; its columns are those of FINDING_SCHEMA."""

    kind: Kind
    tag: str | None
    persistence_id: str | None
    sequence_nr: int | None
    writer_uuid: str | None
    timebucket: int | None
    view_timebucket: int | None
    view_offset: str | None
    view_number: int | None
    journal_offset: str | None
    journal_partition_nr: int | None
    expected_number: int | None
    batch_id: str | None
    detail: str | None


class Line(Document):
    """Rows of a tag or of one of its buckets in journal, view and ClickHouse, rows that may be missing there,
    and findings by kind.

    `deleted`: rows whose event the journal has deleted; `pending`: not due to be delivered yet; `cleaned`:
    the view's bucket was cleaned, or the application's TTL has taken the row.
    """

    tag: str
    journal: int
    view: int
    clickhouse: int
    deleted: int
    pending: int
    cleaned: int
    findings: dict[Kind, int]

    @property
    def agrees(self) -> bool:
        """Whether there is no finding."""
        return not any(self.findings.values())


class TagLine(Line):
    """The line of a tag. Of one with pending rows, `up_to`: none is up to it (ticks); None: no row was due."""

    up_to: int | None = None


class BucketLine(Line):
    """The line of one timebucket of a tag."""

    timebucket: int


class AuditReport(Document):
    """The result of one audit in a document; all lines and all findings are next to it as Parquet.

    `tags`: one line per tag. `buckets`: the first buckets with findings. `named`: the first findings of each
    kind. `findings`: the number of each kind in all, including findings of no tag. `closed_run`: the newest
    run that was closed before anything was read. `contents`: rows and checksum of the destination then
    (pipeline_facts.contents). `proven_by`: the audit that has proven all rows before `proven_before` (ticks), which were
    counted and not read again; 0: everything was read.
    """

    pipeline: str
    audit: int
    started_at: datetime
    done_at: datetime
    until: int
    agrees: bool
    tags: list[TagLine]
    buckets: list[BucketLine]
    findings: dict[Kind, int]
    named: list[Finding]
    warnings: list[str]
    folder: str
    docs: str | None = None
    closed_run: int = 0
    contents: tuple[int, int] = (-1, 0)
    proven_by: int = 0
    proven_before: int | None = None

    @property
    def journal(self) -> int:
        """Tagged events in the journal."""
        return sum(line.journal for line in self.tags)

    @property
    def view(self) -> int:
        """Rows of tag_views."""
        return sum(line.view for line in self.tags)

    @property
    def clickhouse(self) -> int:
        """Rows in ClickHouse."""
        return sum(line.clickhouse for line in self.tags)
