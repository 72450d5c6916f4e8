"""The documents that one step of a run hands to the next: the plan and the manifest, as files that a person
can read.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Literal

from tagmill.domain.continuity.model import Gap
from tagmill.domain.documents import Batch, Document


class Slice(Document):
    """Rows of one bucket with after < time <= until, in ticks since 1970; None: no bound.

    `rows` and `ttl_seconds` (smallest remaining) are what the plan counted.
    """

    timebucket: int
    after: int | None = None
    until: int | None = None
    rows: int = 0
    ttl_seconds: int | None = None

    @property
    def whole(self) -> bool:
        """Whether the slice is a whole partition."""
        return self.after is None and self.until is None


class ScanUnit(Document):
    """Slices of one tag in time order that one task reads; all lie in one ClickHouse partition.

    Kind `new`: not read before, so its file can become a batch unchanged. Kind `again`: look-back, a hold's
    buckets or an explicit re-read.
    """

    number: int
    tag: str
    kind: Literal["new", "again"]
    slices: list[Slice]

    @property
    def rows(self) -> int:
        """Rows counted by the plan."""
        return sum(part.rows for part in self.slices)


class HourRows(Document):
    """Rows of an hour of a tag; `begin` in milliseconds since 1970."""

    begin: int
    rows: int


class TagRange(Document):
    """The range that a run reads of a tag: from its watermark (exclusive) to `until`.

    `window_from`: where the look-back window that ends at `until` begins. `back_from`: the watermark that a
    wrong clock had put into the future, and that this run brings back.
    """

    after: int
    until: int
    window_from: int
    long_look: bool = False
    back_from: int | None = None


class HoldRecheck(Document):
    """An open hold that this run judges again, with the fingerprint of what the plan saw."""

    tag: str
    persistence_id: str
    reason: str
    first_missing: int
    last_missing: int
    after_sequence_nr: int
    before_sequence_nr: int
    from_ticks: int
    since_run: int
    since: datetime
    seen: str

    @property
    def gap(self) -> Gap:
        """The numbers that the hold waits for."""
        return Gap(self.first_missing, self.last_missing, self.after_sequence_nr, self.before_sequence_nr)


class Withdrawn(Document):
    """A batch that a run takes out of ClickHouse: the run that sealed it, and its number there."""

    run: int
    number: int
    batch_id: str
    tag: str
    rows: int


# Slices that one process reads for a run at most, without Spark.
FEW_SLICES = 2000


class Plan(Document):
    """The plan of a run: what it reads. It never changes once written.

    `build`: the newest build of the view, if Tagmill keeps it. `late_left`, in a run that reads only late
    rows: the tick of each tag from which they are left to the next run. `view`: the table and bucket size of
    the slices. `held_ttl_seconds`: the remaining TTL of the earliest held row of a tag, if it has one.

    `look_back`: hours that are read again because rows came late. `filled_tags`: tags of which the late rows
    of a build are read.

    A run of kind "withdraw" reads nothing: it takes batches out, and notes the events in `undelivered_file`
    as not delivered.
    """

    pipeline: str
    run: int
    planned_at: datetime
    reread: bool
    first: bool
    tags: dict[str, TagRange]
    units: list[ScanUnit]
    holds: list[HoldRecheck]
    view_columns: dict[str, str]
    build: int | None = None
    late_left: dict[str, int] = {}
    look_back: dict[str, list[HourRows]] = {}
    filled_tags: list[str] = []
    held_ttl_seconds: dict[str, int] = {}
    view: str | None = None
    withdrawn: list[Withdrawn] = []
    undelivered_file: str = ""
    undelivered_sha256: str = ""
    more: bool

    @property
    def moves_watermark(self) -> bool:
        """Whether the run reads all that is new."""
        return not self.reread and not self.late_left

    def reads_few(self, rows: int) -> bool:
        """Return whether the run reads at most so many rows, in few slices."""
        slices = sum(len(unit.slices) for unit in self.units)
        return sum(unit.rows for unit in self.units) <= rows and slices <= FEW_SLICES

    @property
    def rows(self) -> int:
        """New rows counted."""
        return sum(unit.rows for unit in self.units if unit.kind == "new")


class TagOutcome(Document):
    """The outcome of a sealed run for a tag.

    `window_rows`: rows read in the look-back window that ends at `until`.

    `hours`: the new rows that it read of each hour that look-back still counts.
    """

    after: int
    until: int
    window_from: int
    window_rows: int
    long_look: bool
    delivered: int
    late: int
    dropped: int
    held: int
    back_from: int | None = None
    hours: list[HourRows] = []


class Manifest(Document):
    """The result of sealing a run. `sha256` has the digest of every file that the close reads."""

    pipeline: str
    run: int
    sealed_at: datetime
    attempt: str
    generation: int
    moves_watermark: bool
    tags: dict[str, TagOutcome]
    batches: list[Batch]
    withdrawn: list[Withdrawn] = []
    findings: dict[str, int]
    progress_file: str
    holds_file: str
    repairs_file: str
    sha256: dict[str, str]
    docs_page: str | None
    more: bool

    @classmethod
    def unsealed(
        cls,
        pipeline: str,
        run: int,
        attempt: str,
        *,
        batches: Sequence[Batch] = (),
        holds_file: str = "",
        sha256: Mapping[str, str] | None = None,
    ) -> "Manifest":
        """Return the manifest of a run that ended without a seal: it moves no watermark, and its batches
        can't be sent again.
        """
        return cls(
            pipeline=pipeline,
            run=run,
            sealed_at=datetime.now(UTC),
            attempt=attempt,
            generation=1,
            moves_watermark=False,
            tags={},
            batches=list(batches),
            findings={},
            progress_file="",
            holds_file=holds_file,
            repairs_file="",
            sha256=dict(sha256 or {}),
            docs_page=None,
            more=False,
        )
