"""What an audit has proven of a pipeline's past, kept for the next one (docs/decisions/0115).

A baseline covers all rows before a moment, the first of a bucket: journal, view and ClickHouse agree there, and
nothing is pending. The next audit counts these rows where they lie, and reads what has come since.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tagmill.domain.documents import Document
from tagmill.domain.time_buckets import View, first_ticks
from tagmill.errors import SealedFileDamaged
from tagmill.ledger.audits import home
from tagmill.runs.storage import RunFiles

if TYPE_CHECKING:
    from tagmill.audit.staging import Scope

DOCUMENT, PREFIX = "baseline.json", "baseline-"


class Baseline(Document):
    """What a baseline covers: rows before `before` (ticks) of these tags, from `start` on.

    `audit` wrote it; `read_all_at`: when an audit has last read everything; `first`: the time of the journal's first
    event (ticks); `untagged`: as report.Judged has it; `rows`: of each frame.
    """

    audit: int
    read_all_at: datetime
    before: int
    view: str
    start: dict[str, int]
    first: int | None
    untagged: int
    rows: dict[str, int]

    def fits(self, scope: Scope, view: View) -> bool:
        """Return whether an audit of this scope may begin from here."""
        return self.view == str(view) and self.start == dict(scope.start) and self.before <= border(scope)

    def holds(self, now: datetime, days: int) -> bool:
        """Return whether so few days are over since an audit read everything that the next one need not."""
        return now - self.read_all_at < timedelta(days=days)


def border(scope: Scope) -> int:
    """Return up to where an audit that agrees proves everything (ticks): the bucket of the first row that is not due.

    0: nowhere, because a tag was never delivered.
    """
    return first_ticks(scope.size.start(max(min(scope.due.values()), 0)))


def newest(files: RunFiles, pipeline: str) -> Baseline | None:
    """Return the newest baseline of a pipeline whose files are whole; None if there is none."""
    for name in reversed(_names(files, pipeline)):
        place = f"{home(pipeline)}/{name}"
        try:
            document = Baseline.model_validate_json(files.read(f"{place}/{DOCUMENT}"))
            if all(files.count_rows(f"{place}/{frame}") == rows for frame, rows in document.rows.items()):
                return document
        except (SealedFileDamaged, ValueError):  # the latter also from Arrow
            continue
    return None


def folder(pipeline: str, audit: int) -> str:
    """Return the folder of the baseline that an audit wrote."""
    return f"{home(pipeline)}/{PREFIX}{audit:08d}"


def forget(files: RunFiles, pipeline: str, but: int = 0) -> None:
    """Remove the baselines of a pipeline, but for an audit's."""
    for name in _names(files, pipeline):
        if name != f"{PREFIX}{but:08d}":
            files.remove_folder(f"{home(pipeline)}/{name}")


def is_baseline(folder: str) -> bool:
    """Return whether a folder of a pipeline's audits is a baseline's."""
    return folder.startswith(PREFIX)


def _names(files: RunFiles, pipeline: str) -> list[str]:
    return [name for name in files.folders(home(pipeline)) if is_baseline(name)]
