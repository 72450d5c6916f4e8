"""Verdicts: every word and level, from facts alone."""

from datetime import UTC, datetime

import pytest

from tagmill.domain.verdict import Facts, Failure, Level, OpenRun, Proof, Unended, ViewWait, judge, unknown

AT = datetime(2026, 11, 25, 14, 2, 11, tzinfo=UTC)
EARLIER = datetime(2026, 11, 25, 12, 0, 0, tzinfo=UTC)
LOST = "audit 3 found 1 missing_in_clickhouse"


UNENDED = "replicate was begun {} times since 2026-11-25 12:00:00 and has not ended: earlier processes were killed, or lost Cassandra"


def unended(begun, **more):
    return Facts(stored=0, waiting=6, unended=(Unended("replicate", begun, EARLIER),), **more)


def proof(how="checked", at=AT, agrees=True, **more):
    return Proof(how, at, agrees, "run 7", **more)


CASES = {
    "counted": (Facts(delivered=5, stored=5), Level.COUNTED, "counts agree"),
    "nothing yet": (Facts(stored=0), Level.COUNTED, "nothing delivered yet"),
    "verified now": (
        Facts(delivered=5, stored=5, verified=AT),
        Level.PROVEN,
        "exactly once, checked at 2026-11-25 14:02:11",
    ),
    "checked": (
        Facts(delivered=5, stored=5, checked=proof()),
        Level.PROVEN,
        "exactly once, checked at 2026-11-25 14:02:11, up to run 7",
    ),
    "audited after it changed since the check": (
        Facts(delivered=5, stored=5, checked=proof(at=EARLIER, changed=True), audited=proof("audited")),
        Level.PROVEN,
        "exactly once, audited at 2026-11-25 14:02:11, up to run 7",
    ),
    "changed since": (
        Facts(delivered=5, stored=5, checked=proof(changed=True)),
        Level.COUNTED,
        "counts agree; exactly once when checked at 2026-11-25 14:02:11, up to run 7",
    ),
    "check said no": (
        Facts(delivered=5, stored=5, checked=proof(agrees=False, finding="a batch has other values")),
        Level.WRONG,
        "differs: a batch has other values (checked at 2026-11-25 14:02:11)",
    ),
    "audit said no, a later check yes": (
        Facts(
            delivered=5,
            stored=5,
            checked=proof(),
            audited=proof("audited", EARLIER, agrees=False, finding=LOST),
        ),
        Level.WRONG,
        f"differs: {LOST} (audited at 2026-11-25 12:00:00)",
    ),
    "rows too many": (Facts(delivered=5, stored=15), Level.WRONG, "differs: +10 rows in ClickHouse"),
    "rows lost": (Facts(delivered=5, stored=4, verified=AT), Level.WRONG, "differs: -1 rows in ClickHouse"),
    "expired": (Facts(delivered=5, expired=2, stored=3), Level.COUNTED, "counts agree"),
    "more than expired": (
        Facts(delivered=5, expired=2, stored=2),
        Level.WRONG,
        "differs: -1 rows in ClickHouse",
    ),
    "several findings": (
        Facts(stored=0, differences=("a", "b", "c")),
        Level.WRONG,
        "differs: a (and 2 more)",
    ),
    "changing": (
        Facts(delivered=5, pushed=-3, sealed=3, stored=2, changing=("a batch is changing",), verified=AT),
        Level.WAITING,
        "a batch is changing",
    ),
    "under way": (
        Facts(delivered=5, pushed=2, sealed=3, stored=9, open_run=OpenRun(2, "SEALED", 1)),
        Level.WAITING,
        "run 2 is not closed (SEALED)",
    ),
    "more than is under way": (
        Facts(delivered=5, pushed=2, sealed=3, stored=11, open_run=OpenRun(2, "SEALED", 1)),
        Level.WRONG,
        "differs: +1 rows in ClickHouse; run 2 is not closed (SEALED)",
    ),
    "less than was pushed": (
        Facts(delivered=5, pushed=2, sealed=3, stored=6, open_run=OpenRun(2, "SEALED", 1)),
        Level.WRONG,
        "differs: -1 rows in ClickHouse; run 2 is not closed (SEALED)",
    ),
    "taken up again and again": (
        Facts(stored=0, open_run=OpenRun(2, "PLANNED", 12)),
        Level.WRONG,
        "run 2 is not closed (PLANNED, begun 12 times)",
    ),
    "failing": (
        Facts(stored=0, failure=Failure(12, EARLIER, "seal", 2, "no"), open_run=OpenRun(2, "PLANNED", 12)),
        Level.WRONG,
        "failed 12 times since 2026-11-25 12:00:00: seal of run 2: no",
    ),
    "failed once in passing": (
        Facts(stored=0, failure=Failure(1, EARLIER, "plan", None, "no answer", passing=True)),
        Level.WAITING,
        "failed at 2026-11-25 12:00:00: plan: no answer",
    ),
    "failed once in passing, then killed again and again": (
        Facts(
            stored=0,
            failure=Failure(1, EARLIER, "plan", None, "no answer", passing=True),
            open_run=OpenRun(2, "PLANNED", 4),
        ),
        Level.WRONG,
        "run 2 is not closed (PLANNED, begun 4 times); failed at 2026-11-25 12:00:00: plan: no answer",
    ),
    "failed in passing twice": (
        Facts(stored=0, failure=Failure(2, EARLIER, "plan", None, "no answer", passing=True)),
        Level.WRONG,
        "failed 2 times since 2026-11-25 12:00:00: plan: no answer",
    ),
    "at work for the first time": (unended(1), Level.WAITING, "waiting 6"),
    "killed once": (unended(2), Level.WAITING, f"{UNENDED.format(2)}; waiting 6"),
    "killed each time, begun as often as tolerated": (
        unended(3),
        Level.WAITING,
        f"{UNENDED.format(3)}; waiting 6",
    ),
    "killed each time": (unended(4), Level.WRONG, f"{UNENDED.format(4)}; waiting 6"),
    "a build failed, and was killed": (
        unended(2, build_failure=Failure(1, EARLIER, "views build", None, "no")),
        Level.WRONG,
        f"failed at 2026-11-25 12:00:00: views build: no; {UNENDED.format(2)}; waiting 6",
    ),
    "a build failed once in passing, the delivery for good": (
        Facts(
            failure=Failure(1, AT, "seal", 2, "bad"),
            build_failure=Failure(1, EARLIER, "views build", None, "no answer", passing=True),
        ),
        Level.WRONG,
        "failed at 2026-11-25 14:02:11: seal of run 2: bad; "
        "failed at 2026-11-25 12:00:00: views build: no answer",
    ),
    "topic waits": (Facts(stored=0, waiting=6304), Level.WAITING, "waiting 6,304"),
    "view waits": (
        Facts(delivered=5, stored=5, at_source=9, held=1, verified=AT),
        Level.HELD,
        "1 held; 3 in the view not delivered",
    ),
    "rows that the view lost make up for none not delivered": (
        Facts(delivered=6, stored=6, at_source=6, held=1, undelivered=2, lost=2, verified=AT),
        Level.HELD,
        "1 held; 1 in the view not delivered; the view has 2 rows fewer than were delivered",
    ),
    "view not read": (
        Facts(delivered=5, stored=5, unread=3, checked=proof()),
        Level.WAITING,
        "3 in the view not delivered",
    ),
    "as many gone as wait": (
        Facts(delivered=5, delivered_before=5, stored=5, unread=3, at_source=5, verified=AT),
        Level.WAITING,
        "3 in the view not delivered; the view has 3 rows fewer than were delivered",
    ),
    "open transaction": (
        Facts(delivered=5, stored=5, unreadable=10, checked=proof()),
        Level.WAITING,
        "10 behind an open transaction",
    ),
    "recreated topic": (
        Facts(delivered=5, stored=5, waiting=150, obstacles=("topic t was made anew",)),
        Level.WRONG,
        "stopped: topic t was made anew; waiting 150",
    ),
    "held": (Facts(delivered=5, stored=5, held=2, checked=proof()), Level.HELD, "2 held"),
    "held too long": (
        Facts(stored=0, held=2, overdue=("'o' since run 1",)),
        Level.WRONG,
        "2 held: 'o' since run 1",
    ),
    "ids wait in builds, although all that is in the view is delivered": (
        Facts(delivered=5, stored=5, verified=AT, view_waits=(ViewWait(1200, "a-1", 4, EARLIER, "a gap"),)),
        Level.HELD,
        "1,200 persistence ids wait in views build, 'a-1' in front of sequence_nr 4 since "
        "2026-11-25 12:00:00 (a gap)",
    ),
    "one waits in builds for too long, an erased one not": (
        Facts(
            delivered=5,
            stored=5,
            held=2,
            view_waits=(
                ViewWait(1, "", 7, AT, "a null"),
                ViewWait(1, "a-1", 4, EARLIER, "a gap", too_long=True),
            ),
        ),
        Level.WRONG,
        "1 persistence id waits in views build, 'a-1' in front of sequence_nr 4 since 2026-11-25 12:00:00 "
        "(a gap): longer than max_hold_age_seconds; 2 held; 1 persistence id waits in views build, one in "
        "front of sequence_nr 7 since 2026-11-25 14:02:11 (a null)",
    ),
    "one is refused by builds until a person acts": (
        Facts(
            delivered=5,
            stored=5,
            view_waits=(ViewWait(1, "a-1", 4, EARLIER, "somebody else has numbered it", way_out="Adopt it"),),
        ),
        Level.WRONG,
        "1 persistence id waits in views build, 'a-1' in front of sequence_nr 4 since 2026-11-25 12:00:00 "
        "(somebody else has numbered it). Adopt it",
    ),
    "dead letters, proven": (
        Facts(delivered=5, stored=5, dead_letters=4, verified=AT),
        Level.APART,
        "exactly once, checked at 2026-11-25 14:02:11; 4 dead letters",
    ),
    "dead letters, counted": (
        Facts(delivered=5, stored=5, dead_letters=4),
        Level.COUNTED,
        "counts agree; 4 dead letters",
    ),
    "view shrank": (
        Facts(delivered=16, delivered_before=16, stored=16, at_source=11, verified=AT),
        Level.APART,
        "exactly once, checked at 2026-11-25 14:02:11; the view has 5 rows fewer than were delivered",
    ),
    "replicated": (Facts(settled="all is replicated"), Level.COUNTED, "all is replicated"),
}


@pytest.mark.parametrize("case", CASES)
def test_judge_facts_give_word_and_level(case):
    facts, level, word = CASES[case]
    verdict = judge(facts)
    assert (verdict.level, verdict.word) == (level, word)


def test_judge_reasons_worst_first():
    facts = Facts(
        delivered=5, stored=4, waiting=3, held=2, dead_letters=1, failure=Failure(1, AT, "push", 4, "no")
    )
    reasons = judge(facts).reasons
    levels = [reason.level for reason in reasons]
    assert (
        len(levels) == 5
        and levels == sorted(levels, reverse=True)
        and reasons[0].text.startswith("differs: -1")
    )


def test_unknown_keeps_the_reason():
    verdict = unknown("Kafka can't be reached")
    assert (verdict.level, verdict.word) == (Level.UNKNOWN, "not known: Kafka can't be reached")
