"""Repair what an audit found: correct the view, send damaged batches again, withdraw wrong ones, deliver what
was missing.

Each step begins with the present state and does only what is missing, so a repair that was killed is simply
started again, best with a new audit. What can't be repaired is left untouched and reported, with the reason.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from tagmill.audit import view_repair
from tagmill.audit.audit import audit as run_audit
from tagmill.audit.audit import message
from tagmill.audit.model import FINDING_SCHEMA, AuditReport, Kind
from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.delivery.batch_verification import Stored, stored
from tagmill.delivery.tag_views import steps
from tagmill.delivery.tag_views.interventions import Interventions
from tagmill.delivery.tag_views.run_files import read_manifest
from tagmill.delivery.tag_views.withdraw import Event, undelivered
from tagmill.domain.batches.states import BatchState, RunState
from tagmill.domain.documents import Document
from tagmill.domain.time_buckets import first_ticks
from tagmill.errors import GuardRefused, SealedFileDamaged, about_pipeline
from tagmill.journal.frames import JournalSchema
from tagmill.ledger.audits import AuditRow, Audits, folder, in_words
from tagmill.ledger.runs import Ledger
from tagmill.ledger.same_tables import require_same_tables
from tagmill.runs import checkpoints
from tagmill.runs.progress import Tell
from tagmill.runs.storage import RunFiles
from tagmill.runs.workspace import open_step, open_workspace
from tagmill.spark.errors import explained

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_AT_ONCE = 5000
# Events that one run notes as not delivered; all their persistence ids are in memory together.
NOTED_AT_ONCE = 500_000
# Misplaced rows from which on the bucket size itself may be wrong.
MIN_MISPLACED = 20
# What is true of the data when a repair has left a finding.
KEPT = "What is repaired stays"
# Repairs of one command; the second is made only if the audit after the first shows a wrong batch.
MAX_REPAIRS = 2
IN_BATCHES = (Kind.DUPLICATED_IN_CLICKHOUSE, Kind.EXTRA_IN_CLICKHOUSE, Kind.DIFFERS_IN_CLICKHOUSE)
# What a repair begins with the findings of a kind; those of other kinds it leaves.
_BEGUN = {
    "repair in the view": view_repair.IN_VIEW,
    "send again or withdraw the batches of": (*IN_BATCHES, Kind.PROGRESS_DIFFERS),
    "deliver": (Kind.MISSING_IN_CLICKHOUSE,),
}
COLUMNS = [column.split(" ")[0] for column in FINDING_SCHEMA.split(", ")]
Bucket = tuple[str, int]


class Left(Document):
    """Findings that stay as they are, and why."""

    kind: Kind
    why: str
    count: int
    example: str


class RepairReport(Document):
    """The outcome of a repair.

    `mended`: repaired findings in the view by kind; `runs`: the runs that delivered what was missing.
    """

    pipeline: str
    audit: int
    mended: dict[Kind, int]
    resent: list[str]
    withdrawn: list[str]
    undelivered: int
    runs: list[int]
    delivered: int
    left: list[Left]

    @property
    def message(self) -> str:
        """The report in one line."""
        return (
            f"pipeline {self.pipeline}, audit {self.audit}: {sum(self.mended.values())} findings repaired "
            "in the view, "
            f"{len(self.resent)} batches sent again, {len(self.withdrawn)} withdrawn, {self.delivered} "
            "rows delivered, "
            f"{sum(line.count for line in self.left)} findings left"
        )


class Outcome(AuditReport):
    """The last audit's report, and the repairs before it; in a dry run there was none."""

    dry_run: bool
    repairs: list[RepairReport]

    @property
    def lines(self) -> list[RepairReport]:
        """The repairs, for the log of a job."""
        return self.repairs

    @property
    def message(self) -> str:
        """The outcome in one line; in a dry run, what a repair would begin, and the page of the findings."""
        return f"{preview(self)}. See {self.docs}" if self.dry_run else message(self)


def preview(report: AuditReport) -> str:
    """Return what a repair of an audit's findings would begin, in a sentence."""
    groups = dict(_BEGUN)
    groups["leave"] = tuple(set(Kind).difference(*_BEGUN.values()))
    clauses = [
        f"{verb} {in_words(findings)}"
        for verb, kinds in groups.items()
        if (findings := {kind: count for kind, count in report.findings.items() if count and kind in kinds})
    ]
    return (
        f"pipeline {report.pipeline}: a repair of audit {report.audit} would {', '.join(clauses)}. It looks at "
        "each row again before it changes it"
        if clauses
        else f"pipeline {report.pipeline}: audit {report.audit} found nothing to repair"
    )


@about_pipeline
def audit_and_repair(
    settings: Settings,
    pipeline: str,
    *,
    spark: "SparkSession",
    owner: str,
    who: str,
    why: str | None,
    full: bool = False,
    tell: Tell | None = None,
    despite_views: bool = False,
    first: AuditReport | None = None,
    dry_run: bool = False,
) -> Outcome:
    """Audit, and unless it is a dry run repair what is found and audit again.

    `first` is the report of an audit that has just ended; without it, a first audit is made, a `full` one if that is asked for.

    Repairs once more if only the second audit shows a wrong batch: it had been damaged, or an event has its
    right number only now.
    """
    audited = partial(run_audit, settings, pipeline, owner=owner, spark=spark, tell=tell)
    found = first or audited(full=full)
    done = list[RepairReport]()
    while not (dry_run or found.agrees) and (
        not done or (len(done) < MAX_REPAIRS and any(found.findings.get(kind) for kind in IN_BATCHES))
    ):
        done.append(
            repair(
                settings,
                pipeline,
                found.audit,
                spark=spark,
                owner=owner,
                who=who,
                why=str(why),
                tell=tell,
                despite_views=despite_views,
            )
        )
        found = audited()
    last = {name: getattr(found, name) for name in AuditReport.model_fields}
    return Outcome(**last, dry_run=dry_run, repairs=done)


def repair(
    settings: Settings,
    pipeline: str,
    audit: int,
    *,
    spark: "SparkSession",
    owner: str,
    who: str,
    why: str,
    tell: Tell | None = None,
    despite_views: bool = False,
) -> RepairReport:
    """Repair what a finished audit has found. `who` and `why` are recorded; `tell` is called with each step.

    If materialized views depend on the destination, its batches are left as they are unless `despite_views`.

    Raises GuardRefused (there is no such audit), LeaseTaken, FenceRaised, and what a delivery raises.
    """
    interventions = Interventions(settings, pipeline, owner, who, why, despite_views=despite_views)
    return _Repair(settings, pipeline, audit, spark, interventions, tell or (lambda _: None)).run()


class _Repair:
    """One repair of one pipeline."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        audit: int,
        spark: "SparkSession",
        interventions: Interventions,
        tell: Tell,
    ) -> None:
        self.settings = settings
        self.name = name
        self.pipeline = settings.pipeline(name)
        self.audit = audit
        self.spark = spark
        self.interventions = interventions
        self.owner = interventions.owner
        self.tell = tell
        self.files = RunFiles(settings.storage.root)
        self.folder = folder(name, audit)
        self.left: Counter[tuple[Kind, str]] = Counter()
        self.examples: dict[tuple[Kind, str], str] = {}
        self.runs_of: dict[UUID, int] = {}
        # VOIDED batches that ClickHouse has.
        self.voided: list[Stored] = []
        self.runs: list[int] = []
        self.delivered = 0

    def run(self) -> RepairReport:
        """Repair the view and the batches, deliver what was missing, and return the report."""
        self._finish_open()
        in_view = self._repair_view()
        checkpoints.reached("repair.mended")
        buckets = set(in_view.buckets)
        buckets.update((event.tag, event.timebucket) for events in self._missing() for event in events)
        resent = self._resend(in_view)
        withdrawn = [*self._take_out_voided(), *self._withdraw(in_view, resent, buckets)]
        undelivered = self._note_undelivered()
        checkpoints.reached("repair.before_reread")
        self._deliver(sorted(self._passed(buckets), key=lambda bucket: (bucket[1], bucket[0])))
        self.left.update(in_view.left)
        self.examples.update(in_view.examples)
        return RepairReport(
            pipeline=self.name,
            audit=self.audit,
            mended=dict(in_view.repaired),
            resent=[str(batch) for batch in resent],
            withdrawn=[str(batch) for batch in withdrawn],
            undelivered=undelivered,
            runs=self.runs,
            delivered=self.delivered,
            left=[
                Left(kind=kind, why=reason, count=count, example=self.examples[kind, reason])
                for (kind, reason), count in self.left.items()
            ],
        )

    # -- the view

    def _repair_view(self) -> view_repair.Repaired:
        """Repair the view under the pipeline's lease, so that no build of ours gives numbers meanwhile."""
        with open_step(self.settings, self.name, owner=self.owner, wait=True) as workspace:
            ledger = workspace.ledger
            audited = self._audited(ledger)
            require_same_tables(self.settings, workspace.cassandra, self.name, "Nothing was changed")
            journal = JournalSchema.load_checked(workspace.cassandra, self.pipeline.journal)
            kinds = [kind for kind in view_repair.IN_VIEW if audited.findings.get(kind)]
            if not kinds:
                done = view_repair.Repaired()
            elif self._wrong_bucket_size(audited):
                done = self._all_left(audited, kinds)
            else:
                self.interventions.record(
                    workspace,
                    f"repair of audit {self.audit}: {self.pipeline.view_table} of {self.pipeline.keyspace}",
                )
                with explained(workspace.cassandra.where, KEPT):
                    view_repair.stage(
                        self.spark, self.files.url(self.folder), self.files.url(f"{self.folder}/repair")
                    )
                checkpoints.reached("repair.staged")
                with workspace.clickhouse() as clickhouse:
                    repairer = view_repair.ViewRepairer(
                        self.settings,
                        self.name,
                        workspace.cassandra,
                        clickhouse,
                        journal=journal,
                        tell=self.tell,
                    )
                    done = repairer.run(self.files, f"{self.folder}/repair")
            workspace.give_back()
            return done

    def _audited(self, ledger: Ledger) -> AuditRow:
        audits = Audits(ledger.cassandra, self.settings.cassandra.ledger_keyspace, self.name)
        row = audits.last_done()
        if row is None or row.audit != self.audit:
            raise GuardRefused(
                f"pipeline {self.name}: audit {self.audit} is not the last one that came to its end. "
                "Nothing was changed; "
                f"audit again: tagmill audit --pipeline {self.name}",
                pipeline=self.name,
            )
        return row

    def _wrong_bucket_size(self, audited: AuditRow) -> bool:
        misplaced = audited.findings.get(Kind.MISPLACED, 0)
        share = self.pipeline.quality.max_wrong_bucket_share_percent
        return misplaced >= MIN_MISPLACED and misplaced * 100 > share * (audited.view_rows or 0)

    def _all_left(self, audited: AuditRow, kinds: list[Kind]) -> view_repair.Repaired:
        done = view_repair.Repaired()
        for kind in kinds:
            done.left[kind, view_repair.Left.BUCKET_SIZE] = audited.findings[kind]
            done.examples[kind, view_repair.Left.BUCKET_SIZE] = (
                f"bucket_size is {self.pipeline.bucket_size.value}"
            )
        return done

    # -- batches

    def _resend(self, in_view: view_repair.Repaired) -> list[UUID]:
        """Send the batches again whose rows in ClickHouse are not the sealed ones; return their ids."""
        if not in_view.batches and not self._found(
            Kind.MISSING_IN_CLICKHOUSE, Kind.PROGRESS_DIFFERS, *IN_BATCHES
        ):
            return []
        self.tell("holding ClickHouse's batches against the sealed ones")
        with open_workspace(self.settings, self.name) as workspace, workspace.clickhouse() as clickhouse:
            batches, unknown = stored(workspace, clickhouse, self.pipeline.destination, read_manifest)
        for batch in unknown:
            self._leave(
                Kind.EXTRA_IN_CLICKHOUSE, "no run has this batch; whose rows are they?", f"batch {batch}"
            )
        done: list[UUID] = []
        wrong = [one for one in batches if not one.agrees and one.batch.state == BatchState.IN_CLICKHOUSE]
        wrong += [
            one for one in batches if one.batch.state == BatchState.NEW
        ]  # sending it again was interrupted
        for one in wrong:
            self.tell(f"sending batch {one.batch.batch_id} again")
            try:
                self.interventions.resend(one.batch.batch_id, one.run)
            except (GuardRefused, SealedFileDamaged) as refused:
                self._leave(
                    Kind.DIFFERS_IN_CLICKHOUSE, str(refused), f"batch {one.batch.batch_id}", one.batch.rows
                )
                continue
            checkpoints.reached("repair.resent")
            done.append(one.batch.batch_id)
        self.voided = [one for one in batches if one.batch.state == BatchState.VOIDED and one.there]
        self.runs_of = {
            one.batch.batch_id: one.run for one in batches if one.batch.state != BatchState.VOIDED
        }
        return done

    def _take_out_voided(self) -> list[UUID]:
        """Remove the rows of VOIDED batches, which a restored ClickHouse has again; return the batches' ids."""
        done: list[UUID] = []
        for one in self.voided:
            batch = one.batch.batch_id
            self.tell(f"taking out batch {batch}, which is VOIDED")
            try:
                self.interventions.take_out_voided(batch, one.run)
            except GuardRefused as refused:
                self._leave(Kind.DUPLICATED_IN_CLICKHOUSE, str(refused), f"batch {batch}", one.batch.rows)
                continue
            done.append(batch)
        return done

    def _withdraw(
        self, in_view: view_repair.Repaired, resent: list[UUID], buckets: set[Bucket]
    ) -> list[UUID]:
        """Withdraw batches that were sealed when the view was wrong; return their ids.

        Adds to `buckets` where the view has their events now.
        """
        done: list[UUID] = []
        wrong = {batch: (Kind.WRONG_NUMBER, 1) for batch in in_view.batches} | self._wrong_batches()
        for batch, (kind, count) in wrong.items():
            if batch in resent or batch not in self.runs_of:
                continue  # sent again above, of no run, or withdrawn by an earlier attempt
            self.tell(f"withdrawing batch {batch}")
            try:
                buckets.update(self.interventions.taken_out(batch, self.runs_of[batch]))
            except (GuardRefused, SealedFileDamaged) as refused:
                self._leave(kind, str(refused), f"batch {batch}", count)
                continue
            checkpoints.reached("repair.withdrawn")
            done.append(batch)
        return done

    def _wrong_batches(self) -> dict[UUID, tuple[Kind, int]]:
        """Return the batches that findings name, with the kind and the number of the findings.

        Of an event that a VOIDED batch has as well, the audit may have named the other batch as the double.
        """
        found: dict[UUID, tuple[Kind, int]] = {}
        kinds = [kind for kind in IN_BATCHES if not (self.voided and kind is Kind.DUPLICATED_IN_CLICKHOUSE)]
        for part in self._findings(*kinds):
            for row in part:
                if row["batch_id"]:
                    batch = UUID(row["batch_id"])
                    kind, count = found.get(batch, (Kind(row["kind"]), 0))
                    found[batch] = (kind, count + 1)
        return found

    # -- what was never delivered

    def _note_undelivered(self) -> int:
        """Note events in progress as not delivered if it has passed them but ClickHouse lacks them; return
        how many.

        Each group of events gets a run of its own.
        """
        noted, before = 0, None
        with Ledger(self.settings.cassandra) as ledger, ClickHouse(self.settings.clickhouse) as clickhouse:
            try:
                while (first := next(lost := self._lost(ledger, clickhouse), None)) is not None:
                    self._must_have_moved(first, before)
                    group = islice(chain([first], lost), NOTED_AT_ONCE)
                    noted, before = noted + self.interventions.note_undelivered(group), first
                    self.tell(f"{noted} events noted as not delivered")
            except GuardRefused as refused:
                self._leave(Kind.MISSING_IN_CLICKHOUSE, str(refused), f"table {self.pipeline.destination}")
        return noted

    def _must_have_moved(self, first: Event, before: Event | None) -> None:
        """Raise GuardRefused if the first event to note is the one that was noted before, so that progress
        did not change.
        """
        if first == before:
            raise GuardRefused(
                f"pipeline {self.name}: progress of persistence_id {first.persistence_id!r}, tag "
                f"{first.tag!r} is not what was written to "
                "it: a row of the ledger with a later write time outranks it. Nothing more was noted; "
                "look at it: "
                f"tagmill check --pipeline {self.name}",
                pipeline=self.name,
            )

    def _lost(self, ledger: Ledger, clickhouse: ClickHouse) -> Iterator[Event]:
        for events in self._missing():
            there = clickhouse.present(
                self.pipeline.destination,
                {(event.tag, event.persistence_id, event.sequence_nr) for event in events},
            )
            known = list(
                ledger.delivered.progress(self.name, [(event.tag, event.persistence_id) for event in events])
            )
            passed = (
                event
                for event, progress in zip(events, known, strict=True)
                if progress is not None and progress.delivered(event.number)
            )
            yield from undelivered(passed, there)

    def _missing(self) -> Iterator[list[Event]]:
        """Yield groups of events that ClickHouse should have, under the numbers that the view has or is to
        have.
        """
        for part in self._findings(Kind.MISSING_IN_CLICKHOUSE):
            yield [
                Event(
                    row["tag"],
                    row["persistence_id"],
                    row["sequence_nr"],
                    number,
                    row["timebucket"],
                    row["writer_uuid"],
                )
                for row in part
                if (number := row["expected_number"] or row["view_number"]) is not None
                and row["timebucket"] is not None
            ]

    def _passed(self, buckets: set[Bucket]) -> Iterator[Bucket]:
        """Return the buckets that a watermark has passed; an ordinary run delivers the others."""
        with Ledger(self.settings.cassandra) as ledger:
            marks = ledger.delivered.watermarks(self.name)
        return (
            (tag, bucket)
            for tag, bucket in buckets
            if tag in marks and first_ticks(bucket) <= marks[tag].ticks
        )

    def _deliver(self, buckets: list[Bucket]) -> None:
        """Read these buckets again, then look at the holds.

        A hold freezes its persistence_id: if one ended, the buckets are read once more.
        """
        self._reread(buckets)
        held = self._holds()
        self._ordinary()
        if self._holds() < held:
            self._reread(buckets)

    def _reread(self, buckets: list[Bucket]) -> None:
        """Read these buckets again, run by run."""
        while buckets:
            self.tell(f"delivering what was missing: {len(buckets)} buckets")
            planned = steps.plan(self.settings, self.name, owner=self.owner, buckets=buckets)
            buckets = buckets[planned["buckets"] :]
            if planned["run"] is not None:
                self._finish(planned)

    def _ordinary(self) -> None:
        """Deliver what is new up to now, run by run."""
        self.tell("delivering what is new, and looking at the holds")
        while True:
            planned = steps.plan(self.settings, self.name, owner=self.owner)
            if planned["run"] is None or not self._finish(planned)["more"]:
                return

    def _holds(self) -> int:
        with Ledger(self.settings.cassandra) as ledger:
            return sum(1 for _ in ledger.delivered.holds(self.name, self.pipeline.tags))

    def _finish_open(self) -> None:
        """Finish a run that was left unfinished."""
        with Ledger(self.settings.cassandra) as ledger:
            left = ledger.open_run(self.name)
        if left is not None:
            self._finish(steps.plan(self.settings, self.name, owner=self.owner))

    def _finish(self, planned: dict[str, Any]) -> dict[str, Any]:
        run, fence = planned["run"], planned["fence"]
        if planned["state"] == RunState.PLANNED:
            steps.seal(self.settings, self.name, run, fence, owner=self.owner, spark=lambda: self.spark)
        steps.push(self.settings, self.name, run, fence, owner=self.owner)
        closed = steps.close(self.settings, self.name, run, fence, owner=self.owner)
        self.runs.append(run)
        self.delivered += closed["rows"]
        return closed

    # -- findings

    def _found(self, *kinds: Kind) -> bool:
        return any(part for part in self._findings(*kinds))

    def _findings(self, *kinds: Kind) -> Iterator[list[dict[str, Any]]]:
        """Yield the staged findings of these kinds, some rows at a time."""
        wanted = pa.array([kind.value for kind in kinds], pa.string())
        for part in self.files.record_batches(f"{self.folder}/findings", ROWS_AT_ONCE, COLUMNS):
            rows = part.filter(pc.is_in(part["kind"], value_set=wanted)).to_pylist()
            if rows:
                yield rows

    def _leave(self, kind: Kind, why: str, example: str, count: int = 1) -> None:
        self.left[kind, why] += count
        self.examples.setdefault((kind, why), example)
