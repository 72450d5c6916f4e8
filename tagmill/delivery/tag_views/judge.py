"""Apply the rules of continuity to the suspects, one (tag, persistence_id) at a time, in Spark's Python
workers.

The rules are in tagmill.continuity. This module only converts key rows to Row, and a Judgement to rows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame

from tagmill.domain.continuity.model import Earlier, Evidence, Gap, Judgement, Policy, Progress, Row
from tagmill.domain.continuity.rules import judge
from tagmill.ledger.progress import read_intervals, write_intervals

if TYPE_CHECKING:
    import pandas as pd

# Values of `kind`: row (a decision), hole (a gap to ask the journal about), closed (a gap with deleted
# events), held, progress.
JUDGED_SCHEMA = (
    "kind string, tag string, persistence_id string, file string, row_index bigint, tag_pid_sequence_nr "
    "bigint, sequence_nr bigint, "
    "ticks bigint, offset string, timebucket bigint, size bigint, action string, reason string, "
    "order_ticks bigint, "
    "last_missing bigint, after_sequence_nr bigint, before_sequence_nr bigint, held_rows bigint, missing "
    "string"
)
JUDGED_COLUMNS = [part.strip().split(" ")[0] for part in JUDGED_SCHEMA.split(",")]
# The `file` of an event that comes from the journal and not from a staged file; its row_index counts the
# run's events from the journal.
FROM_JOURNAL = "journal"
Key = tuple[str, str]


@dataclass(slots=True)
class Knowledge:
    """Evidence from outside the rows: about gaps, about lower numbers before the range, and about rows of
    another life.
    """

    journal: dict[Key, dict[Gap, Evidence]] = field(default_factory=dict)
    earlier: dict[Key, Earlier] = field(default_factory=dict)
    strangers: dict[Key, frozenset[str]] = field(default_factory=dict)


def judged(rows: DataFrame, policies: Mapping[str, Policy], knowledge: Knowledge) -> DataFrame:
    """Judge every (tag, persistence_id) of `rows`.

    In: key rows with progress (known_*). Out: JUDGED_SCHEMA, several rows per persistence_id.
    """
    return rows.groupBy("tag", "persistence_id").applyInPandas(
        _judge_group(dict(policies), knowledge), JUDGED_SCHEMA
    )


def _judge_group(
    policies: dict[str, Policy], knowledge: Knowledge
) -> "Callable[[pd.DataFrame], pd.DataFrame]":
    def judge_group(group: "pd.DataFrame") -> "pd.DataFrame":
        import pandas as pd

        first = group.iloc[0]
        key = (str(first["tag"]), str(first["persistence_id"]))
        rows = [row_of(record) for record in group.to_dict("records")]
        decided = judge_key(key, _known(first), rows, policies, knowledge)
        # Columns are objects because pandas' own string type comes back from Arrow in chunks, which Spark 3.5
        # can't take.
        return pd.DataFrame(decided, columns=JUDGED_COLUMNS, dtype=object)

    return judge_group


def judge_key(
    key: Key,
    known: Progress | None,
    rows: Sequence[Row],
    policies: Mapping[str, Policy],
    knowledge: Knowledge,
) -> list[dict[str, Any]]:
    """Return the judgement of one (tag, persistence_id) as records of JUDGED_SCHEMA."""
    outcome = judge(
        known,
        rows,
        policies[key[0]],
        knowledge.journal.get(key),
        knowledge.earlier.get(key),
        knowledge.strangers.get(key, frozenset()),
    )
    return _out(key, outcome, known)


def row_of(record: Mapping[str, Any]) -> Row:
    """Return a key row (suspects.keys_of) as the rules take it."""
    return Row(
        int(record["tag_pid_sequence_nr"]),
        int(record["sequence_nr"]),
        int(record["event_time"]),
        record["offset"],
        record["writer_uuid"],
        bool(record["event_missing"]),
        bool(record["offset_broken"]),
        (record["file"], int(record["row_index"]), int(record["timebucket"]), int(record["size"])),
    )


def _known(record: Any) -> Progress | None:
    number = record["known_number"]
    if number is None or number != number:  # pandas says NaN for null
        return None
    ticks = record["known_ticks"]
    offset = record["known_offset"]
    return Progress(
        int(number),
        int(record["known_sequence_nr"]),
        int(ticks) if ticks == ticks else 0,
        offset if isinstance(offset, str) else "",
        read_intervals(record["known_missing"] if isinstance(record["known_missing"], str) else ""),
        int(record["known_life_from"]),
    )


def _out(key: Key, outcome: Judgement, before: Progress | None) -> list[dict[str, Any]]:
    base = {"tag": key[0], "persistence_id": key[1]}
    out: list[dict[str, Any]] = []
    for decision in outcome.decisions:
        row = decision.row
        file, index, bucket, size = (
            row.handle if isinstance(row.handle, tuple) and len(row.handle) == 4 else (FROM_JOURNAL, -1, 0, 0)
        )
        out.append(
            {
                **base,
                "kind": "row",
                "file": file,
                "row_index": index,
                "tag_pid_sequence_nr": row.number,
                "sequence_nr": row.sequence_nr,
                "ticks": row.ticks,
                "offset": row.offset,
                "timebucket": bucket,
                "size": size,
                "action": decision.action.value,
                "reason": decision.reason.value,
                "order_ticks": decision.order_ticks,
            }
        )
    out.extend({**base, "kind": "hole", **_gap(gap)} for gap in outcome.gaps)
    out.extend({**base, "kind": "closed", **_gap(gap)} for gap in outcome.closed)
    if outcome.held:
        held = outcome.held
        out.append(
            {
                **base,
                "kind": "held",
                "reason": held.reason.value,
                "ticks": held.first_ticks,
                "held_rows": held.rows,
                **_gap(held.gap),
            }
        )
    if outcome.progress and outcome.progress != before:
        known = outcome.progress
        out.append(
            {
                **base,
                "kind": "progress",
                "tag_pid_sequence_nr": known.number,
                "sequence_nr": known.sequence_nr,
                "ticks": known.ticks,
                "offset": known.offset,
                "missing": write_intervals(known.missing),
            }
        )
    return out


def _gap(gap: Gap) -> dict[str, int]:
    return {
        "tag_pid_sequence_nr": gap.first,
        "last_missing": gap.last,
        "after_sequence_nr": gap.after_sequence_nr,
        "before_sequence_nr": gap.before_sequence_nr,
    }
