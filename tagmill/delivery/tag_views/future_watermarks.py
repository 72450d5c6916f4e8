"""Find watermarks in the future, left behind by a run under a wrong clock, and the ticks from which delivery
has to go on instead.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import chain

from tagmill.config.settings import Settings
from tagmill.delivery.tag_views.run_files import read_manifest
from tagmill.domain.timeuuid import TICKS_PER_SECOND, from_datetime
from tagmill.ledger.progress import Watermark
from tagmill.runs.sealed_files import if_readable
from tagmill.runs.workspace import Workspace


def watermarks_ahead(
    settings: Settings, name: str, marks: Mapping[str, Watermark], now: datetime
) -> dict[str, float]:
    """Return, by tag, by how many seconds watermarks are ahead of the servers' clocks (`now`).

    Watermarks that max_clock_difference_seconds or start_from allow are left out.
    """
    limit, pipeline = settings.cassandra.max_clock_difference_seconds, settings.pipeline(name)
    seconds = {
        tag: (mark.ticks - from_datetime(now)) / TICKS_PER_SECOND
        for tag, mark in marks.items()
        if tag in pipeline.tags
    }
    return {
        tag: ahead
        for tag, ahead in seconds.items()
        if ahead > limit and marks[tag].ticks >= pipeline.start_ticks(tag)
    }


def brought_back(workspace: Workspace, now: datetime) -> dict[str, Watermark]:
    """Return the watermarks that are ahead, set to the tick that is proven: where the first run under the
    wrong clock began.

    That tick is read from the runs' manifests. If those are past retention, delivery begins again at the
    tag's start, and progress drops what was delivered.
    """
    marks = workspace.ledger.delivered.watermarks(workspace.name)
    return {
        tag: replace(marks[tag], ticks=_proven(workspace, marks[tag], from_datetime(now)))
        for tag in watermarks_ahead(workspace.settings, workspace.name, marks, now)
    }


def _proven(workspace: Workspace, mark: Watermark, now: int) -> int:
    ticks = proven_ticks(mark.ticks, _beginnings(workspace, mark), now)
    return workspace.pipeline.start_ticks(mark.tag) - 1 if ticks is None else ticks


def proven_ticks(ticks: int, beginnings: Iterable[int], now: int) -> int | None:
    """Return where the first run under the wrong clock began; None if no run shows it.

    `beginnings`: where the runs that moved the watermark began, the newest first.
    """
    return next((tick for tick in chain([ticks], beginnings) if tick <= now), None)


def _beginnings(workspace: Workspace, mark: Watermark) -> Iterator[int]:
    """Yield where the runs began that moved a watermark, the newest first, up to the first unknown run."""
    files = workspace.files
    for number in range(mark.run, 0, -1):
        row = workspace.ledger.run(workspace.name, number)
        if row is None:
            return
        # Of a run without a readable manifest nothing is known: an earlier run then shows where to go on.
        moved = if_readable(read_manifest, files, row) if row.manifest_file else None
        if moved is not None and moved.moves_watermark and mark.tag in moved.tags:
            yield moved.tags[mark.tag].after
