"""Find the holds that a run would have opened if the quality gate had not stopped it."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tagmill.delivery.tag_views import holds
from tagmill.delivery.tag_views.judge import Key
from tagmill.delivery.tag_views.model import Plan
from tagmill.delivery.tag_views.seal_outputs import HOLD_SCHEMA, hold_record
from tagmill.delivery.tag_views.suspects import KEY
from tagmill.delivery.tag_views.working_rows import WorkingRows
from tagmill.domain.continuity.model import Hole
from tagmill.ledger.progress import HoldRow
from tagmill.runs.storage import RunFiles

# Holds that one stop records: every later run keeps open holds in memory. If there are more, the next run
# stops again.
MAX_HOLDS = 100_000
ROWS_AT_ONCE = 10_000
# Rules of the gate about single persistence_ids; a stop by another rule makes the judgement not worth
# recording.
ABOUT_IDS = {"held_share", "keys"}


@dataclass(frozen=True, slots=True)
class Judged:
    """The frames that the judgement and the gate used, and the files of new rows.

    `decisions` is JUDGED_SCHEMA (None: nothing was in doubt), `rows` are the gate's rows, `waiting` the open
    holds.
    """

    decisions: WorkingRows | None
    rows: DataFrame
    waiting: DataFrame | None
    files: list[str]


def open_holds(plan: Plan, frozen: list[HoldRow]) -> list[Key]:
    """Return the keys of all holds that were open before the run."""
    looked = [(look.tag, look.persistence_id) for look in plan.holds]
    return looked + [(hold.tag, hold.persistence_id) for hold in frozen]


def write(files: RunFiles, file: str, plan: Plan, judged: Judged) -> int:
    """Write the new holds to a file of HOLD_SCHEMA; return how many."""
    written = 0
    remaining = islice(_rows(plan, judged), MAX_HOLDS)
    with files.create(file) as target, pq.ParquetWriter(target, HOLD_SCHEMA, compression="zstd") as writer:
        while group := list(islice(remaining, ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(group, schema=HOLD_SCHEMA))
            written += len(group)
    return written


def _rows(plan: Plan, judged: Judged) -> Iterator[dict[str, Any]]:
    """Yield a record of HOLD_SCHEMA for each new hold."""
    broken = judged.rows.where("bad_key").groupBy(*KEY).agg(F.min("ticks").alias("ticks"))
    if judged.decisions is not None:
        decisions = judged.decisions.frame
        yield from _held(plan, judged, decisions)
        held = decisions.where("kind = 'held'").select(*KEY)
        broken = broken.join(held, list(KEY), "left_anti")
    for row in broken.toLocalIterator():
        from_ticks = plan.tags[row.tag].after + 1 if row.ticks is None else row.ticks
        yield hold_record(holds.set_apart(row.tag, row.persistence_id, from_ticks, plan.run, plan.planned_at))


def _held(plan: Plan, judged: Judged, decisions: DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the holds that the rules found.

    `held_rows` counts only rows before the watermark: the others stay new, and the next run reads and counts
    them.
    """
    held, key = decisions.where("kind = 'held'"), list(KEY)
    if judged.waiting is not None:
        held = held.join(F.broadcast(judged.waiting), key, "left_anti")
    again = decisions.where("kind = 'row' AND action = 'hold'").where(~F.col("file").isin(judged.files))
    behind = again.groupBy(*KEY).agg(F.count(F.lit(1)).alias("behind"))
    for row in held.join(behind, key, "left").toLocalIterator():
        hole = Hole(row.tag_pid_sequence_nr, row.last_missing, row.after_sequence_nr, row.before_sequence_nr)
        yield hold_record(
            HoldRow(
                row.tag,
                row.persistence_id,
                row.reason,
                hole,
                row.ticks,
                row.behind or 0,
                plan.run,
                plan.planned_at,
                seen="",
            )
        )
