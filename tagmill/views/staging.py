"""Stage events: Python tasks write what a numbering needs of the rows of messages to files, one a task."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tagmill.arrow import row_groups
from tagmill.cassandra.uuids import of_binary, text, ticks, versions
from tagmill.domain.timeuuid import FUTURE_TICKS
from tagmill.journal.event_batches import event_tags, rows_of_events
from tagmill.journal.flaws import Reason
from tagmill.journal.frames import ID, META, JournalSchema
from tagmill.runs.storage import RunFiles
from tagmill.spark.task_files import Convert, Target

EVENT = {
    "event": pa.binary(), "event_manifest": pa.string(), "ser_id": pa.int32(), "ser_manifest": pa.string(), "writer_uuid": pa.string(),
}  # fmt: skip
META_TYPES = dict(zip(META, (pa.int32(), pa.string(), pa.binary()), strict=True))
# Columns to encode with a dictionary, since their values repeat. `event` is not one of them: counting holds
# the events of a row group in memory, and a dictionary would hide the size that they take there.
REPEATED = [ID, "flaw", "event_manifest", "ser_manifest", "writer_uuid", "tags.list.element"]
Mask = npt.NDArray[np.bool_]


def schema_of(journal: JournalSchema) -> pa.Schema:
    """Return the schema of a staged event.

    Every event has its place and time (`ticks` mean nothing unless the timestamp is a TimeUUID) and `flaw` (a
    Reason, or null). All other columns are null for events without tags.
    """
    keys = {ID: pa.string(), "partition_nr": pa.int64(), "sequence_nr": pa.int64(), "timestamp": pa.string()}
    judged = {"tags": pa.list_(pa.string()), "ticks": pa.int64(), "flaw": pa.string()}
    return pa.schema({**keys, **judged, **EVENT, **(META_TYPES if journal.meta else {})})


@dataclass(frozen=True, slots=True)
class Staging:
    """How the events of one journal are staged.

    `until`: ticks up to which events are old enough; `largest_row`: bytes that a row of the view may have at
    most.
    """

    journal: JournalSchema
    files: RunFiles
    until: int
    largest_row: int

    def of_rows(self, rows: DataFrame, folder: str) -> list[str]:
        """Write these rows of messages to files and return the files; none of them is empty.

        In: the journal's columns, maybe without tag1 to tag3.
        """
        plain = {"timestamp": F.unhex(F.replace("timestamp", F.lit("-"), F.lit("")))}
        if "message" in rows.columns:
            plain["message"] = F.when(F.col("message").isNotNull(), F.lit(b""))
        return self._target(folder).of_frame(rows.withColumns(plain), self._convert())

    def of_batches(self, rows: Iterable[pa.RecordBatch], folder: str) -> list[str]:
        """Write events that this process has read to a file, and return it; none if there are no events."""
        name = self._target(folder).write(row_groups(map(self._convert(), rows)))
        return [name] if name else []

    def of_table(self, spark: SparkSession, folder: str) -> list[str]:
        """Write all of messages, which the tasks themselves read, and return the files."""
        messages = self.journal.table(self.journal.names.messages)
        convert = partial(_events, self._convert())
        return messages.write(spark, self.journal.columns, self._target(folder), convert)

    def _target(self, folder: str) -> Target:
        return Target(self.files, folder, schema_of(self.journal), REPEATED)

    def _convert(self) -> Convert:
        schema = schema_of(self.journal)
        return partial(as_events, schema=schema, until=self.until, largest_row=self.largest_row)


def _events(convert: Convert, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert the events among rows of messages: those that frames.all_events would return."""
    return convert(rows_of_events(rows))


def as_events(rows: pa.RecordBatch, schema: pa.Schema, until: int, largest_row: int) -> pa.RecordBatch:
    """Convert rows of messages to staged events.

    In: `timestamp` as its 16 bytes; of `message`, only whether it is null matters.
    """
    uuids = of_binary(rows["timestamp"])
    tags = event_tags(rows)
    tagged = pc.fill_null(pc.greater(pc.list_value_length(tags), 0), False)
    times = ticks(uuids)
    found = {
        **{name: rows[name] for name in (ID, "partition_nr", "sequence_nr")},
        "timestamp": text(uuids),
        "tags": pc.if_else(tagged, tags, None),
        "ticks": pa.array(times),
    }
    found["flaw"] = _flaws(
        rows,
        tagged.to_numpy(zero_copy_only=False),
        versions(uuids) == 1,
        times,
        until,
        _too_large(rows, largest_row),
    )
    columns = [
        found[name] if name in found else pc.if_else(tagged, rows[name], None) for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(
        [one.cast(of.type) for one, of in zip(columns, schema, strict=True)], schema=schema
    )


def _too_large(rows: pa.RecordBatch, largest_row: int) -> Mask:
    """Return which events would have a row of the view of more than `largest_row` bytes, not counting the
    tag.
    """
    if rows.nbytes <= largest_row:  # True of nearly every batch, which then needs no sizes.
        return np.zeros(rows.num_rows, bool)
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in (ID, *EVENT, *META):
        if name in rows.schema.names and not pa.types.is_integer(rows[name].type):
            sizes += pc.fill_null(pc.binary_length(rows[name]), 0).to_numpy(zero_copy_only=False)
    return sizes > largest_row


def _flaws(
    rows: pa.RecordBatch,
    tagged: Mask,
    time_uuid: Mask,
    times: npt.NDArray[np.int64],
    until: int,
    too_large: Mask,
) -> pa.Array:
    """Return the flaw of each event (a Reason, or null).

    Untagged events get no row, so they have no flaw but being too young.
    """
    latest = until + FUTURE_TICKS
    missing = _nulls(rows, "event") | _nulls(rows, "ser_id")
    unread = (
        ~_nulls(rows, "message")
        if rows.schema.get_field_index("message") >= 0
        else np.zeros(rows.num_rows, bool)
    )
    reasons = {
        Reason.BEFORE_0_10: tagged & _nulls(rows, "event") & unread,
        Reason.NO_EVENT: tagged & missing,
        Reason.NO_TIME_UUID: tagged & (~time_uuid | (times < 0) | (times > latest)),
        Reason.YOUNG: time_uuid & (times > until) & (times <= latest),
        Reason.TOO_LARGE: tagged & too_large,
    }
    place = np.select(list(reasons.values()), np.arange(len(reasons)), -1)
    return pa.array([reason.value for reason in reasons]).take(pa.array(place, mask=place < 0))


def _nulls(rows: pa.RecordBatch, name: str) -> Mask:
    return cast(Mask, rows[name].is_null().to_numpy(zero_copy_only=False))
