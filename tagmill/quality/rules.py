"""The table of what the gate expects of a run: each line is one Great Expectations expectation over the small
frame. Pure.

The frame has one line per subject ('the run', a tag, a column of the view). A cell without a value is null,
and expectations on column values skip nulls.
"""

import html
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tagmill.config.tag_views import QualitySettings
from tagmill.domain.time_buckets import BucketSize
from tagmill.quality.model import Failing, OffendingRow, Reports, TagReport

Cell = float | str | None
THE_RUN = "the run"
SUBJECT = "subject"
SCHEMA = "schema"
REQUIRED, FOUND = "required_type", "found_type"
NO_COLUMN = "(no such column)"

# Column of the frame that counts a disposition, by its reason; reasons in _WHEN_HELD count only if the row is
# held.
_COLUMN_OF_REASON = {
    "null_key": "null_keys",
    "misaligned_bucket": "timebucket_misaligned",
    "wrong_bucket": "wrong_bucket",
    "null_event": "null_events",
    "hole": "behind_holes",
    "first_seen": "behind_holes",
    "too_many_missing": "behind_holes",
    "gap_too_large": "behind_holes",
    "renumbered": "renumbered",
    "another_life": "another_life",
    "duplicate_same_event": "duplicates",
    "two_events_one_number": "two_events_one_number",
    "broken_offset": "broken_offsets",
    "clock_skew": "clock_skew",
    "late": "late",
}
_WHEN_HELD = {"hole", "first_seen", "too_many_missing", "gap_too_large", "renumbered", "another_life"}
_COUNTED_BY_SPARK = ("null_keys", "null_events", "timebucket_misaligned", "wrong_bucket")
_COUNTED_BY_REASON = (
    "behind_holes",
    "renumbered",
    "another_life",
    "duplicates",
    "two_events_one_number",
    "broken_offsets",
    "clock_skew",
    "late",
    "other",
)


@dataclass(frozen=True)
class Rule:
    """An expectation on one column of the frame.

    `says` is the sentence of a failure, with {subject}, {value} or {rows} (the value with its noun), and
    {bucket_size} in it. `at_least` and `at_most` bound the value; with `equals` it has to be the value of
    that column instead.
    """

    name: str
    column: str
    severity: Literal["warn", "stop"]
    description: str
    says: str
    at_least: float | None = None
    at_most: float | None = 0
    equals: str | None = None


def rules(reports: Reports, limits: QualitySettings) -> tuple[Rule, ...]:
    """Return the expectations of a run, those that stop it first."""
    size = reports.bucket_size.value
    outside, held = limits.max_wrong_bucket_share_percent, limits.max_held_share_percent
    few = f"of at least {limits.min_rows_for_share} rows"
    ttl = limits.min_ttl_warning_seconds
    return (
        Rule(
            SCHEMA, FOUND, "stop", "The view has the columns and types that a run reads", "", equals=REQUIRED
        ),
        Rule(
            "keys",
            "null_keys",
            "stop",
            "Every row has a persistence_id, a number and a sequence_nr of at least 1",
            "{subject}: {rows} without a persistence_id, or with a number or sequence_nr below 1",
        ),
        Rule(
            "bucket_share",
            "wrong_bucket_share_percent",
            "stop",
            f"At most {outside:g} %, {few}, have a time outside their {size} bucket (more: bucket_size "
            "is wrong)",
            "{subject}: {value} % of the rows have a time outside their {bucket_size} bucket, so "
            "bucket_size is wrong "
            f"({outside:g} % are tolerated: quality.max_wrong_bucket_share_percent)",
            at_most=outside,
        ),
        Rule(
            "bucket_partitions",
            "other_size_rows",
            "stop",
            "No row is outside its bucket while the partitions of the view are buckets of another size",
            "{subject}: {rows} with a time outside their {bucket_size} bucket, and the partitions of the "
            "view are buckets of another "
            "size, so bucket_size is wrong (quality.max_wrong_bucket_share_percent = 100 tolerates it)",
        ),
        Rule(
            "held_share",
            "held_share_percent",
            "stop",
            f"At most {held:g} %, {few} and {limits.min_ids_for_share} persistence_ids, are newly held back",
            f"{{subject}}: {{value}} % of the rows would be newly held back, {held:g} % are tolerated "
            "(quality.max_held_share_percent)",
            at_most=held,
        ),
        Rule(
            "bucket",
            "wrong_bucket",
            "warn",
            "Every row lies in the bucket of its time",
            "{subject}: {rows} in a bucket that their time is not in; delivered, recorded for repair",
        ),
        Rule(
            "bucket_start",
            "timebucket_misaligned",
            "warn",
            f"Every timebucket is the start of a {size}",
            "{subject}: {rows} whose timebucket is not the start of a {bucket_size}; delivered, recorded for "
            "repair",
        ),
        Rule(
            "continuity",
            "behind_holes",
            "warn",
            "No row waits behind a missing number",
            "{subject}: {rows} held behind missing numbers",
        ),
        Rule(
            "numbering",
            "renumbered",
            "warn",
            "Numbers continue what was delivered before",
            "{subject}: {rows} renumbered after delivery; held until tagmill progress rebase",
        ),
        Rule(
            "lives",
            "another_life",
            "warn",
            "No numbers begin again",
            "{subject}: {rows} with numbers that began again after delivery; held until tagmill progress restart",
        ),
        Rule(
            "duplicates",
            "duplicates",
            "warn",
            "Every event is in the view once",
            "{subject}: {rows} twice in the view; the earlier offset was taken",
        ),
        Rule(
            "two_events",
            "two_events_one_number",
            "warn",
            "No number is claimed by two events",
            "{subject}: {rows} with a number that another event has too; held",
        ),
        Rule(
            "events",
            "null_events",
            "warn",
            "Every row carries its event",
            "{subject}: {rows} without an event; held",
        ),
        Rule(
            "offsets",
            "broken_offsets",
            "warn",
            "Every offset is a TimeUUID",
            "{subject}: {rows} with an offset that is no TimeUUID; held",
        ),
        Rule(
            "clock",
            "clock_skew",
            "warn",
            "Numbers and times of a persistence_id have one order",
            "{subject}: {rows} with numbers against the order of time (clock skew); delivered in number "
            "order",
        ),
        Rule(
            "late",
            "late",
            "warn",
            "No row arrives after its place was passed",
            "{subject}: {rows} below the first number delivered or in a closed gap; delivered, flagged late",
        ),
        Rule(
            "other",
            "other",
            "warn",
            "No row is held for another reason",
            "{subject}: {rows} held for another reason",
        ),
        Rule(
            "time_to_live",
            "smallest_ttl_seconds",
            "warn",
            f"Undelivered rows live at least {ttl} s more (events-by-tag.time-to-live)",
            f"{{subject}}: the first undelivered row expires in {{value}} s, the warning is set at {ttl} s",
            at_least=ttl,
            at_most=None,
        ),
    )


def frame(reports: Reports, limits: QualitySettings) -> list[dict[str, Cell]]:
    """Return the lines of the frame; a share of too few rows or persistence_ids counts as 0.

    Subjects and types are HTML-escaped: Great Expectations puts them on its page as they are.
    """
    rows = reports.rows
    many = rows >= limits.min_rows_for_share
    has_other_size = reports.other_size is not None and limits.max_wrong_bucket_share_percent < 100
    run: dict[str, Cell] = {
        SUBJECT: THE_RUN,
        "held_share_percent": _percent(reports.newly_held, rows)
        if many and reports.newly_held_ids >= limits.min_ids_for_share
        else 0.0,
        "wrong_bucket_share_percent": _percent(reports.wrong_bucket, rows) if many else 0.0,
        "other_size_rows": reports.wrong_bucket if has_other_size else 0,
    }
    tags = [_tag_line(reports, report) for report in reports.tags]
    columns: list[dict[str, Cell]] = [
        {
            SUBJECT: safe(f"column {c.column}"),
            REQUIRED: safe(c.required),
            FOUND: safe(NO_COLUMN if c.found is None else c.found),
        }
        for c in reports.schema
    ]
    names = [SUBJECT, *run, *_COUNTED_BY_SPARK, *_COUNTED_BY_REASON, "smallest_ttl_seconds", REQUIRED, FOUND]
    return [{name: line.get(name) for name in names} for line in (run, *tags, *columns)]


def column_of(reason: str, action: str) -> str | None:
    """Return the column of the frame that counts a disposition, or None if a person does not have to look at
    it.
    """
    if action == "late":
        return "late"
    if reason in _WHEN_HELD and action != "hold":
        return None
    return _COLUMN_OF_REASON.get(reason, "other" if action == "hold" else None)


def sentence(rule: Rule, failing: Iterable[Failing], reports: Reports) -> str:
    """Return why a rule failed: a clause per subject, with its first offending rows."""
    if rule.name == SCHEMA:
        return _schema_sentence(failing, reports)
    clauses = []
    for found in failing:
        value = f"{found.value:.10g}" if isinstance(found.value, int | float) else str(found.value)
        noun = "1 row" if value == "1" else f"{value} rows"
        clause = rule.says.format(
            subject=found.subject, value=value, rows=noun, bucket_size=reports.bucket_size.value
        )
        rows = named(rule, reports, found.subject)
        clauses.append(
            clause + ("" if not rows else "; first: " + ", ".join(described(row) for row in rows[:3]))
        )
    if rule.name in ("bucket_share", "bucket_partitions"):
        clauses.append(_better_size(reports))
    return ". ".join(clauses)


def _schema_sentence(failing: Iterable[Failing], reports: Reports) -> str:
    wrong = {found.subject for found in failing}
    clauses = [
        f"column {c.column} "
        + ("is missing" if c.found is None else f"is {c.found}")
        + f", {c.required} is required"
        for c in reports.schema
        if f"column {c.column}" in wrong
    ]
    return "the view has another schema: " + "; ".join(clauses)


def named(rule: Rule, reports: Reports, subject: str) -> list[OffendingRow]:
    """Return the offending rows of a rule and subject."""
    held, share = rule.name == "held_share", rule.name in ("bucket_share", "bucket_partitions")
    columns = {"wrong_bucket", "timebucket_misaligned"} if share else {rule.column}
    return [
        row
        for row in reports.offending
        if (row.action == "hold" if held else column_of(row.reason, row.action) in columns)
        and subject in (THE_RUN, f"tag {row.tag}")
    ]


def described(row: OffendingRow) -> str:
    """Return a row in one phrase: tag, persistence_id, number and sequence_nr."""
    return (
        f"{row.tag} {row.persistence_id!r} number {row.tag_pid_sequence_nr} (sequence_nr {row.sequence_nr})"
    )


def safe(text: str) -> str:
    """Escape a text for the page of Great Expectations, which neither escapes HTML nor leaves $ alone."""
    return html.escape(text).replace("$", "&#36;")


def _tag_line(reports: Reports, report: TagReport) -> dict[str, Cell]:
    line: dict[str, Cell] = {
        SUBJECT: safe(f"tag {report.tag}"),
        "smallest_ttl_seconds": report.smallest_ttl_seconds,
    }
    line |= {name: getattr(report, name) for name in _COUNTED_BY_SPARK}
    counted = dict.fromkeys(_COUNTED_BY_REASON, 0)
    for count in reports.dispositions:
        column = column_of(count.reason, count.action)
        if count.tag == report.tag and column in counted:
            counted[column] += count.rows
    return line | counted


def _better_size(reports: Reports) -> str:
    fits = reports.fits
    day, hour, minute = (fits[size] for size in (BucketSize.DAY, BucketSize.HOUR, BucketSize.MINUTE))
    text = f"Of {reports.rows} rows {day} would fit Day buckets, {hour} Hour, {minute} Minute"
    if best := reports.better_size:
        text += f': set bucket_size = "{best}" if the application\'s events-by-tag.bucket-size is {best}'
    return text


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 3) if whole else 0.0
