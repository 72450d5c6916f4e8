"""Audit one pipeline, from the claim of the audit's number to its pages.

It only reads what it judges, so deliveries may go on.

The order of reading decides what may be believed: watermarks and progress first, the journal before the view,
the view before ClickHouse, deletions and holds last. What seems to be missing is looked for once more before
it is reported.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import structlog

from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.domain.batches.states import RunState
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND, TICKS_PER_SECOND, from_datetime, to_datetime
from tagmill.errors import AuditDiffers, StoreUnavailable, ViewNotBuilt, about_pipeline
from tagmill.journal.frames import deleted_for_good
from tagmill.journal.tag_view_reader import Views
from tagmill.ledger import audits
from tagmill.ledger.audits import AuditRow, Audits, AuditState
from tagmill.ledger.cleanups import CleanupLog
from tagmill.ledger.preconditions import check_journal
from tagmill.ledger.view_builds import Builds
from tagmill.runs import checkpoints
from tagmill.runs.audit_reports import REPORT
from tagmill.runs.clock import agreed_now
from tagmill.runs.workspace import Workspace, open_workspace, silent
from tagmill.spark.materialize import count_rows, materialize

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tagmill.audit.baseline_frames import Proven, Seen
    from tagmill.audit.destination_reader import Stored
    from tagmill.audit.model import AuditReport
    from tagmill.audit.progress import Delivered
    from tagmill.audit.report import Judged
    from tagmill.audit.staging import Scope
    from tagmill.audit.totals import Totals
    from tagmill.journal.frames import CleanedOf
    from tagmill.runs.progress import Tell

log = structlog.get_logger()
Result = dict[str, Any]
# Folders of an audit's results next to its report.
RESULTS = ("buckets", "findings")
# What is true of the data after an audit, whatever it found.
UNCHANGED = "Nothing was changed"


@about_pipeline
def audit(
    settings: Settings,
    pipeline: str,
    *,
    owner: str,
    spark: SparkSession,
    tags: list[str] | None = None,
    full: bool = False,
    tell: Tell | None = None,
) -> AuditReport:
    """Compare journal, view, progress and ClickHouse of a pipeline; with `tags`, only for these.

    What an earlier audit has proven is counted, and not read again while nothing of it has changed, unless the audit is
    `full` or `audit_full_days` are over. `tell` is called with each step.

    Raises LeaseTaken if another audit of the pipeline is under way, ConfigurationError, DestinationDiffers,
    StoreUnavailable.
    """
    from tagmill.delivery.tag_views.steps import wanted_tags
    from tagmill.runs.ledger_comparison import require_up_to_date
    from tagmill.spark.errors import explained

    chosen = settings.pipeline(pipeline)
    wanted = wanted_tags(pipeline, chosen.tags, tags)
    # An audit takes a lease of its own and not the pipeline's, so that deliveries go on.
    leases = [f"{pipeline}/audit"]
    with (
        open_workspace(settings, pipeline, owner=owner, leases=leases, tell=tell or silent) as workspace,
        workspace.clickhouse() as clickhouse,
    ):
        clickhouse.check_destination(chosen.destination)
        require_up_to_date(workspace, done="Nothing was audited")
        with explained(workspace.cassandra.where, "The audit changed nothing"):
            return _Audit(workspace, clickhouse, spark, full=full).run(wanted)


def told(report: AuditReport) -> Result:
    """Return the report as the result of a job: figures and texts."""
    return {
        **report.model_dump(mode="json", include={"audit", "agrees", "findings", "docs", "warnings"}),
        "message": message(report),
    }


def message(report: AuditReport) -> str:
    """Return the report in a sentence."""
    rows = (
        f"{report.journal} events in the journal, {report.view} rows in the view, {report.clickhouse} "
        "in ClickHouse"
    )
    if pending := sum(line.pending for line in report.tags):
        rows += f", {pending} pending (not delivered yet)"
    if report.agrees:
        counted = _proven(report)
        if report.proven_before is not None:
            until = f"{to_datetime(report.proven_before):%Y-%m-%dT%H:%MZ}"
            counted += f"; what audit {report.proven_by} has proven before {until} has the same counts and write times"
        return f"pipeline {report.pipeline}: audit {report.audit} agrees: {rows}{counted}"
    return (
        f"pipeline {report.pipeline}: audit {report.audit} does not agree: "
        f"{audits.in_words(report.findings)} ({rows})"
    )


def _proven(report: AuditReport) -> str:
    """Return what is proven of tags with pending rows; an empty text if there are none."""
    up_to = [line.up_to for line in report.tags if line.pending]
    if not up_to:
        return ""
    due = [ticks for ticks in up_to if ticks is not None]
    if len(due) < len(up_to):
        return "; no row was due of some tags with pending rows: nothing of them is proven"
    return f"; tags with pending rows are proven up to {to_datetime(min(due)):%Y-%m-%dT%H:%M:%SZ} only"


def raise_unless_it_agrees(report: AuditReport, untouched: str = UNCHANGED) -> None:
    """Raise AuditDiffers if there is a finding; `untouched` is what its message says of the data."""
    if not report.agrees:
        raise AuditDiffers(
            f"{message(report)}. {untouched}. See {report.docs}",
            report.docs,
            pipeline=report.pipeline,
        )


class _Audit:
    """One audit of one pipeline with one Spark session."""

    def __init__(
        self, workspace: Workspace, clickhouse: ClickHouse, spark: SparkSession, *, full: bool
    ) -> None:
        from tagmill.journal.frames import JournalSchema

        self.settings, self.ledger = workspace.settings, workspace.ledger
        self.name, self.pipeline, self.tell = workspace.name, workspace.pipeline, workspace.tell
        self.ledger_keyspace, self.files = workspace.ledger_keyspace, workspace.files
        self.clickhouse = clickhouse
        self.spark = spark
        self.full = full
        self.untagged = 0
        self.audits = workspace.store(Audits)
        check_journal(workspace.cassandra, workspace.settings, workspace.name)
        self.journal = JournalSchema.load_checked(workspace.cassandra, self.pipeline.journal)

    def run(self, tags: list[str]) -> AuditReport:
        """Audit these tags: judge, write the report and its pages, record the result, and remove the files of
        other audits.
        """
        from tagmill.audit import pages, report
        from tagmill.delivery.pipeline_facts import contents
        from tagmill.quality.expectations import preload
        from tagmill.spark.bulk_load import FEW_ROWS

        preload()
        self.deliveries = self._deliveries()
        at_first = contents(self.clickhouse, self.pipeline.destination)
        scope = self._scope(tags)
        is_whole = set(tags) == set(self.pipeline.tags)
        row = self.audits.begin(scope.until, None if is_whole else tags)
        self._sweep(row)
        self.folder = audits.folder(self.name, row.audit)
        checkpoints.reached("audit.begun")
        judged, seen, scope = self._judged_since(scope) or self._judged(scope)
        checkpoints.reached("audit.judged")
        self.tell("writing the report")
        now = self.ledger.cassandra.now()
        made = report.made(judged, row, scope, self.pipeline, self.files, self.folder, now)
        docs = pages.written(made, self.pipeline, self.files.docs(self.name))
        made = made.model_copy(update={"docs": docs, "closed_run": self._closed_run(), "contents": at_first})
        self.files.write(f"{self.folder}/{REPORT}", made.model_dump_json(indent=1).encode())
        written = self.ledger.delivered.write_times.of(self.name, row.audit)
        report.write_buckets(
            judged,
            row,
            self.ledger.cassandra,
            self.pipeline.view,
            written,
            few=self.files.count_rows(f"{self.folder}/view") <= FEW_ROWS,
        )
        self._keep_proven(judged, seen, scope, made)
        checkpoints.reached("audit.before_end")
        self._finish(row, made)
        self._sweep(row)
        return made

    # -- what is judged

    def _scope(self, tags: list[str]) -> Scope:
        from tagmill.audit.staging import Scope
        from tagmill.delivery.destination_retention import Expiry

        until = from_datetime(
            agreed_now(self.settings, self.ledger.cassandra)
            - timedelta(seconds=self.pipeline.eventual_consistency_delay_seconds)
        )
        builds = Builds(self.ledger.cassandra, self.ledger_keyspace, self.pipeline.keyspace)
        late = builds.late(self.name)
        if builder := self.settings.builder(self.pipeline.keyspace):
            newest = builds.newest()
            if newest is None or newest.built_to is None:
                raise ViewNotBuilt(
                    f"pipeline {self.name}: the view of journal {self.pipeline.keyspace} was never "
                    "built. Nothing was audited. "
                    f"Build it: tagmill views build --pipeline {builder}",
                    pipeline=self.name,
                )
            until = min(until, newest.built_to)
        marks = self.ledger.delivered.watermarks(self.name)
        back = int(self.pipeline.look_back_seconds * TICKS_PER_SECOND)
        due = {
            tag: min(until, marks[tag].ticks - back, late.get(tag, until) - 1) if tag in marks else -1
            for tag in tags
        }
        start = {tag: self.pipeline.start_ticks(tag) for tag in tags}
        reached = {tag: min(until, marks[tag].ticks) if tag in marks else -1 for tag in tags}
        expiry = Expiry.declared(self.pipeline, self.clickhouse)
        expired = expiry.cutoff_ms * TICKS_PER_MILLISECOND if expiry else 0
        return Scope(self.name, tuple(tags), self.pipeline.bucket_size, start, due, until, reached, expired)

    def _with_all_read(self, scope: Scope) -> Scope:
        """Return the scope with tags due up to their watermark, if no row has come late since the last run
        read them.

        The rows are counted after the view was staged, so that no staged row came after the count.
        """
        views, due = Views(self.ledger.cassandra, self.pipeline.journal), dict(scope.due)
        back = int(self.pipeline.look_back_seconds * TICKS_PER_SECOND)
        late = Builds(self.ledger.cassandra, self.ledger_keyspace, self.pipeline.keyspace).late(self.name)
        for tag, mark in self.ledger.delivered.watermarks(self.name).items():
            if tag not in scope.tags or tag in late or mark.ticks != scope.reached[tag]:
                continue
            if mark.window_from > max(scope.start[tag] - 1, mark.ticks - back):
                continue
            first, last = (
                self.pipeline.bucket_size.start(max(ticks, 0)) for ticks in (mark.window_from, mark.ticks)
            )
            buckets = range(first, last + 1, self.pipeline.bucket_size.milliseconds)
            counts = views.count((tag, bucket, mark.window_from, mark.ticks) for bucket in buckets)
            if sum(rows for rows, _ in counts) == mark.window_rows:
                due[tag] = mark.ticks
        return replace(scope, due=due)

    def _with_expired(self, scope: Scope) -> Scope:
        """Return the scope with what the application's TTL may have taken of the view by now."""
        return replace(scope, expired_in_view=self.pipeline.expired_to(self.ledger.cassandra.now()))

    def _proven(self, scope: Scope) -> Proven | None:
        """Return the baseline from which this audit may begin; None: it reads everything."""
        from tagmill.audit import baseline, baseline_frames

        if self.full or set(scope.tags) != set(self.pipeline.tags):
            return None
        document = baseline.newest(self.files, self.name)
        if document is None or not document.fits(scope, self.pipeline.view):
            return None
        if not document.holds(self.ledger.cassandra.now(), self.pipeline.audit_full_days):
            return None
        return baseline_frames.read(self.files, self.spark, self.name, document)

    def _judged_since(self, scope: Scope) -> tuple[Judged, Seen, Scope] | None:
        """Return what an audit from the baseline on proves; None if there is no baseline, or something may be wrong."""
        from tagmill.audit.since import Doubt
        from tagmill.spark.errors import explained

        proven = self._proven(scope)
        if proven is None:
            return None
        try:
            with explained(self.ledger.cassandra.where, "The audit changed nothing"):
                return self._since(proven, scope)
        except (Doubt, StoreUnavailable) as doubt:
            self.tell(
                f"reading everything, since audit {proven.document.audit}'s proof may not hold: {doubt}"
            )
        for name in self.files.folders(self.folder):
            self.files.remove_folder(f"{self.folder}/{name}")
        return None

    def _since(self, proven: Proven, scope: Scope) -> tuple[Judged, Seen, Scope]:
        from tagmill.audit import row_comparison
        from tagmill.audit.baseline_frames import Seen
        from tagmill.audit.progress import Delivered
        from tagmill.audit.report import Judged, event_facts
        from tagmill.audit.since import Read, Since

        since = Since(self.spark, self.journal, self.files, self.folder, proven, self.tell)
        progress = self._progress(scope)
        self.tell(f"reading the journal behind what audit {proven.document.audit} has proven")
        for_good = deleted_for_good(self.ledger.cassandra, self.spark, self.journal.keyspace)
        events, deleted, places = since.stage_journal(scope, for_good)
        self.tell("reading the view behind it")
        audited_at = self.ledger.cassandra.now()
        cleaned_of = self._cleaned(scope)
        scope = self._with_expired(scope)
        view, partitions, taken = since.stage_view(scope, cleaned_of)
        scope = self._with_all_read(scope)
        self.tell("adding up in ClickHouse")
        stored = self._stored(scope)
        sums = since.check_stored(stored.sums(), scope)
        self.tell("comparing")
        read = Read(events, view, deleted)
        ids = stored.ids("ids", since=since.before)
        lines = since.judge(
            read,
            Delivered(progress, ids),
            lambda: self._delivered_again(scope, since.before),
            sums,
            cleaned_of,
            since.scope(scope),
        )
        lines_then = since.lines_then(taken)
        kept = {
            "partitions": partitions,
            "places": places,
            "numbers": proven.frames["numbers"],
            "stored": proven.frames["stored"],
            "lines": lines_then,
        }
        totals = self._totals(events, view, scope)
        seen = Seen(kept, totals, lines, sums, ids)
        judged = Judged(
            totals,
            deleted,
            lines.drop("differs").unionByName(lines_then),
            row_comparison.no_findings(self.spark),
            proven.document.untagged,
            audited_at,
            self.files.url(self.folder),
            event_facts(totals.ids, proven),
            proven,
        )
        return judged, seen, scope

    def _keep_proven(self, judged: Judged, seen: Seen, scope: Scope, made: AuditReport) -> None:
        """Keep what this audit has proven for the next one; forget what was proven if it does not agree."""
        from tagmill.audit import baseline, baseline_frames
        from tagmill.spark.bulk_load import FEW_ROWS

        if not made.agrees:
            baseline.forget(self.files, self.name)
            return
        proven, before = judged.proven, baseline.border(scope)
        is_few = self.files.count_rows(f"{self.folder}/view") <= FEW_ROWS
        no_more = before <= proven.document.before if proven else is_few or not before
        if no_more or set(scope.tags) != set(self.pipeline.tags) or not self.pipeline.audit_full_days:
            return
        self.tell("keeping what is proven")
        document = baseline.Baseline(
            audit=made.audit,
            read_all_at=proven.document.read_all_at if proven else made.started_at,
            before=before,
            view=str(self.pipeline.view),
            start=dict(scope.start),
            first=judged.facts.first,
            untagged=judged.untagged,
            rows={},
        )
        recent = self._stored(scope).ids("ids-recent", since=before)
        baseline_frames.write(self.files, self.name, document, seen, recent)

    def _stored(self, scope: Scope) -> Stored:
        from tagmill.audit.destination_reader import Stored

        destination = self.pipeline.destination
        return Stored(self.spark, self.clickhouse, destination, self.files, self.folder, scope)

    def _totals(self, events: DataFrame, view: DataFrame, scope: Scope) -> Totals:
        from tagmill.audit import baseline
        from tagmill.audit.totals import Totals

        return Totals.written(events, view, scope, baseline.border(scope), self._url("totals"))

    def _progress(self, scope: Scope, name: str = "progress") -> DataFrame:
        from tagmill.audit import staging

        folder = f"{self.folder}/{name}"
        return staging.stage_progress(self.spark, self.ledger.cassandra, scope, self.files, folder)

    def _delivered_again(self, scope: Scope, since: int | None = None) -> Delivered:
        """Read progress and then ClickHouse's ids again, as they were read first."""
        from tagmill.audit.progress import Delivered

        self.tell("looking again whether progress is what was delivered")
        progress = self._progress(scope, "progress-again")
        return Delivered(progress, self._stored(scope).ids("ids-again", since=since))

    def _cleaned(self, scope: Scope) -> CleanedOf:
        from tagmill.audit import staging

        log = CleanupLog(
            self.ledger.cassandra, self.ledger_keyspace, self.journal.keyspace, self.pipeline.view
        )
        return staging.stage_cleaned(self.spark, log, scope, self._url("cleaned"))

    def _judged(self, scope: Scope) -> tuple[Judged, Seen, Scope]:
        from pyspark.sql import functions as F

        from tagmill.audit import baseline_frames, bucket_sums, numbers, row_comparison, staging
        from tagmill.audit.progress import Delivered, confirmed, progress_findings
        from tagmill.audit.report import Judged, event_facts

        progress = self._progress(scope)
        self.tell("reading the journal")
        of_events = staging.EventStaging(self.journal, self.files, scope)
        events = staging.stage_table(of_events, self.spark, f"{self.folder}/journal")
        checkpoints.reached("audit.journal_read")
        self.tell("reading the view")
        audited_at = self.ledger.cassandra.now()
        of_view = staging.ViewStaging(self.journal, self.files, scope)
        view = staging.stage_table(of_view, self.spark, f"{self.folder}/view")
        checkpoints.reached("audit.view_read")
        scope = self._with_expired(self._with_all_read(scope))
        cleaned = self._cleaned(scope)
        self.tell("adding up in ClickHouse")
        stored = self._stored(scope)
        in_clickhouse, ids = stored.sums(), stored.ids("ids")
        for_good = deleted_for_good(self.ledger.cassandra, self.spark, self.journal.keyspace)
        totals = self._totals(events, view, scope)
        in_view = totals.numbers.where("rows > 0").select("persistence_id")
        deleted = staging.stage_deleted(
            self.spark, self.journal, totals.ids, in_view, for_good, self._url("deleted")
        )
        self.tell("comparing")
        lines = materialize(
            bucket_sums.bucket_sums(events, view, in_clickhouse, deleted, cleaned, scope), self._url("lines")
        )
        found = []
        if self._is_any("totals/ids", "unreadable") or self._is_any("totals/partitions", "unreadable"):
            found.append(row_comparison.unreadable(events, view, scope))
        if self._is_any("totals/partitions", "misplaced"):
            found.append(row_comparison.misplaced(view, scope))
        if self._is_any("lines", "differs"):
            differing = lines.where("differs")
            rows = stored.rows("rows", differing)
            holds = self._holds(scope)
            quiet = self._deliveries() == self.deliveries
            compared = row_comparison.compared(
                events, view, rows, deleted, holds, cleaned, differing, scope, quiet=quiet
            )
            compared = self._of_tagged(materialize(compared, self._url("compared")), events)
            found.append(self._looked_again(compared, stored))
        self.tell("checking numbers and progress")
        none = row_comparison.no_findings(self.spark)
        by_rows = materialize(_all(found), self._url("by-rows")) if found else none
        of_journal = none
        if self._is_any("totals/ids", "is_broken"):
            broken = totals.ids.where("is_broken").select("persistence_id")
            of_journal = materialize(
                numbers.journal_findings(events, broken, deleted, scope), self._url("of-journal")
            )
        in_doubt = [by_rows.select("persistence_id")] if found else []
        if not self._has_same_events():
            in_doubt.append(numbers.unproven(totals.numbers, numbers.tagged_events(events, scope)))
        elif self._is_any("totals/numbers", "is_open"):
            in_doubt.append(totals.numbers.where("is_open").select("persistence_id"))
        lagging = confirmed(
            Delivered(progress, ids),
            lambda progress, ids: progress_findings(
                progress, ids, totals.numbers, by_rows, expires=scope.expired > 0
            ),
            lambda: self._delivered_again(scope),
            self.files,
            self.folder,
        )
        findings = _all([by_rows, of_journal, lagging])
        doubtful = self._doubtful(in_doubt, of_journal)
        if doubtful is not None:
            expected = materialize(
                numbers.expected(events, view, deleted, doubtful, self._numbered(doubtful), scope),
                self._url("expected"),
            )
            findings = findings.unionByName(numbers.wrong_numbers(view, expected, scope))
            findings = findings.join(expected, ["tag", "persistence_id", "sequence_nr"], "left").withColumn(
                "expected_number", F.coalesce("expected_number", "expected")
            )
        findings = materialize(findings.select(*row_comparison.FINDING), self._url("findings"))
        judged = Judged(
            totals,
            deleted,
            lines,
            findings,
            self.untagged,
            audited_at,
            self.files.url(self.folder),
            event_facts(totals.ids, None),
        )
        kept = baseline_frames.nothing(self.spark)
        seen = baseline_frames.Seen(kept, totals, lines, in_clickhouse, ids)
        return judged, seen, scope

    def _doubtful(self, in_doubt: list[DataFrame], of_journal: DataFrame) -> DataFrame | None:
        """Write the persistence ids in doubt, without those that have findings in the journal, and read them back; None if
        there are none.
        """
        if not in_doubt:
            return None
        named = of_journal.select("persistence_id").distinct()
        doubtful = _all(in_doubt).distinct().join(named, "persistence_id", "left_anti")
        written = materialize(doubtful, self._url("doubtful"))
        return written if self.files.has_rows(f"{self.folder}/doubtful") else None

    def _has_same_events(self) -> bool:
        """Return whether the sums of all buckets prove that journal and view have the same events, with the same tags.

        Sums leave out what is deleted, cleaned or expired, so nothing may be; what they cover must be all there is.
        """
        cleaned = (f"cleaned/{size}" for size in self.files.folders(f"{self.folder}/cleaned"))
        left_out = any(self.files.has_rows(f"{self.folder}/{name}") for name in ("deleted", *cleaned))
        if left_out or self._is_any("lines", "cleaned") or self._is_any("lines", "differs"):
            return False
        return self._total("lines", "journal") == self._total("totals/ids", "tagged") and (
            self._total("lines", "view") == self._total("totals/numbers", "rows")
        )

    def _total(self, name: str, column: str) -> int:
        """Return the sum of a column of a staged frame."""
        return self.files.total(f"{self.folder}/{name}", column)

    def _is_any(self, name: str, column: str) -> bool:
        """Return whether a staged frame has a row with a number above 0, or true, in a column."""
        return bool(self.files.largest(f"{self.folder}/{name}", column))

    def _of_tagged(self, findings: DataFrame, events: DataFrame) -> DataFrame:
        """Return the findings without rows of events that have no tags; set `untagged` to the number of
        these.
        """
        from pyspark.sql import functions as F

        from tagmill.audit import row_comparison
        from tagmill.audit.model import Kind

        if not findings.where(F.col("kind") == Kind.EXTRA_IN_VIEW.value).take(1):
            return findings
        left = materialize(row_comparison.without_untagged(findings, events), self._url("of-tagged"))
        self.untagged = count_rows(self._url("compared")) - count_rows(self._url("of-tagged"))
        return left

    def _numbered(self, ids: DataFrame) -> DataFrame:
        """Return tag_write_progress of these persistence ids: tag, persistence_id, number, reached."""
        progress = self.journal.table("tag_write_progress")
        return progress.rows_of(
            ids, ["persistence_id"], "tag", number="tag_pid_sequence_nr", reached="sequence_nr"
        )

    def _looked_again(self, findings: DataFrame, stored: Any) -> DataFrame:
        """Return the findings without events that have arrived since: the application and deliveries may be
        at work.
        """
        from pyspark.sql import functions as F

        from tagmill.audit.model import Kind

        event = ["kind", "tag", "persistence_id", "sequence_nr"]
        in_view = findings.where(F.col("kind") == Kind.MISSING_IN_VIEW.value)
        in_clickhouse = findings.where(F.col("kind") == Kind.MISSING_IN_CLICKHOUSE.value)
        arrived = []
        if in_view.take(1):
            self.tell("looking again for what is missing in the view")
            where = ["tag_name", "timebucket", "timestamp", "persistence_id"]
            keys = in_view.select(
                "kind",
                "tag",
                "sequence_nr",
                F.col("tag").alias("tag_name"),
                "timebucket",
                F.col("journal_offset").alias("timestamp"),
                "persistence_id",
            )
            there = self.journal.table(self.journal.view_table).rows_of(keys, where)
            arrived.append(there.select(*event))
        if in_clickhouse.take(1):
            self.tell("looking again for what is missing in ClickHouse")
            rows = stored.rows("rows-again", in_clickhouse.select("tag", F.col("timebucket").alias("bucket")))
            offsets = rows.select(*event[1:], F.col("offset").alias("journal_offset"))
            there = in_clickhouse.join(offsets, [*event[1:], "journal_offset"])
            arrived.append(there.select(*event))
        for keys in arrived:
            findings = findings.join(keys.distinct(), event, "left_anti").select(*findings.columns)
        return findings

    def _deliveries(self) -> tuple[int, RunState | None]:
        """Return the newest run and its state, which change when a run begins or ends."""
        last = self.ledger.last_run(self.name)
        run = self.ledger.run(self.name, last)
        return last, run.state if run else None

    def _closed_run(self) -> int:
        """Return the newest run that was closed when the audit began; 0 if there was none."""
        last, state = self.deliveries
        return last - 1 if state and state.is_open else last

    def _holds(self, scope: Scope) -> DataFrame:
        holds = [
            (hold.tag, hold.persistence_id) for hold in self.ledger.delivered.holds(self.name, scope.tags)
        ]
        return self.spark.createDataFrame(holds, "tag string, persistence_id string")

    # -- what stays

    def _finish(self, row: AuditRow, made: AuditReport) -> None:
        self.audits.finish(
            replace(
                row,
                state=AuditState.DONE,
                done_at=made.done_at,
                agrees=made.agrees,
                journal_rows=made.journal,
                view_rows=made.view,
                clickhouse_rows=made.clickhouse,
                findings={kind.value: count for kind, count in made.findings.items()},
                docs=made.docs,
            )
        )

    def _sweep(self, row: AuditRow) -> None:
        """Remove files of other audits than this one and the last one that is DONE, which a repair reads.

        Of the last audit of a tag, which `status` repeats, the results are kept. Files of later audits stay: one may
        have been done while this one slept.
        """
        from tagmill.audit.baseline import is_baseline

        last = self.audits.last_done()
        of_tags = self.audits.last_done_of(self.pipeline.tags).values()
        with_all = {audits.folder(self.name, each.audit) for each in (row, last) if each}
        with_results = {audits.folder(self.name, each.audit) for each in of_tags}
        for name in self.files.folders(audits.home(self.name)):
            folder = f"{audits.home(self.name)}/{name}"
            if folder in with_all or is_baseline(name) or name > f"{row.audit:08d}":
                continue
            if folder not in with_results:
                self.files.remove_folder(folder)
                continue
            for staged in self.files.folders(folder):
                if staged not in RESULTS:
                    self.files.remove_folder(f"{folder}/{staged}")

    def _url(self, name: str) -> str:
        return self.files.url(f"{self.folder}/{name}")


def _all(frames: list[DataFrame]) -> DataFrame:
    total, *others = frames
    for frame in others:
        total = total.unionByName(frame)
    return total
