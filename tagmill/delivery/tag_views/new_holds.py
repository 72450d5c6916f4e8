"""Find the holds that a run would have opened if the quality gate had not stopped it."""

from collections.abc import Iterable, Iterator, Mapping
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
from tagmill.domain.continuity.model import Gap
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


def write(files: RunFiles, file: str, new: Iterable[dict[str, Any]]) -> int:
    """Write new holds, records of HOLD_SCHEMA, to a file, MAX_HOLDS at most; return how many."""
    written = 0
    remaining = islice(new, MAX_HOLDS)
    with files.create(file) as target, pq.ParquetWriter(target, HOLD_SCHEMA, compression="zstd") as writer:
        while group := list(islice(remaining, ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(group, schema=HOLD_SCHEMA))
            written += len(group)
    return written


def found(plan: Plan, judged: Judged) -> Iterator[dict[str, Any]]:
    """Yield a record of HOLD_SCHEMA for each new hold."""
    broken = judged.rows.where("bad_key").groupBy(*KEY).agg(F.min("ticks").alias("ticks"))
    if judged.decisions is not None:
        decisions = judged.decisions.frame
        yield from _held(plan, judged, decisions)
        held = decisions.where("kind = 'held'").select(*KEY)
        broken = broken.join(held, list(KEY), "left_anti")
    for row in broken.toLocalIterator():
        yield broken_record(plan, (row.tag, row.persistence_id), row.ticks)


def broken_record(plan: Plan, key: Key, ticks: int | None) -> dict[str, Any]:
    """Return the hold of a persistence_id with broken keys, the first of them at `ticks`; None: at no known time."""
    from_ticks = plan.tags[key[0]].after + 1 if ticks is None else ticks
    return hold_record(holds.set_apart(*key, from_ticks, plan.run, plan.planned_at))


def held_record(plan: Plan, decision: Mapping[str, Any], behind: int) -> dict[str, Any]:
    """Return a hold that the rules found.

    `behind`: its rows before the watermark. The others stay new, and the next run reads and counts them.
    """
    gap = Gap(
        decision["tag_pid_sequence_nr"],
        decision["last_missing"],
        decision["after_sequence_nr"],
        decision["before_sequence_nr"],
    )
    return hold_record(
        HoldRow(
            decision["tag"],
            decision["persistence_id"],
            decision["reason"],
            gap,
            decision["ticks"],
            behind,
            plan.run,
            plan.planned_at,
            seen="",
        )
    )


def _held(plan: Plan, judged: Judged, decisions: DataFrame) -> Iterator[dict[str, Any]]:
    held, key = decisions.where("kind = 'held'"), list(KEY)
    if judged.waiting is not None:
        held = held.join(F.broadcast(judged.waiting), key, "left_anti")
    again = decisions.where("kind = 'row' AND action = 'hold'").where(~F.col("file").isin(judged.files))
    behind = again.groupBy(*KEY).agg(F.count(F.lit(1)).alias("behind"))
    for row in held.join(behind, key, "left").toLocalIterator():
        yield held_record(plan, row.asDict(), row.behind or 0)
