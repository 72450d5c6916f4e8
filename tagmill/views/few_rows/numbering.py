"""Decide up to which event each of few persistence ids is numbered, by the rules of views/numbering.py."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tagmill.journal.flaws import Reason
from tagmill.views.few_rows.positions import Position
from tagmill.views.numbered import EXAMPLES, Line, Stopped

Run = dict[str, Any]  # of run_numbering.RUNS


class End(NamedTuple):
    """The last event of a persistence_id that may be numbered, and why it stops there (None: nothing is behind it)."""

    persistence_id: str
    from_nr: int
    upto: int
    reason: str | None


def ends(runs: Iterable[Run], from_nr: Mapping[str, int]) -> list[End]:
    """Return how far each persistence_id can be numbered (numbering.numberable_upto)."""
    runs_of = defaultdict[str, list[Run]](list)
    for run in runs:
        if run["persistence_id"] in from_nr:
            runs_of[run["persistence_id"]].append(run)
    return [_end(one, from_nr[one], of_one) for one, of_one in runs_of.items()]


def _end(persistence_id: str, from_nr: int, runs: list[Run]) -> End:
    before, met = from_nr, list[tuple[int, str]]()
    for run in sorted(runs, key=lambda run: (run["first"], run["last"])):
        if run["reason"] is not None:
            met.append((run["upto"], run["reason"]))
        if before >= run["first"]:
            met.append((run["first"] - 1, Reason.TWO_WRITERS.value))
        elif before < run["first"] - 1:
            met.append((before, Reason.GAP.value))
        before = max(before, run["last"])
    upto, reason = min(met) if met else (max(run["last"] for run in runs), None)
    return End(persistence_id, from_nr, upto, reason)


def start_numbers(
    runs: Iterable[Run], stops: Sequence[End], positions: Mapping[str, Position]
) -> dict[int, list[dict[str, Any]]]:
    """Return the number in front of each run's first row of a tag (numbering.run_start_numbers), by file."""
    upto_of, starts = (
        {end.persistence_id: end.upto for end in stops},
        defaultdict[int, list[dict[str, Any]]](list),
    )
    numbers = {(one, line.tag): line.number or 0 for one in upto_of for line in positions[one].progress}
    for run in sorted(runs, key=lambda run: int(run["first"])):
        one, upto = run["persistence_id"], upto_of.get(run["persistence_id"], -1)
        if run["first"] > upto:
            continue
        for tag, rows in [(line["tag"], line["rows"]) for line in run["tags"] or ()] or [(None, 0)]:
            start = 0 if tag is None else numbers.get((one, tag), 0)
            starts[run["file"]].append({"run": run["run"], "upto": upto, "tag": tag, "start": start})
            numbers[one, tag] = start + rows
    return starts


def records(
    reached: Iterable[dict[str, Any]], stops: Sequence[End], positions: Mapping[str, Position]
) -> Iterator[dict[str, Any]]:
    """Yield the new record of each persistence_id that the build moves on (numbering.records).

    In: `reached`, of run_numbering.REACHED.
    """
    upto_of = {end.persistence_id: end.upto for end in stops}
    last, moved = dict[str, tuple[int, int]](), defaultdict[str, dict[str, Line]](dict)
    for one in reached:
        name, event = one["persistence_id"], (one["sequence_nr"], one["partition_nr"])
        last[name] = max(event, last.get(name, event))
        for line in (Line(**fields) for fields in one["progress"]):
            known = moved[name].get(line.tag)
            if known is None or line.sequence_nr > known.sequence_nr:  # type: ignore[operator]
                moved[name][line.tag] = line
    for name, (_, partition_nr) in last.items():
        position = positions[name]
        progress = {line.tag: line for line in position.progress} | moved[name]
        yield {
            "persistence_id": name,
            "sequence_nr": upto_of[name],
            "partition_nr": partition_nr,
            "scanned": position.scanned,
            "progress": [progress[tag]._asdict() for tag in sorted(progress)],
            "new": sorted(moved[name]),
        }


def stopped(stops: Iterable[End], known: Iterable[tuple[str, str, int]]) -> list[Stopped]:
    """Return how many persistence ids wait for each reason but being too young.

    In: `known`, the reason, persistence_id and sequence_nr that the build before has named.
    """
    waiting = defaultdict[str, list[tuple[str, int]]](list)
    for end in waits(stops):
        waiting[str(end.reason)].append((end.persistence_id, end.upto + 1))
    named = {(reason, (one, number)) for reason, one, number in known}
    return [
        Stopped(reason, len(events), *min(events), any((reason, event) in named for event in events))
        for reason, events in waiting.items()
    ]


def waits(stops: Iterable[End]) -> list[End]:
    """Return those that wait for another reason than being too young."""
    return [end for end in stops if end.reason not in (None, Reason.YOUNG.value)]


def examples(stops: Iterable[End]) -> list[End]:
    """Return the first of those that wait and are not refused, sorted by reason and persistence_id."""
    waiting = [end for end in waits(stops) if end.reason != Reason.ELSEWHERE.value]
    return sorted(waiting, key=lambda end: (str(end.reason), end.persistence_id))[:EXAMPLES]
