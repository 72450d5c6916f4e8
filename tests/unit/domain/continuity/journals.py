"""Short ways to write journals, and a small model of runs that read them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from tagmill.domain.continuity.model import (
    Action,
    Evidence,
    FirstSeen,
    Gap,
    Judgement,
    Policy,
    Progress,
    Row,
)
from tagmill.domain.continuity.rules import judge
from tagmill.domain.timeuuid import lowest

NOW = 17_640_000_000_000_000
SECOND = 10_000_000
HOUR = 3600 * SECOND


def row(
    number: int, sequence_nr: int | None = None, *, at: int | None = None, writer: str = "w-1", **changes: Any
) -> Row:
    """Return a sound row.

    By default its sequence_nr is ten times its number, and its time grows by a second per number.
    """
    ticks = NOW - 100 * HOUR + (number if at is None else at) * SECOND
    sequence_nr = 10 * number if sequence_nr is None else sequence_nr
    offset = UUID(int=lowest(ticks).int + sequence_nr % 100)
    return Row(number, sequence_nr, ticks, str(offset), writer, **changes)


def rows(*numbers: int) -> list[Row]:
    return [row(number) for number in numbers]


def progress(number: int, *missing: tuple[int, int]) -> Progress:
    """Return the progress whose last event is row(number)."""
    last = row(number)
    return Progress(number, last.sequence_nr, last.ticks, last.offset, missing)


def policy(first_seen: FirstSeen = FirstSeen.REQUIRE_ONE, **changes: Any) -> Policy:
    return replace(Policy(first_seen, NOW, HOUR, 5000), **changes)


def told(judgement: Judgement) -> list[str]:
    """Return the decisions in their order, as '5 deliver next'."""
    return [f"{d.row.number} {d.action} {d.reason}" for d in judgement.decisions]


def delivered(judgement: Judgement) -> list[int]:
    return [d.row.number for d in judgement.decisions if d.action in (Action.DELIVER, Action.LATE)]


def judge_with_journal(
    known: Progress | None,
    read: Iterable[Row],
    chosen: Policy,
    asked: Callable[[Gap], Evidence] | None = None,
) -> Judgement:
    """Judge the rows as the seal step does: ask the journal about new gaps and judge again until no gap is
    new.
    """
    read, journal = list(read), {}
    while True:
        judgement = judge(known, read, chosen, journal)
        news = [gap for gap in judgement.gaps if gap not in journal]
        if asked is None or not news:
            return judgement
        journal |= {gap: asked(gap) for gap in news}


@dataclass
class Pipeline:
    """Model of runs over one persistence_id and tag.

    It reads rows of a hold again from the gap on, and other rows by look-back.
    """

    chosen: Policy
    asked: Callable[[Gap], Evidence] | None = None
    known: Progress | None = None
    held: bool = False
    view: list[Row] = field(default_factory=list)
    sent: list[tuple[int, int]] = field(default_factory=list)
    in_order: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)

    def run(self, arrived: Iterable[Row], again: Iterable[Row] = ()) -> Judgement:
        """Judge new arrivals, rows of the look-back and all rows behind an open gap; keep progress, hold and
        sent rows.
        """
        arrived = list(arrived)
        reached = self.known.number if self.known else 0
        gap = [r for r in self.view if self.held and r.number > reached]
        self.view += arrived
        read = list(dict.fromkeys([*arrived, *again, *gap]))
        judgement = judge_with_journal(self.known, read, self.chosen, self.asked)
        for decision in judgement.decisions:
            if decision.action in (Action.DELIVER, Action.LATE):
                self.sent.append((decision.row.number, decision.row.sequence_nr))
                (self.in_order if decision.action == Action.DELIVER else self.late).append(
                    decision.row.number
                )
        self.known = judgement.progress
        self.held = judgement.held is not None
        return judgement
