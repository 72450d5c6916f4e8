"""Pages of sound and damaged audits, and that names of applications never become markup on them."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tagmill.audit import pages
from tagmill.audit.model import FINDING_SCHEMA, AuditReport, BucketLine, Finding, Kind, TagLine
from tagmill.config.tag_views import PipelineSettings
from tagmill.domain.time_buckets import BucketSize

BUCKET = 1_795_244_400_000
HOSTILE = "<script>alert('o-1')</script> ${o} &amp; \"ж\""
NOW = datetime(2026, 11, 21, 7, tzinfo=UTC)
PIPELINE = PipelineSettings(
    keyspace="orders",
    bucket_size=BucketSize.HOUR,
    tags=["order", HOSTILE],
    first_time_bucket=NOW,
    destination="orders",
)


def finding(**columns: object) -> Finding:
    return Finding.model_validate(
        {**{field.split()[0]: None for field in FINDING_SCHEMA.split(", ")}, **columns}
    )


def report(findings: dict[Kind, int], named: list[Finding], warnings: list[str]) -> AuditReport:
    figures = {"journal": 10, "view": 9, "clickhouse": 9, "deleted": 0, "pending": 0, "cleaned": 0}
    of_tag = {kind: count for kind, count in findings.items() if kind != Kind.JOURNAL_GAP}
    return AuditReport(
        pipeline="orders",
        audit=7,
        started_at=NOW,
        done_at=NOW,
        until=BUCKET * 10_000,
        agrees=not findings,
        tags=[TagLine(tag="order", **figures, findings={}), TagLine(tag=HOSTILE, **figures, findings=of_tag)],
        buckets=[BucketLine(tag=HOSTILE, timebucket=BUCKET, **figures, findings=of_tag)] if of_tag else [],
        findings=findings,
        named=named,
        warnings=warnings,
        folder="orders/audit/00000007",
    )


@pytest.fixture
def docs(tmp_path: Path) -> str:
    return str(tmp_path / "orders" / "docs")


def verdict(page: str) -> dict[str, object]:
    content: dict[str, object] = json.loads((Path(page).parent / "verdict.json").read_text())
    return content


def test_written_sound_audit_has_no_failures(docs: str) -> None:
    """Sound audits get a page without a failed check, and the list of audits links it."""
    page = pages.written(report({}, [], []), PIPELINE, docs)
    assert page == str(Path(docs) / "audit-00000007" / "index.html")
    assert (verdict(page)["severity"], verdict(page)["failures"]) == ("ok", 0)
    assert "audit-00000007" in (Path(docs) / "index.html").read_text()


def test_warnings_alone_fail_nothing(docs: str) -> None:
    page = pages.written(report({}, [], ["a large partition"]), PIPELINE, docs)
    assert verdict(page)["severity"] == "warn" and "a large partition" in Path(page).read_text()


def test_findings_are_named_and_hostile_names_escaped(docs: str) -> None:
    named = finding(
        kind=Kind.MISSING_IN_VIEW,
        tag=HOSTILE,
        persistence_id=HOSTILE,
        sequence_nr=5,
        timebucket=BUCKET,
        detail=HOSTILE,
    )
    found = {Kind.MISSING_IN_VIEW: 1, Kind.JOURNAL_GAP: 2}
    page = pages.written(report(found, [named], [HOSTILE]), PIPELINE, docs)
    assert verdict(page)["severity"] == "stop"
    sentences = {check["name"]: check["sentence"] for check in verdict(page)["checks"] if check["sentence"]}  # type: ignore[attr-defined]
    assert sentences["missing_in_view"] == f"tag {HOSTILE}: 1 × {Kind.MISSING_IN_VIEW.text}"
    assert sentences["journal_hole"] == f"the run: 2 × {Kind.JOURNAL_GAP.text}"
    for file in Path(docs).rglob("*.html"):
        assert "<script" not in file.read_text()
    assert "2026-11-21T07:00:00Z" in Path(page).read_text()
