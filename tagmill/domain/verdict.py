"""Compute the verdict on a tag, a topic or a replication from all that is known of it.

Every table, page and exit status takes its words from here. The worst is said first, and a word of proof
needs a check or an audit.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any

EXACTLY_ONCE = "exactly once"
COUNTS_AGREE = "counts agree"
# attempts that may fail in passing before a failure counts as wrong
PASSING_FAILURES = 1
# takeovers of an unfinished run, or earlier attempts that never ended, after which it counts as wrong
MOST_TAKEOVERS = 3


class Level(IntEnum):
    """How bad a verdict is. PROVEN and APART end `check` with 0; up to HELD `status` ends with 0."""

    PROVEN = 0
    APART = 1
    COUNTED = 2
    WAITING = 3
    HELD = 4
    WRONG = 5
    UNKNOWN = 6

    @property
    def label(self) -> str:
        """The name as JSON and style sheets have it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Proof:
    """The newest check or audit that came to its end.

    `changed`: rows or runs have come since, so it covers not all of now.
    """

    how: str
    at: datetime
    agrees: bool
    up_to: str
    finding: str = ""
    changed: bool = False

    def __str__(self) -> str:
        """Say how and when."""
        return f"{self.how} at {moment(self.at)}"


@dataclass(frozen=True, slots=True)
class Failure:
    """Attempts that failed in a row since the last success; `passing`: the last one may succeed when it is
    made again.
    """

    times: int
    since: datetime
    step: str
    run: int | None
    error: str
    passing: bool = False

    def __str__(self) -> str:
        """Say how often, since when, and why."""
        times = f"failed {self.times} times since" if self.times > 1 else "failed at"
        step = f"{self.step} of run {self.run}" if self.run else self.step
        return f"{times} {moment(self.since)}: {step}: {self.error}"


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that is not closed; `taken` counts how often it was taken up."""

    run: int
    state: str
    taken: int


@dataclass(frozen=True, slots=True)
class Unended:
    """Attempts that began and did not end since the last success; the newest one may still be at work."""

    step: str
    begun: int
    since: datetime

    def __str__(self) -> str:
        """Say how often it began since when, and why none ended."""
        return (
            f"{self.step} was begun {self.begun} times since {moment(self.since)} and has not ended: "
            "earlier processes were killed, or lost Cassandra"
        )


@dataclass(frozen=True, slots=True)
class ViewWait:
    """Persistence ids that builds of the view leave waiting for one reason.

    `persistence_id` is one of them (empty: its name was erased), in front of the event `sequence_nr` since
    `since`. `too_long`: longer than a hold may last. `way_out`: what a person has to do, empty if the next
    build may go on by itself.
    """

    ids: int
    persistence_id: str
    sequence_nr: int
    since: datetime
    reason: str
    too_long: bool = False
    way_out: str = ""

    def __str__(self) -> str:
        """Say how many wait, and of one where, since when and why."""
        wait = "persistence id waits" if self.ids == 1 else "persistence ids wait"
        one = f"{self.persistence_id!r} in front of" if self.persistence_id else "one in front of"
        late = ": longer than max_hold_age_seconds" if self.too_long else ""
        return (
            f"{self.ids:,} {wait} in views build, {one} sequence_nr {self.sequence_nr} since "
            f"{moment(self.since)} ({self.reason}){late}" + (f". {self.way_out}" if self.way_out else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known of a tag, a topic or a replication.

    Attributes:
        delivered: Rows of closed runs by the ledger.
        expired: Rows of those that the destination's retention has removed.
        pushed: Rows of the open run that are verified in ClickHouse; less those that a process removes.
        sealed: Rows that may be in ClickHouse or not, beyond delivered and pushed.
        stored: Rows in ClickHouse; None where nothing is stored there.
        at_source: Rows that the source has or had; None if nobody counted.
        delivered_before: Rows of runs that were closed before the source was counted.
        undelivered: Rows of the view beyond those in ClickHouse, each timebucket on its own, with those held.
        lost: Rows in ClickHouse beyond those of the view, each timebucket on its own, without cleaned ones.
        unread: Rows of the source that are old enough and that no closed run has read.
        waiting: Records that a reader gets and no closed run has read.
        unreadable: Records behind an open transaction.
        held: Rows that are held back.
        overdue: What is held for too long, in words.
        view_waits: What waits in builds of the view, by reason.
        dead_letters: Records that nobody can decode.
        left_out: Ids that a person set apart.
        differences: What differs now, in words.
        changing: What a process is at work on, so that it can't be compared now, in words.
        obstacles: What stops the next run, in words.
        build_failure: Builds of the view that failed since the last one that succeeded.
        unended: Attempts to plan, replicate or build that did not end.
        verified: Every stored row was compared just now.
        settled: The word for a state in which counts are all that is known.
        settled_level: How much that proves.
    """

    delivered: int = 0
    expired: int = 0
    pushed: int = 0
    sealed: int = 0
    stored: int | None = None
    at_source: int | None = None
    delivered_before: int = 0
    undelivered: int = 0
    lost: int = 0
    unread: int = 0
    waiting: int = 0
    unreadable: int = 0
    held: int = 0
    overdue: tuple[str, ...] = ()
    view_waits: tuple[ViewWait, ...] = ()
    dead_letters: int = 0
    left_out: int = 0
    differences: tuple[str, ...] = ()
    changing: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    open_run: OpenRun | None = None
    failure: Failure | None = None
    build_failure: Failure | None = None
    unended: tuple[Unended, ...] = ()
    verified: datetime | None = None
    checked: Proof | None = None
    audited: Proof | None = None
    settled: str = COUNTS_AGREE
    settled_level: Level = Level.COUNTED


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that a verdict rests on."""

    level: Level
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of a pipeline, the worst first, and how bad it is."""

    level: Level
    reasons: tuple[Reason, ...]

    @property
    def word(self) -> str:
        """All reasons in one line."""
        return "; ".join(reason.text for reason in self.reasons)


def judge(facts: Facts) -> Verdict:
    """Return the verdict. Proof is named only where nothing is left to say but what was set apart."""
    reasons = sorted([*_wrong(facts), *_unfinished(facts), *_left(facts)], key=lambda reason: -reason.level)
    if not reasons or reasons[0].level <= Level.APART:
        reasons = [_settled(facts), *reasons]
    return Verdict(max(reason.level for reason in reasons), tuple(reasons))


def unknown(error: str) -> Verdict:
    """Return the verdict on a pipeline that cannot be read."""
    return Verdict(Level.UNKNOWN, (Reason(Level.UNKNOWN, f"not known: {error}"),))


def moment(at: datetime) -> str:
    """Write a moment as verdicts have it."""
    return f"{at:%Y-%m-%d %H:%M:%S}"


def _wrong(facts: Facts) -> Iterator[Reason]:
    if facts.differences:
        yield Reason(Level.WRONG, f"differs: {_first(facts.differences)}")
    elif surplus := _surplus(facts):
        yield Reason(Level.WRONG, f"differs: {surplus:+,d} rows in ClickHouse")
    for proof in (facts.checked, facts.audited):
        if proof and not proof.agrees:
            yield Reason(Level.WRONG, f"differs: {proof.finding} ({proof})")
    if facts.obstacles:
        yield Reason(Level.WRONG, f"stopped: {_first(facts.obstacles)}")


def _first(texts: tuple[str, ...]) -> str:
    return texts[0] + (f" (and {len(texts) - 1} more)" if len(texts) > 1 else "")


def _surplus(facts: Facts) -> int:
    """Return by how many rows ClickHouse has more (or less) than it may have while a run is under way."""
    if facts.stored is None:
        return 0
    least = facts.delivered - facts.expired + facts.pushed
    return min(0, facts.stored - least) or max(0, facts.stored - least - facts.sealed)


def _unfinished(facts: Facts) -> Iterator[Reason]:
    failure, run = facts.failure, facts.open_run
    for each in filter(None, (failure, facts.build_failure)):
        yield Reason(Level.WAITING if _passing(each) else Level.WRONG, str(each))
    passing = failure is None or _passing(failure)
    # a process that is killed notes no failure: each takeover does
    if run and (failure is None or (passing and run.taken > MOST_TAKEOVERS)):
        level = Level.WRONG if run.taken > MOST_TAKEOVERS else Level.WAITING
        times = f", begun {run.taken} times" if run.taken > 1 else ""
        yield Reason(level, f"run {run.run} is not closed ({run.state}{times})")
    if facts.changing:
        yield Reason(Level.WAITING, _first(facts.changing))
    for attempts in facts.unended:
        # a single attempt may still be at work
        if attempts.begun > 1:
            yield Reason(Level.WRONG if attempts.begun > MOST_TAKEOVERS else Level.WAITING, str(attempts))


def _passing(failure: Failure) -> bool:
    return failure.passing and failure.times <= PASSING_FAILURES


def _left(facts: Facts) -> Iterator[Reason]:
    if facts.held or facts.overdue:
        late = f": {facts.overdue[0]}" if facts.overdue else ""
        yield Reason(Level.WRONG if facts.overdue else Level.HELD, f"{facts.held:,} held{late}")
    for wait in facts.view_waits:
        yield Reason(Level.WRONG if wait.too_long or wait.way_out else Level.HELD, str(wait))
    net = 0 if facts.at_source is None else facts.at_source - facts.delivered
    # Rows that the view has lost make up for none that are not delivered.
    beyond = max(net, facts.undelivered) - facts.held
    if facts.waiting:
        yield Reason(Level.WAITING, f"waiting {facts.waiting:,}")
    if (left := max(beyond, facts.unread)) > 0:
        # some of them may be second rows of an event, which no run delivers
        yield Reason(Level.WAITING, f"{left:,} in the view not delivered")
    if facts.left_out:
        yield Reason(Level.HELD, f"{facts.left_out:,} ids set apart")
    if facts.unreadable:
        yield Reason(Level.WAITING, f"{facts.unreadable:,} behind an open transaction")
    if facts.dead_letters:
        yield Reason(Level.APART, f"{facts.dead_letters:,} dead letters")
    missing = 0 if facts.at_source is None else facts.delivered_before + facts.unread - facts.at_source
    if (gone := max(missing, facts.lost)) > 0:
        yield Reason(Level.APART, f"the view has {gone:,} rows fewer than were delivered")


def _settled(facts: Facts) -> Reason:
    """Return the word for a pipeline with nothing wrong and nothing left: how well that is proven."""
    if facts.verified:
        return Reason(Level.PROVEN, f"{EXACTLY_ONCE}, checked at {moment(facts.verified)}")
    proofs = sorted(
        (proof for proof in (facts.checked, facts.audited) if proof), key=lambda proof: proof.at, reverse=True
    )
    for proof in proofs:
        if not proof.changed:
            return Reason(Level.PROVEN, f"{EXACTLY_ONCE}, {proof}, up to {proof.up_to}")
    if not facts.delivered and facts.stored is not None and not facts.at_source:
        return Reason(Level.COUNTED, "nothing delivered yet")
    for proof in proofs:
        return Reason(Level.COUNTED, f"{facts.settled}; {EXACTLY_ONCE} when {proof}, up to {proof.up_to}")
    return Reason(facts.settled_level, facts.settled)


def judged(line: dict[str, Any], facts: Facts) -> dict[str, Any]:
    """Return the line with the verdict on these facts and its level."""
    verdict = judge(facts)
    return {**line, "verdict": verdict.word, "level": verdict.level.label}
