"""Judge few rows: find the persistence_ids in doubt, as tagmill.delivery.tag_views.suspects does, and apply the rules to them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa

from tagmill.arrow import schema_of
from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.tag_views import lives, seal_outputs
from tagmill.delivery.tag_views.few_rows.staging import StagedFile
from tagmill.delivery.tag_views.gap_evidence import MAX_GAPS, MAX_PASSES, GapInvestigator
from tagmill.delivery.tag_views.judge import JUDGED_SCHEMA, Key, judge_key, row_of
from tagmill.delivery.tag_views.look_back import HOUR_TICKS
from tagmill.delivery.tag_views.model import Plan
from tagmill.delivery.tag_views.sealing import Sealing
from tagmill.delivery.tag_views.working_rows import RowsInMemory
from tagmill.domain.continuity.lives import is_in_doubt
from tagmill.domain.continuity.model import Action, Progress, Row
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND
from tagmill.ledger.progress import HoldRow, write_intervals
from tagmill.ledger.write_times import foreign

DECISIONS = schema_of(JUDGED_SCHEMA)
# Columns of a file's summaries that `is_clean` needs.
OF_CLEAN = "tag persistence_id low low_sequence_nr low_ticks high high_sequence_nr high_ticks unit file sound".split()
Summaries = Mapping[Key, Sequence[Mapping[str, Any]]]
Known = Mapping[Key, tuple[Progress, int] | None]


@dataclass(slots=True)
class Verdict:
    """The answer of the rules.

    `decisions` are of DECISIONS (None: nothing was in doubt); `excluded` are the keys whose rows leave their staged
    files; `frozen_rows` are the key rows of the holds that wait (`frozen`), with `reason`; `missing` are numbers
    that progress lacks.
    """

    excluded: set[Key]
    frozen: list[HoldRow]
    missing: dict[Key, str]
    decisions: RowsInMemory | None = None
    frozen_rows: RowsInMemory | None = None
    records: list[dict[str, Any]] = field(default_factory=list)


def judge(
    sealing: Sealing, staged: Sequence[StagedFile], summaries: pa.Table, investigation: GapInvestigator
) -> Verdict:
    """Judge what was staged; `summaries` (file_summaries.SUMMARY) are those of the new files.

    Raises ForeignWriteTime for progress in doubt that was written later than this run writes.
    """
    plan = sealing.plan
    of_keys = by_key(summaries)
    rows = _rows_by_key(staged)
    looked = {(look.tag, look.persistence_id) for look in plan.holds}
    known = known_progress(sealing, sorted({*rows, *looked}))
    frozen = sealing.frozen()
    waiting = {(hold.tag, hold.persistence_id): hold.reason for hold in frozen}
    doubtful, missing = doubts(of_keys, known, sealing.written_to)
    doubtful |= {key for key, of_key in rows.items() if _left_over(of_key, known[key])}
    doubtful = (doubtful | looked) - waiting.keys()
    verdict = Verdict(doubtful | waiting.keys(), frozen, missing)
    if waiting:
        kept = [
            {**row, "reason": waiting[key]}
            for key in sorted(waiting.keys() & rows.keys())
            for row in rows[key]
        ]
        if kept:
            verdict.frozen_rows = RowsInMemory(pa.Table.from_pylist(kept))
    if doubtful:
        in_doubt = {key: rows[key] for key in sorted(doubtful) if key in rows}
        verdict.records = _decided(sealing, in_doubt, known, investigation)
        verdict.decisions = RowsInMemory(pa.Table.from_pylist(verdict.records, DECISIONS))
    return verdict


def doubts(of_keys: Summaries, known: Known, written_to: int) -> tuple[set[Key], dict[Key, str]]:
    """Return the keys that the rules must judge, and by key the numbers that progress lacks."""
    doubtful = {key for key, files in of_keys.items() if not is_clean(files, known[key], written_to)}
    missing = {
        key: write_intervals(before[0].missing)
        for key in of_keys
        if (before := known[key]) and before[0].missing
    }
    return doubtful, missing


def by_key(summaries: pa.Table) -> Summaries:
    """Return the summaries (OF_CLEAN) of each key in the order of their numbers. In: file_summaries.SUMMARY."""
    order = [(name, "ascending") for name in ("tag", "persistence_id", "low", "unit", "file")]
    lines = summaries.select(OF_CLEAN).sort_by(order).to_pylist() if summaries.num_rows else []
    return {key: list(of_key) for key, of_key in groupby(lines, itemgetter("tag", "persistence_id"))}


def _rows_by_key(staged: Iterable[StagedFile]) -> dict[Key, list[dict[str, Any]]]:
    found = defaultdict[Key, list[dict[str, Any]]](list)
    for file in staged:
        for row in file.rows_with_place().to_pylist():
            found[row["tag"], row["persistence_id"]].append(row)
    return dict(found)


def known_progress(sealing: Sealing, keys: Sequence[Key]) -> Known:
    """Return the progress and its write time of each key; None: it has none."""
    plan = sealing.plan
    if plan.first:
        return dict.fromkeys(keys)
    return dict(zip(keys, sealing.ledger.delivered.progress_written(plan.pipeline, keys), strict=True))


def is_clean(
    files: Sequence[Mapping[str, Any]], before: tuple[Progress, int] | None, written_to: int
) -> bool:
    """Return what suspects.run_summaries and suspects.is_clean say of one persistence_id, from its summaries in
    the order of their numbers.
    """
    first = files[0]
    if before is None:
        goes_on = first["low"] == 1
    else:
        progress, written = before
        goes_on = (
            first["low"] == progress.number + 1
            and first["low_sequence_nr"] > progress.sequence_nr
            and first["low_ticks"] >= progress.ticks
            and written <= written_to
        )
    return goes_on and all(row["sound"] for row in files) and all(map(_follows, files[1:], files))


def _follows(row: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    return bool(
        row["low"] == before["high"] + 1
        and row["low_sequence_nr"] > before["high_sequence_nr"]
        and row["low_ticks"] >= before["high_ticks"]
        and (row["unit"], row["file"]) > (before["unit"], before["file"])
    )


def is_delivered(number: int, sequence_nr: int, ticks: int, offset: str, known: Progress | None) -> bool:
    """Return what suspects.is_delivered says of a row."""
    last_missing = max((high for _, high in known.missing), default=0) if known else 0
    is_earlier = known is not None and known.of_earlier_life(ticks)
    settled = number > last_missing or is_earlier
    return settled and was_delivered(Row(number, sequence_nr, ticks, offset, ""), known)


def was_delivered(row: Row, known: Progress | None) -> bool:
    """Return what suspects.was_delivered says of a row."""
    if known is None:
        return False
    passed = known.delivered(row.number) and row.sequence_nr <= known.sequence_nr
    return known.of_earlier_life(row.ticks) or (passed and not is_in_doubt(known, row))


def _left_over(rows: Iterable[Mapping[str, Any]], before: tuple[Progress, int] | None) -> bool:
    """Return whether rows that were read again have some that were not delivered."""
    known = before and before[0]
    return not all(
        is_delivered(row["tag_pid_sequence_nr"], row["sequence_nr"], row["event_time"], row["offset"], known)
        for row in rows
        if not row["is_new"]
    )


def _decided(
    sealing: Sealing,
    rows: Mapping[Key, list[dict[str, Any]]],
    known: Known,
    investigation: GapInvestigator,
) -> list[dict[str, Any]]:
    """Judge, ask the journal about the gaps found, and judge again with its answers, until nothing new turns up."""
    plan, pipeline = sealing.plan, sealing.pipeline
    before = {key: found[0] for key, found in known.items() if found is not None}
    for key in rows:
        if (found := known[key]) and found[1] > sealing.written_to:
            raise foreign(plan.pipeline, f"progress of {key[1]!r}, tag {key[0]!r},")
    of_keys = {key: [row_of(row) for row in of_key] for key, of_key in rows.items()}
    if not plan.first:
        with ClickHouse(sealing.settings.clickhouse) as clickhouse:
            investigation.knowledge.strangers |= lives.strangers(
                _in_doubt(of_keys, before), clickhouse, pipeline
            )
    policies = {tag: seal_outputs.policy(pipeline, plan, tag) for tag in plan.tags}
    for number in range(MAX_PASSES + 1):
        records = [
            record
            for key, of_key in of_keys.items()
            for record in judge_key(key, before.get(key), of_key, policies, investigation.knowledge)
        ]
        _flag_late(records, plan)
        gaps = [record for record in records if record["kind"] == "hole"][:MAX_GAPS]
        if number == MAX_PASSES or not investigation.ask(
            ((record["tag"], record["persistence_id"]), seal_outputs.gap(record)) for record in gaps
        ):
            break
    return records


def _in_doubt(
    rows: Mapping[Key, Sequence[Row]], before: Mapping[Key, Progress]
) -> Iterator[lives.DoubtfulRow]:
    """Yield the rows that may be of another life, once each."""
    for key, of_key in rows.items():
        if key in before:
            doubtful = (
                lives.DoubtfulRow(*key, row.sequence_nr, row.writer_uuid, row.ticks, row.offset)
                for row in of_key
                if is_in_doubt(before[key], row)
            )
            yield from dict.fromkeys(doubtful)


def _flag_late(records: Iterable[dict[str, Any]], plan: Plan) -> None:
    """Flag as late what seal_outputs.flag_late does."""
    if not plan.look_back:
        return
    held = {(look.tag, look.persistence_id) for look in plan.holds}
    hours = {
        tag: {hour.begin * TICKS_PER_MILLISECOND for hour in of_tag} for tag, of_tag in plan.look_back.items()
    }
    for record in records:
        if (
            record["kind"] == "row"
            and record["action"] == Action.DELIVER.value
            and (record["tag"], record["persistence_id"]) not in held
            and record["ticks"] - record["ticks"] % HOUR_TICKS in hours.get(record["tag"], ())
        ):
            record["action"] = "late"
