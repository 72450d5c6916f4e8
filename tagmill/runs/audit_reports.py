"""The report of an audit, which lies next to the audit's files."""

import json
from typing import Any

from tagmill.errors import TagmillError
from tagmill.ledger import audits
from tagmill.runs.storage import RunFiles

REPORT = "report.json"


def audit_report(files: RunFiles, pipeline: str, audit: int) -> dict[str, Any] | None:
    """Return the report of an audit as a document (AuditReport); None if it is gone or can't be read."""
    try:
        report: dict[str, Any] = json.loads(files.read(f"{audits.folder(pipeline, audit)}/{REPORT}"))
    except (TagmillError, OSError, ValueError):
        return None
    return report
