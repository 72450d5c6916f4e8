"""Seal a run of few rows without Spark: read and judge its rows, and fix its batches."""

import pyarrow as pa

from tagmill.delivery.tag_views import file_summaries, seal_outputs
from tagmill.delivery.tag_views.few_rows import judgement, reports, staging
from tagmill.delivery.tag_views.few_rows.batches import Batches
from tagmill.delivery.tag_views.few_rows.recount import recounted
from tagmill.delivery.tag_views.few_rows.staging import StagedFile
from tagmill.delivery.tag_views.gap_evidence import GapInvestigator
from tagmill.delivery.tag_views.model import Manifest
from tagmill.delivery.tag_views.sealing import Sealing
from tagmill.runs import checkpoints


def seal(sealing: Sealing) -> Manifest | None:
    """Do everything except the commit; return the manifest, or None if the run is left to Spark.

    Raises DataQualityStop (the run is then ABANDONED, nothing was sealed).
    """
    plan, pipeline = sealing.plan, sealing.pipeline
    if not plan.reads_few(pipeline.small_run_rows):
        return None
    folder = f"{sealing.folder}/staged"
    staged = staging.stage(
        sealing.views, plan, sealing.files, folder, pipeline.small_run_rows, pipeline.batch_rows
    )
    if staged is None:
        return None
    checkpoints.reached("seal.staged")
    investigation = GapInvestigator(sealing.ledger, sealing.views, plan, pipeline)
    summaries, totals = _summed(sealing, staged)
    verdict = judgement.judge(sealing, staged, summaries, investigation)
    held_rows = recounted(sealing, staged, verdict)
    if held_rows is None:
        return None
    checkpoints.reached("seal.judged")
    checked = reports.check(sealing, staged, verdict)
    batches = Batches(sealing, staged, summaries, totals, verdict, investigation.backfilled)
    contents = batches.write()
    checkpoints.reached("seal.cut")
    return seal_outputs.manifest(
        seal_outputs.SealInputs(
            sealing.files,
            plan,
            pipeline,
            sealing.attempt,
            sealing.folder,
            contents,
            verdict.decisions,
            verdict.frozen,
            verdict.frozen_rows,
            held_rows,
            investigation.backfilled,
            checked.docs_page,
            batches.write_progress,
        )
    )


def _summed(sealing: Sealing, staged: list[StagedFile]) -> tuple[pa.Table, list[file_summaries.FileTotal]]:
    """Return the summaries of the new files (file_summaries.SUMMARY), and the totals of all."""
    plan, size = sealing.plan, sealing.pipeline.bucket_size
    windows = file_summaries.windows(plan, size)
    new_units = {file.unit for file in staged if file.is_new}
    summaries, totals = list[pa.RecordBatch](), list[file_summaries.FileTotal]()
    for file in staged:
        rows = file.rows.select(file_summaries.COLUMNS)
        found = file_summaries.summary(rows, file.name, windows)
        totals.append(file_summaries.total_of(found, rows, new_units, size))
        if file.is_new:
            summaries.append(found)
    totals.sort(key=lambda total: (total.tag, total.unit, total.file))
    return pa.Table.from_batches(summaries, file_summaries.SUMMARY), totals
