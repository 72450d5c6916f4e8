"""Write the page of an audit: Great Expectations judges its lines, one per tag, and Data Docs keep the
result.
"""

from collections.abc import Sequence

from tagmill.audit.model import AuditReport, Kind
from tagmill.config.tag_views import PipelineSettings
from tagmill.quality import docs
from tagmill.quality.expectations import judged
from tagmill.quality.model import Failing
from tagmill.quality.rules import SUBJECT, THE_RUN, Cell, Rule, safe

WARNINGS = "warnings"


def written(report: AuditReport, pipeline: PipelineSettings, docs_dir: str) -> str:
    """Write the page, below the pipeline's pages; return its path, or its URL if the folder is one."""
    name = f"audit-{report.audit:08d}"
    wanted = [
        Rule(kind.value, kind.value, "stop", _expected(kind), f"{{subject}}: {{rows}}: {kind.text}")
        for kind in Kind
    ]
    wanted.append(Rule(WARNINGS, WARNINGS, "warn", "Nothing is to be warned of", ""))

    def said(rule: Rule, failing: Sequence[Failing]) -> str:
        if rule.name == WARNINGS:
            return ". ".join(report.warnings)
        return ". ".join(
            f"{found.subject}: {found.value or 0:.0f} × {Kind(rule.name).text}" for found in failing
        )

    checks, expectations = judged(_lines(report), wanted, said, suite="audit", run_name=name)
    figures = {"rows": report.clickhouse, "held": report.findings.get(Kind.HELD, 0)}
    values = {"report": report, "bucket_size": pipeline.bucket_size.value}
    shown = docs.Page("audit.html.j2", values, figures, {"report": report.model_dump(mode="json")})
    return docs.write(docs_dir, name, shown, checks, expectations)


def _expected(kind: Kind) -> str:
    return f"Nowhere: {kind.text}"


def _lines(report: AuditReport) -> list[dict[str, Cell]]:
    """Return one line for the findings that have no tag, and one per tag."""
    of_tags: list[dict[str, Cell]] = [
        {
            SUBJECT: safe(f"tag {line.tag}"),
            **{kind.value: line.findings.get(kind, 0) for kind in Kind},
            WARNINGS: None,
        }
        for line in report.tags
    ]
    without_tag = {
        kind.value: count - sum(line.findings.get(kind, 0) for line in report.tags)
        for kind, count in report.findings.items()
    }
    whole: dict[str, Cell] = {
        SUBJECT: THE_RUN,
        **{kind.value: without_tag.get(kind.value, 0) for kind in Kind},
        WARNINGS: len(report.warnings),
    }
    return [whole, *of_tags]
