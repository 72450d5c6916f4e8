"""Brings the ledger of a topic or a Kafka Journal forward: its lost runs are closed again, from their
manifests in the storage.

Only a manifest knows which records a run has read, and only its batches' files have the ids of what it
delivered.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from tagmill.delivery.topics.model import TopicManifest, TopicPlan
from tagmill.delivery.topics.run_files import read_plan
from tagmill.delivery.topics.seal import note_ids_again
from tagmill.delivery.topics.steps import close_run
from tagmill.domain.batches.states import RunState
from tagmill.errors import GuardRefused
from tagmill.ledger.runs import RunRow
from tagmill.maintenance.ledger_restore import runs
from tagmill.maintenance.ledger_restore.unknown_batches import UnknownBatch, belongs, manifest_files
from tagmill.runs import checkpoints
from tagmill.runs.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


class TopicRestore:
    """The ledger of one pipeline and the batches that it doesn't know."""

    def __init__(
        self, workspace: Workspace, batches: list[UnknownBatch], spark: Callable[[], SparkSession]
    ) -> None:
        self.workspace, self.ledger, self.name = workspace, workspace.ledger, workspace.name
        self.files, self.batches, self.spark = workspace.files, batches, spark

    def run(self) -> None:
        """Close the lost runs again, in their order; doing it again writes the same."""
        for run, file, of_run in self.manifests():
            manifest = TopicManifest.model_validate_json(self.files.read(file))
            runs.add_batches(self.ledger, self.name, run, manifest.batches, of_run)
            plan = runs.plan_file(self.files, self.name, run, lambda content, of=manifest: _fits(content, of))  # type: ignore[misc]
            runs.add_run(self.workspace, run, RunState.SEALED, file, plan)
            row = self._sealed(run, file)
            if row is not None and row.state == RunState.SEALED:
                made_from = read_plan(self.files, row)
                if made_from.rule:
                    note_ids_again(self.workspace, self.spark, manifest, made_from)
                checkpoints.reached("restore.ids_noted")
                close_run(self.workspace, run, row.fence)

    def _sealed(self, run: int, file: str) -> RunRow | None:
        """Return the run; one that the ledger had only planned becomes the sealed one that it was."""
        row = self.ledger.run(self.name, run)
        if row is not None and row.state == RunState.PLANNED:
            row = self.ledger.raise_fence(row, "ledger restore")
            self.ledger.seal(self.name, run, row.fence, file, self.files.digest(file)[1])
            row = self.ledger.run(self.name, run)
        return row

    def manifests(self) -> list[tuple[int, str, list[UnknownBatch]]]:
        """Return each lost run with its manifest.

        Raises GuardRefused if one is not in the storage, or the ledger has given its number to other work.
        """
        found = []
        for run, some in groupby(self.batches, key=lambda batch: batch.origin.run):
            of_run = list(some)
            row = self.ledger.run(self.name, run)
            if row is not None and (row.kind != runs.KIND or row.state == RunState.ABANDONED):
                raise GuardRefused(
                    f"pipeline {self.name}: the ledger has given the number of run {run}, which ClickHouse has "
                    f"batches of, to other work ({row.kind}, {row.state}, {row.reason}). Nothing was changed. "
                    "Restore the ledger once more from the same backup, then again: tagmill ledger restore "
                    f"--pipeline {self.name}",
                    pipeline=self.name,
                    run=run,
                )
            file = next(
                (file for file in manifest_files(self.files, self.name, run) if self._belongs(file, of_run)),
                None,
            )
            if file is None:
                raise GuardRefused(
                    f"pipeline {self.name}: {self.files.url(self.files.folder(self.name, run))} has no "
                    "manifest of the batches that "
                    f"ClickHouse has of run {run}, so what it read is not known. Nothing was changed. "
                    "Restore that folder from a "
                    f"backup, then again: tagmill ledger restore --pipeline {self.name}",
                    pipeline=self.name,
                    run=run,
                )
            found.append((run, file, of_run))
        return found

    def _belongs(self, file: str, batches: list[UnknownBatch]) -> bool:
        return belongs(TopicManifest.model_validate_json(self.files.read(file)), batches)


def _fits(content: bytes, manifest: TopicManifest) -> bool:
    plan = TopicPlan.model_validate_json(content)
    return plan.ranges == manifest.ranges
