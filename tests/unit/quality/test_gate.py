"""The gate on clean and damaged reports: every check can fail and says why, and the page of the run names the
rows.
"""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tagmill.config.tag_views import QualitySettings
from tagmill.domain.time_buckets import BucketSize
from tagmill.quality import expectations, gate
from tagmill.quality.model import (
    DispositionCount,
    GateVerdict,
    OffendingRow,
    Reports,
    SchemaColumn,
    TagReport,
)
from tagmill.quality.rules import column_of, frame

BUCKET = 1_795_244_400_000  # 2026-11-21T07:00Z
HOSTILE = "<script>alert('o-1')</script> ${o} &amp; \"ж\""
ORDER = TagReport("order", 1000, 0, 0, 0, 0, 40, 1000, 20, BUCKET * 10_000, BUCKET * 10_000 + 9, None)
BILLING = replace(ORDER, tag="billing")
SCHEMA = (SchemaColumn("event", "blob", "blob"), SchemaColumn("tags", "set<text>", "set<text>"))
LIMITS = {
    "max_held_share_percent": 5,
    "max_wrong_bucket_share_percent": 10,
    "min_ttl_warning_seconds": 86_400,
    "min_rows_for_share": 2000,
    "min_ids_for_share": 3,
}
CLEAN = Reports(BucketSize.HOUR, SCHEMA, (BILLING, ORDER), (), ())


def offending(reason: str, action: str = "hold", persistence_id: str | None = "o-000007") -> OffendingRow:
    return OffendingRow(reason, action, "order", persistence_id, 5, 6, BUCKET * 10_000 + 1, BUCKET)


def suspects(reason: str, action: str = "hold", rows: int = 3) -> Reports:
    return replace(
        CLEAN,
        dispositions=(DispositionCount("order", reason, action, rows, 1),),
        offending=(offending(reason, action),),
        newly_held=rows if action == "hold" else 0,
        newly_held_ids=3 if action == "hold" else 0,
    )


def tag(**changes: int) -> Reports:
    return replace(CLEAN, tags=(BILLING, replace(ORDER, **changes)))


def failed(verdict: GateVerdict) -> list[str]:
    return [check["name"] for check in verdict.checks if not check["success"]]


@pytest.fixture
def docs(tmp_path: Path) -> str:
    return str(tmp_path / "orders" / "docs")


def judge(reports: Reports, docs: str, run: str = "run-00000007", **limits: float) -> GateVerdict:
    return gate.judge(reports, QualitySettings.model_validate(LIMITS | limits), docs_dir=docs, run_name=run)


def test_a_clean_run_passes_every_check(docs: str) -> None:
    verdict = judge(CLEAN, docs)
    assert (verdict.passed, verdict.severity, verdict.failures, verdict.warnings) == (True, "ok", [], [])
    assert len(verdict.checks) == 18
    assert "passed" in Path(verdict.docs_page).read_text()


def test_a_run_that_read_nothing_passes(docs: str) -> None:
    assert judge(replace(CLEAN, tags=()), docs).severity == "ok"


STOPS = {
    "schema_type": (replace(CLEAN, schema=(SchemaColumn("event", "blob", "text"), *SCHEMA[1:])), ["schema"],
                    "the view has another schema: column event is text, blob is required"),
    "schema_missing": (replace(CLEAN, schema=(SchemaColumn("meta", "blob", None),)), ["schema"],
                       "the view has another schema: column meta is missing, blob is required"),
    "keys": (tag(null_keys=1), ["keys"], "tag order: 1 row without a persistence_id, or with a number or " "sequence_nr below 1"),
    "outside": (tag(wrong_bucket=960, fits_hour=40, fits_day=960), ["bucket_share", "bucket"],
                "the run: 48 % of the rows have a time outside their Hour bucket, so bucket_size is wrong "
                "(10 % are tolerated: quality.max_wrong_bucket_share_percent). "
                "Of 2000 rows 1000 would fit Day buckets, 1040 Hour, 40 Minute"),
    "held": (suspects("hole", rows=101), ["held_share", "continuity"],
             "the run: 5.05 % of the rows would be newly held back, 5 % are tolerated " "(quality.max_held_share_percent); "
             "first: order 'o-000007' number 5 (sequence_nr 6)"),
}  # fmt: skip


@pytest.mark.parametrize("case", STOPS)
def test_gate_stop_case_fails_with_reason(case: str, docs: str) -> None:
    """Stop the run, with the failed check and one sentence that says why."""
    reports, names, sentence = STOPS[case]
    verdict = judge(reports, docs)
    assert failed(verdict) == names
    assert (verdict.passed, verdict.severity, verdict.failures) == (False, "stop", [sentence])


def test_gate_wrong_bucket_size_names_fitting_one(docs: str) -> None:
    """Name the bucket size that fits the rows if the configured one does not."""
    hours = tag(timebucket_misaligned=900, wrong_bucket=900)
    reports = replace(hours, bucket_size=BucketSize.DAY, other_size=BucketSize.HOUR)
    *_, failure = judge(reports, docs).failures
    assert failure.endswith(
        'set bucket_size = "Hour" if the application\'s events-by-tag.bucket-size is Hour'
    )


WARNINGS = {
    "bucket": (tag(wrong_bucket=1), "1 row in a bucket that their time is not in"),
    "bucket_start": (
        tag(timebucket_misaligned=1),
        "1 row whose timebucket is not the start of a Hour; delivered, recorded for repair",
    ),
    "continuity": (
        suspects("hole"),
        "3 rows held behind missing numbers; first: order 'o-000007' number 5 (sequence_nr 6)",
    ),
    "numbering": (suspects("renumbered"), "3 rows renumbered after delivery"),
    "lives": (
        suspects("another_life"),
        "3 rows with numbers that began again after delivery; held until tagmill progress restart",
    ),
    "duplicates": (suspects("duplicate_same_event", "drop"), "3 rows twice in the view"),
    "two_events": (suspects("two_events_one_number"), "3 rows with a number that another event has too"),
    "events": (tag(null_events=2), "2 rows without an event"),
    "offsets": (suspects("broken_offset"), "3 rows with an offset that is no TimeUUID"),
    "clock": (suspects("clock_skew", "deliver"), "3 rows with numbers against the order of time"),
    "late": (suspects("late", "late"), "3 rows below the first number delivered"),
    "other": (suspects("a reason of tomorrow"), "3 rows held for another reason"),
    "time_to_live": (
        tag(smallest_ttl_seconds=86_399),
        "the first undelivered row expires in 86399 s, the warning is set at 86400 s",
    ),
}


@pytest.mark.parametrize("name", WARNINGS)
def test_gate_tolerated_case_warns_naming_tag(name: str, docs: str) -> None:
    """Let tolerated cases pass with a warning that names the tag."""
    reports, words = WARNINGS[name]
    verdict = judge(reports, docs)
    assert failed(verdict) == [name]
    assert (verdict.passed, verdict.severity, verdict.failures) == (True, "warn", [])
    assert verdict.warnings[0].startswith(f"tag order: {words}")


def test_gate_few_rows_or_ids_held_passes(docs: str) -> None:
    """Shares in percent mean nothing for few rows, and few held persistence_ids pass, however many rows they
    have.
    """
    all_held = suspects("hole", rows=2000)
    assert not judge(all_held, docs).passed
    assert judge(all_held, docs, min_rows_for_share=2001).passed
    assert judge(all_held, docs, min_ids_for_share=4).passed


def test_gate_rows_of_earlier_holds_pass(docs: str) -> None:
    """Rows that an open hold kept back before the run are a warning, whatever their share is."""
    held_before = replace(suspects("hole", rows=2000), newly_held=0, newly_held_ids=0)
    verdict = judge(held_before, docs)
    assert verdict.passed and failed(verdict) == ["continuity"]


def test_gate_few_rows_in_other_partitions_stops(docs: str) -> None:
    """Single rows outside of their bucket are strays, unless all partitions of the view are buckets of the
    size that fits.
    """
    stray = tag(rows=8, wrong_bucket=1, fits_day=8, fits_hour=7, fits_minute=0)
    assert judge(stray, docs, min_rows_for_share=5000).passed
    other = replace(stray, tags=stray.tags[1:], other_size=BucketSize.DAY)
    verdict = judge(other, docs, min_rows_for_share=5000)
    assert verdict.stopped_by == ("bucket_partitions",) and 'set bucket_size = "Day"' in verdict.failures[0]
    assert judge(other, docs, max_wrong_bucket_share_percent=100).passed


def test_limits_are_the_pipelines(docs: str) -> None:
    assert judge(suspects("hole", rows=101), docs, max_held_share_percent=6).passed
    assert judge(tag(wrong_bucket=960), docs, max_wrong_bucket_share_percent=50).passed
    assert judge(tag(smallest_ttl_seconds=100), docs, min_ttl_warning_seconds=100).severity == "ok"


@pytest.mark.parametrize(
    ("reason", "action", "column"),
    [
        ("first_seen", "hold", "behind_holes"),
        ("too_many_missing", "hold", "behind_holes"),
        ("gap_too_large", "hold", "behind_holes"),
        ("hole", "late", "late"),
        ("first_seen", "deliver", None),
        ("already_delivered", "drop", None),
        ("wrong_bucket", "deliver", "wrong_bucket"),
    ],
)
def test_column_of_reason_is_where_expected(reason: str, action: str, column: str | None) -> None:
    """Count each reason in the column where a person would look for it."""
    assert column_of(reason, action) == column


def test_a_crashed_expectation_stops_the_run(docs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = QualitySettings()
    without = [
        {name: value for name, value in line.items() if name != "duplicates"} for line in frame(CLEAN, limits)
    ]
    monkeypatch.setattr(gate, "frame", lambda *_: without)
    verdict = judge(CLEAN, docs)
    (check,) = (check for check in verdict.checks if check["crashed"])
    assert check["name"] == "duplicates"
    assert (verdict.passed, verdict.severity) == (False, "stop")
    assert verdict.failures[0].startswith("the check 'Every event is in the view once' could not be made: ")


def test_an_expectation_without_a_result_stops_the_run(docs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that give no result stop the run like checks that fail."""
    whole = expectations.expectations_of
    monkeypatch.setattr(expectations, "expectations_of", lambda wanted: whole(wanted)[:-1])
    assert judge(CLEAN, docs).failures == [
        "the check 'Undelivered rows live at least 86400 s more (events-by-tag.time-to-live)' "
        "could not be made: it gave no result"
    ]


def test_the_page_names_the_offending_row(docs: str) -> None:
    verdict = judge(suspects("two_events_one_number"), docs)
    page = Path(verdict.docs_page)
    assert page == Path(docs) / "run-00000007" / "index.html"
    for text in (
        "o-000007",
        "2026-11-21T07:00:00Z",
        "two_events_one_number",
        "No number is claimed by two events",
    ):
        assert text in page.read_text()
    assert "No number is claimed by two events" in (page.parent / "expectations.html").read_text()
    record = json.loads((page.parent / "verdict.json").read_text())
    assert record["reports"]["offending"][0]["persistence_id"] == "o-000007"


def test_hostile_names_are_escaped_on_pages(docs: str) -> None:
    """Hostile names are escaped on every page and appear unchanged in the sentences."""
    reports = replace(
        CLEAN,
        schema=(SchemaColumn(HOSTILE, "blob", HOSTILE),),
        tags=(replace(ORDER, tag=HOSTILE, null_keys=2),),
        offending=(replace(offending("null_key", "read", HOSTILE), tag=HOSTILE, file=HOSTILE),),
    )
    verdict = judge(reports, docs, run="run-00000007")
    pages = list(Path(docs).rglob("*.html"))
    assert len(pages) == 3
    for page in pages:
        text = page.read_text()
        assert "<script" not in text
        assert not re.search(r"""(src|<link[^>]*href)=|url\(""", text)
        assert "default-src 'none'" in text
    assert "&lt;script&gt;" in (Path(docs) / "run-00000007" / "expectations.html").read_text()
    assert f"column {HOSTILE} is {HOSTILE}, blob is required" in verdict.failures[0]
    assert verdict.failures[1].startswith(f"tag {HOSTILE}: 2 rows without a persistence_id")


def test_pages_of_earlier_runs_stay_listed(docs: str) -> None:
    """Pages of earlier runs stay and the list links them, newest first.

    Judging a run again replaces its line.
    """
    first = judge(suspects("hole"), docs, run="run-00000007")
    judge(CLEAN, docs, run="run-00000008")
    assert "o-000007" in Path(first.docs_page).read_text()
    listed = (Path(docs) / "index.html").read_text()
    assert listed.index('href="run-00000008/index.html"') < listed.index('href="run-00000007/index.html"')
    assert '<span class="warn">warn</span>' in listed
    # Judging the same run again, as after a crash, leaves one line that links the new page.
    judge(CLEAN, docs, run="run-00000007")
    again = (Path(docs) / "index.html").read_text()
    assert again.count('href="run-00000007/index.html"') == 1
    assert '<span class="warn">' not in again


def test_half_written_run_list_is_rebuilt(docs: str) -> None:
    """Rebuild the list of runs if it was half written."""
    judge(CLEAN, docs, run="run-00000007")
    (Path(docs) / "runs.json").write_text('[{"run": "run-000')
    judge(CLEAN, docs, run="run-00000008")
    assert 'href="run-00000007/index.html"' in (Path(docs) / "index.html").read_text()
