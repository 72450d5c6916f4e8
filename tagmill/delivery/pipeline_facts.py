"""Collect what the ledger knows of a whole pipeline for the verdicts on its tags: the open run, failures,
checks, the last audit.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tagmill.clickhouse.client import ClickHouse
from tagmill.domain import clock, identifiers
from tagmill.domain.batches.states import BatchState
from tagmill.domain.timeuuid import to_datetime
from tagmill.domain.verdict import Failure, OpenRun, Proof, Unended, ViewWait, moment
from tagmill.errors import TagmillError
from tagmill.journal.flaws import Reason
from tagmill.ledger.attempts import of_builds, unended
from tagmill.ledger.audits import AuditRow, Audits, in_words
from tagmill.ledger.checks import CheckRow, Checks
from tagmill.ledger.failures import Failures
from tagmill.ledger.runs import Ledger, RunRow
from tagmill.ledger.view_waiting import WaitingIds
from tagmill.runs.audit_reports import audit_report
from tagmill.runs.workspace import Workspace

# Rows and checksum of all rows of a destination; UNTOLD if ClickHouse would have to read every row to compute
# them.
Contents = tuple[int, int]
UNTOLD: Contents = (-1, 0)


@dataclass(frozen=True, slots=True)
class LastAudit:
    """An audit that came to its end, with its findings by tag.

    `up_to`: by tag, the ticks up to which no row was pending; None: no row was due. Before it read anything,
    `closed_run` was the newest closed run, and the destination had `contents`.
    """

    row: AuditRow
    found: Mapping[str, Mapping[str, int]]
    up_to: Mapping[str, int | None]
    closed_run: int
    contents: Contents

    def proof(self, tag: str, closed: RunRow | None, contents: Contents) -> Proof | None:
        """Return the audit as a proof for a tag, or None if it did not judge the tag, or no row of it was due.

        `closed` and `contents` are the newest closed run and the destination's contents by now.
        """
        if self.row.done_at is None or tag not in self.found:
            return None
        up_to, agrees = self.up_to.get(tag), not self.found[tag]
        if up_to is None and agrees:
            return None
        changed = closed is not None and closed.run > self.closed_run
        if UNTOLD not in (contents, self.contents):
            changed = changed or contents != self.contents
        finding = f"audit {self.row.audit} found {in_words(self.found[tag])}"
        until = self.row.until if up_to is None else up_to
        return Proof(
            "audited",
            self.row.done_at,
            agrees,
            moment(to_datetime(until)),
            finding,
            changed=changed or until != self.row.until,
        )


@dataclass(frozen=True, slots=True)
class OpenRows:
    """Rows of the open run by tag: `pushed` are verified in ClickHouse, `sealed` are there or not."""

    run: RunRow | None
    pushed: Mapping[str, int]
    sealed: Mapping[str, int]

    def bounds(self, tag: str, delivered: int, counted_run: int) -> tuple[int, int]:
        """Return how many rows of a tag ClickHouse has at least and at most; `delivered` counts those up to
        `counted_run`.
        """
        if self.run is not None and self.run.run == counted_run:
            return delivered, delivered
        least = delivered + self.pushed.get(tag, 0)
        return least, least + self.sealed.get(tag, 0)


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """The facts known of a pipeline."""

    closed: RunRow | None
    open_run: OpenRun | None
    open_rows: OpenRows
    failure: Failure | None
    build_failure: Failure | None
    unended: tuple[Unended, ...]
    view_waits: tuple[ViewWait, ...]
    checks: Mapping[str, CheckRow]
    contents: Contents
    audits: Mapping[str, LastAudit]

    def checked(self, tag: str) -> Proof | None:
        """Return the newest check of a tag as a proof, or None if it was never checked."""
        check = self.checks.get(tag)
        if check is None:
            return None
        same = (check.rows, check.checksum) == self.contents
        if self.contents == UNTOLD:
            same = same and self.closed is not None and self.closed.run == check.run
        return Proof(
            "checked", check.checked_at, check.agrees, f"run {check.run}", check.finding, changed=not same
        )

    def audited(self, tag: str) -> Proof | None:
        """Return the last audit of a tag as a proof, or None if the tag was never judged."""
        audit = self.audits.get(tag)
        return audit.proof(tag, self.closed, self.contents) if audit else None

    def of_tag(self, tag: str, *, verified: datetime | None) -> dict[str, Any]:
        """Return the facts of one tag, by the names that Facts has for them."""
        return {
            "open_run": self.open_run,
            "failure": self.failure,
            "build_failure": self.build_failure,
            "unended": self.unended,
            "view_waits": self.view_waits,
            "verified": verified,
            "checked": None if verified else self.checked(tag),
            "audited": None if verified else self.audited(tag),
        }


def collect(workspace: Workspace, clickhouse: ClickHouse, table: str) -> PipelineFacts:
    """Read what the ledger knows of a pipeline, and the destination's contents if there is a check or an audit
    to compare them with.
    """
    settings, ledger, pipeline = workspace.settings, workspace.ledger, workspace.name
    keyspace = workspace.ledger_keyspace
    last = ledger.last_run(pipeline)
    rows = [row for number in (last, last - 1) if number > 0 and (row := ledger.run(pipeline, number))]
    open_run = next((row for row in rows if row.state.is_open), None)
    checks = workspace.store(Checks).newest()
    audits = _last_audits(workspace) if pipeline in settings.pipelines else {}
    names = [pipeline, of_builds(pipeline)] if pipeline in settings.pipelines else [pipeline]
    failures = [Failures(workspace.cassandra, keyspace, name).current() for name in names]
    return PipelineFacts(
        closed=next((row for row in rows if not row.state.is_open), None),
        open_run=OpenRun(open_run.run, open_run.state.value, open_run.fence) if open_run else None,
        open_rows=rows_of(ledger, open_run),
        failure=failures[0],
        build_failure=failures[1] if len(failures) > 1 else None,
        unended=tuple(each for name in names for each in unended(workspace.cassandra, keyspace, name)),
        view_waits=tuple(_view_waits(workspace)) if pipeline in settings.pipelines else (),
        checks=checks,
        contents=contents(clickhouse, table) if checks or audits else UNTOLD,
        audits=audits,
    )


def _view_waits(workspace: Workspace) -> Iterator[ViewWait]:
    """Yield what waits in builds of the pipeline's view; nothing if the application writes the view."""
    configured = workspace.pipeline
    builder = workspace.settings.builder(configured.keyspace)
    if builder is None:
        return
    ways_out = {
        Reason.ELSEWHERE: "Turn events-by-tag off in the application, then take its numbers as the start: "
        f"tagmill views build --pipeline {builder} --adopt",
        Reason.DELETED: f"Make it again: tagmill views rebuild --pipeline {builder} --offline",
    }
    today = clock.earliest(workspace.cassandra.clocks)
    for row in workspace.journal_store(WaitingIds).current():
        yield ViewWait(
            row.ids,
            row.persistence_id,
            row.sequence_nr,
            row.since,
            Reason(row.reason).text,
            too_long=(today - row.since).total_seconds() > configured.max_hold_age_seconds,
            way_out=ways_out.get(Reason(row.reason), ""),
        )


def record_checks(
    workspace: Workspace,
    findings: Mapping[str, Sequence[str]],
    changing: Mapping[str, Sequence[str]],
    at: datetime,
    known: PipelineFacts,
    checked: Contents,
) -> None:
    """Write the result of a check for each tag to the ledger.

    `findings`: texts by tag, empty if all agrees; `checked`: what the destination held. A tag without findings
    is left out while something of it is changing.
    """
    rows, checksum = checked
    run = known.closed.run if known.closed else 0
    workspace.store(Checks).write(
        CheckRow(tag, at, run, rows, checksum, not texts, texts[0] if texts else "")
        for tag, texts in findings.items()
        if texts or not changing[tag]
    )


def contents(clickhouse: ClickHouse, table: str) -> Contents:
    """Return rows and checksum of a destination, from the totals that ClickHouse keeps for each part; UNTOLD
    if it can't.
    """
    query = (
        "SELECT sum(batch_rows), sum(batch_checksum) FROM (SELECT count() AS batch_rows, "
        f"sum({clickhouse.layout.row_checksum_sql()}) AS batch_checksum FROM {identifiers.sql(table)} "
        "GROUP BY `batch_id`, `generation`)"
    )
    try:
        ((rows, checksum),) = clickhouse.rows(query, settings={"force_optimize_projection": 1})
    except TagmillError:
        return UNTOLD
    return int(rows), int(checksum)


def now(ledger: Ledger) -> datetime:
    """Return the servers' time to the second, as verdicts show it."""
    return clock.earliest(ledger.cassandra.clocks).replace(microsecond=0)


def rows_of(ledger: Ledger, open_run: RunRow | None) -> OpenRows:
    """Read the rows of the open run, if there is one."""
    batches = ledger.batches(open_run.pipeline, open_run.run) if open_run else []
    return OpenRows(
        open_run,
        pushed=_rows_by_tag(batch for batch in batches if batch.state == BatchState.IN_CLICKHOUSE),
        sealed=_rows_by_tag(batch for batch in batches if batch.state == BatchState.NEW),
    )


def _rows_by_tag(batches: Iterable[Any]) -> Mapping[str, int]:
    rows = Counter[str]()
    for batch in batches:
        rows[batch.tag] += batch.rows
    return rows


def _last_audits(workspace: Workspace) -> dict[str, LastAudit]:
    """Return the last audit of each tag that came to its end."""
    rows = workspace.store(Audits).last_done_of(workspace.pipeline.tags)
    read = {row.audit: _read_audit(workspace, row) for row in rows.values()}
    return {tag: read[row.audit] for tag, row in rows.items()}


def _read_audit(workspace: Workspace, row: AuditRow) -> LastAudit:
    """Return an audit with what its report says.

    Findings without a tag count for every tag that was judged. If the report is gone, an audit that disagrees
    speaks for all tags, and one that agrees for none.
    """
    report = audit_report(workspace.files, workspace.name, row.audit)
    if report is None:
        found = {} if row.agrees else dict.fromkeys(workspace.pipeline.tags, row.findings)
        return LastAudit(row, found, {}, 0, UNTOLD)
    of_tags = {line["tag"]: Counter[str](line["findings"]) for line in report["tags"]}
    of_none = Counter[str](dict(row.findings)) - sum(of_tags.values(), Counter[str]())
    by_tag = {tag: +(findings + of_none) for tag, findings in of_tags.items()}
    # Reports of earlier versions say only how many rows were pending.
    up_to = {line["tag"]: line.get("up_to") if line["pending"] else row.until for line in report["tags"]}
    rows, checksum = report.get("contents", UNTOLD)
    return LastAudit(row, by_tag, up_to, report.get("closed_run", 0), (rows, checksum))
