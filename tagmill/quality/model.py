"""The small reports that the gate reads (one line per tag), and its answer. Pure.

Units: `ticks` are 100 ns since 1970-01-01 UTC, `timebucket` is milliseconds since then, TTLs are seconds.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from tagmill.domain.time_buckets import BucketSize

Severity = Literal["ok", "warn", "stop"]


@dataclass(frozen=True)
class SchemaColumn:
    """A column that a run reads: the type that it needs, and the type that the view has (None: no such
    column).
    """

    column: str
    required: str
    found: str | None


@dataclass(frozen=True)
class TagReport:
    """The counts of one tag, from one pass over the key columns."""

    tag: str
    rows: int
    null_keys: int
    null_events: int
    timebucket_misaligned: int
    wrong_bucket: int
    fits_day: int
    fits_hour: int
    fits_minute: int
    first_ticks: int | None
    last_ticks: int | None
    smallest_ttl_seconds: int | None


@dataclass(frozen=True)
class DispositionCount:
    """The number of suspect rows of a tag that got one action for one reason."""

    tag: str
    reason: str
    action: str
    rows: int
    approx_persistence_ids: int


@dataclass(frozen=True)
class OffendingRow:
    """A suspect row, named so that a person finds it in tag_views; `file` is the staged file that it was read
    into.
    """

    reason: str
    action: str
    tag: str
    persistence_id: str | None
    tag_pid_sequence_nr: int | None
    sequence_nr: int | None
    ticks: int | None
    timebucket: int | None
    file: str | None = None


@dataclass(frozen=True)
class Reports:
    """Everything that the gate judges of one run; its size depends on the tags and on `named_rows`, not on
    the rows read.

    `newly_held` rows are of `newly_held_ids` persistence_ids without an open hold before this run.
    `other_size`: the bucket size that the partitions of the view have instead of the configured one, if rows
    lie outside their buckets.
    """

    bucket_size: BucketSize
    schema: tuple[SchemaColumn, ...]
    tags: tuple[TagReport, ...]
    dispositions: tuple[DispositionCount, ...]
    offending: tuple[OffendingRow, ...]
    newly_held: int = 0
    newly_held_ids: int = 0
    other_size: BucketSize | None = None

    @property
    def rows(self) -> int:
        """Tag rows read."""
        return sum(report.rows for report in self.tags)

    @property
    def held(self) -> int:
        """Tag rows held back."""
        return sum(count.rows for count in self.dispositions if count.action == "hold")

    @property
    def wrong_bucket(self) -> int:
        """Tag rows whose time is not in their bucket."""
        return sum(report.wrong_bucket for report in self.tags)

    @property
    def fits(self) -> dict[BucketSize, int]:
        """Tag rows that would lie in the bucket of their time, by bucket size."""
        return {size: sum(getattr(tag, f"fits_{size.lower()}") for tag in self.tags) for size in BucketSize}

    @property
    def better_size(self) -> BucketSize | None:
        """The bucket size that more rows fit than the configured one, if there is one."""
        fits = self.fits
        best = max(fits, key=lambda size: fits[size])
        return best if fits[best] > fits[self.bucket_size] else None


@dataclass(frozen=True)
class Failing:
    """The place where a check failed: `subject` is 'the run', 'tag …' or 'column …'."""

    subject: str
    value: float | str | None


@dataclass(frozen=True)
class Check:
    """One expectation and its result; `severity` is what its failure means."""

    name: str
    description: str
    severity: Literal["warn", "stop"]
    success: bool
    crashed: bool
    failing: tuple[Failing, ...]
    sentence: str


@dataclass(frozen=True)
class GateVerdict:
    """The gate's answer: `passed` is False only for a stop; `failures` say why it stops, `warnings` what was
    tolerated.

    `stopped_by` names the rules of those failures.
    """

    passed: bool
    severity: Severity
    failures: list[str]
    warnings: list[str]
    docs_page: str
    checks: list[dict[str, Any]]
    stopped_by: tuple[str, ...] = ()


def as_json(checks: tuple[Check, ...]) -> list[dict[str, Any]]:
    """Return the checks as dicts that json.dumps takes."""
    return [asdict(check) for check in checks]
