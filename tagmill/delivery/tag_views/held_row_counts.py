"""Count what open holds keep back if rows may have come late to them: no run reads such rows as new rows.

The judgement counts the holds that a run judges again. To the others a run adds its new rows, unless it has
read late rows: then the view is read from their gaps to the watermark, key columns only.
"""

from collections.abc import Iterable
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.config.tag_views import PipelineSettings
from tagmill.delivery.tag_views import suspects
from tagmill.delivery.tag_views.holds import gap_buckets
from tagmill.delivery.tag_views.judge import Key
from tagmill.delivery.tag_views.look_back import HOUR_TICKS
from tagmill.delivery.tag_views.model import Plan
from tagmill.delivery.tag_views.working_rows import WorkingRows
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND
from tagmill.ledger.progress import HoldRow, Watermark
from tagmill.ledger.runs import Ledger
from tagmill.spark.cassandra_table import CassandraTable
from tagmill.spark.columns import offset_ticks

KEY = list(suspects.KEY)
BUCKETS = "tag string, persistence_id string, first bigint, last bigint, until bigint"


class Recount:
    """The recount of one run. `frozen`: its open holds that it does not judge again."""

    def __init__(
        self,
        spark: SparkSession,
        ledger: Ledger,
        pipeline: PipelineSettings,
        plan: Plan,
        frozen: list[HoldRow],
    ) -> None:
        self.spark, self.ledger, self.pipeline, self.plan, self.frozen = spark, ledger, pipeline, plan, frozen
        self.marks = ledger.delivered.watermarks(plan.pipeline)

    def rows(self, keys: DataFrame, held: WorkingRows | None) -> dict[Key, int]:
        """Return the number of held rows of each hold to which rows may have come late.

        In: the key rows of the run; `held` are those of them that belong to `frozen`.
        """
        if held is None or self.plan.first:
            return {}
        late = self._may_be_late(keys)
        if late is None:
            return {}
        doubtful = {
            (row.tag, row.persistence_id) for row in held.frame.where(late).select(*KEY).distinct().collect()
        }
        return self._counted([hold for hold in self.frozen if (hold.tag, hold.persistence_id) in doubtful])

    def _may_be_late(self, keys: DataFrame) -> Column | None:
        """Return a condition over key rows that may have come late, or None if there are none.

        Such rows were read again from where the view has other rows than when it was last read.
        """
        again, ticks = ~F.col("is_new"), F.col("event_time")
        changed: list[Column] = []
        for tag, span in self.plan.tags.items():
            of_tag = F.col("tag") == tag
            if self.plan.reread or tag in self.plan.filled_tags or span.back_from is not None:
                changed.append(of_tag)
                continue
            if hours := self.plan.look_back.get(tag):
                begins = [hour.begin * TICKS_PER_MILLISECOND for hour in hours]
                changed.append(of_tag & again & (ticks - F.pmod(ticks, F.lit(HOUR_TICKS))).isin(begins))
            if (mark := self.marks.get(tag)) and self._other_rows(keys, mark):
                changed.append(of_tag & again & (ticks > mark.window_from) & (ticks <= mark.ticks))
        return reduce(or_, changed) if changed else None

    def _other_rows(self, keys: DataFrame, mark: Watermark) -> bool:
        """Return whether a tag's look-back window holds another number of rows than when a run left it."""
        first = self.pipeline.bucket_size.start(max(mark.window_from, 0))
        time, bucket = F.col("event_time"), F.col("timebucket")
        of_window = (time > mark.window_from) & (time <= mark.ticks) & (bucket >= first)
        return (
            keys.where((F.col("tag") == mark.tag) & ~F.col("is_new") & of_window).count() != mark.window_rows
        )

    def _counted(self, holds: list[HoldRow]) -> dict[Key, int]:
        """Count the undelivered rows of each hold from its gap to the watermark that the run leaves
        behind.
        """
        if not holds:
            return {}
        known = self.ledger.delivered.progress(
            self.plan.pipeline, ((hold.tag, hold.persistence_id) for hold in holds)
        )
        size, spans = self.pipeline.bucket_size, []
        for hold, progress in zip(holds, known, strict=True):
            first, until = (
                gap_buckets(size, progress, hold, self.pipeline.start_ticks(hold.tag))[0],
                self._until(hold.tag),
            )
            spans.append((hold.tag, hold.persistence_id, first, size.start(until), until))
        ids = self.spark.createDataFrame(spans, BUCKETS)
        ids = suspects.with_progress(ids, self.ledger.cassandra, self.plan.pipeline, none_yet=False)
        of_hold = (F.col("timebucket") >= F.col("first")) & (F.col("event_time") <= F.col("until"))
        waiting = self._view_rows(spans).join(F.broadcast(ids), KEY).where(of_hold)
        counts = waiting.where(~suspects.was_delivered()).groupBy(*KEY).count().collect()
        return {(hold.tag, hold.persistence_id): 0 for hold in holds} | {
            (r.tag, r.persistence_id): int(r["count"]) for r in counts
        }

    def _until(self, tag: str) -> int:
        mark, span = self.marks.get(tag), self.plan.tags[tag]
        return span.until if self.plan.moves_watermark else mark.ticks if mark else span.after

    def _view_rows(self, spans: Iterable[tuple[str, str, int, int, int]]) -> DataFrame:
        """Return the key columns of all rows in the tags' buckets, from their first gap to the watermark."""
        first: dict[str, int] = {}
        for tag, _, begin, _, _ in spans:
            first[tag] = min(begin, first.get(tag, begin))
        step = self.pipeline.bucket_size.milliseconds
        of_tags = [
            (tag, begin, self.pipeline.bucket_size.start(self._until(tag))) for tag, begin in first.items()
        ]
        buckets = self.spark.createDataFrame(of_tags, "tag_name string, first bigint, last bigint").select(
            "tag_name",
            F.explode(F.sequence("first", F.greatest("first", "last"), F.lit(step))).alias("timebucket"),
        )
        view = CassandraTable(self.ledger.cassandra, self.pipeline.keyspace, self.pipeline.view_table)
        of_row = ("persistence_id", "tag_pid_sequence_nr", "sequence_nr")
        return view.rows_of(buckets, ["tag_name", "timebucket"], *of_row, offset="timestamp").select(
            F.col("tag_name").alias("tag"),
            "timebucket",
            "persistence_id",
            "tag_pid_sequence_nr",
            F.coalesce("sequence_nr", F.lit(0).cast("bigint")).alias("sequence_nr"),
            "offset",
            offset_ticks(F.col("offset")).alias("event_time"),
        )
