"""Which partitions may be deleted: each guard by itself, and that a partition goes only if no guard
objects.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import from_datetime
from tagmill.maintenance.view_cleanup import rules
from tagmill.maintenance.view_cleanup.rules import (
    Bucket,
    Delivered,
    Held,
    Now,
    Proof,
    ReadTo,
    Reason,
    TagState,
)

HOUR = 3_600_000
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
BUCKET = Bucket("t", int(NOON.timestamp()) * 1000, BucketSize.HOUR)
AUDITED = NOON + timedelta(days=1)


def ticks(**later):
    return from_datetime(NOON + timedelta(**later))


STATE = TagState(Delivered("orders", ticks(days=-9), ticks(days=2)), readers=[ReadTo("mail", ticks(days=2))])
PROOF = Proof(AUDITED, 16, True)
NOW = Now(16, rules.microseconds(NOON), {"orders": 16})


def reason(state=STATE, proofs=None, now=NOW):
    """Return the reason that forbids deletion of the bucket, or None."""
    proofs = {"orders": PROOF} if proofs is None else proofs
    found = (
        rules.refused_by_tag(BUCKET, state)
        or rules.refused_by_audit(BUCKET, state, proofs)
        or rules.refused_by_rows(proofs, now)
    )
    return found.reason if found else None


def test_cleanup_allows_bucket_without_objection():
    """Buckets to which no guard objects may be deleted."""
    assert reason() is None


@pytest.mark.parametrize(
    ("readers", "expected"),
    [
        (None, Reason.READERS_NOT_STATED),
        ([], None),
        ([ReadTo("mail", None, "it has no offset yet")], Reason.READER_BEHIND),
        ([ReadTo("mail", ticks(minutes=59))], Reason.READER_BEHIND),
        # A reader in the next bucket may still go back to this one.
        ([ReadTo("mail", ticks(minutes=119))], Reason.READER_BEHIND),
        ([ReadTo("mail", ticks(hours=2))], None),
        ([ReadTo("mail", ticks(hours=2)), ReadTo("search", ticks(hours=1))], Reason.READER_BEHIND),
    ],
)
def test_every_other_reader_is_beyond_it(readers, expected):
    """Readers must be stated, if only as an empty list, and have read past the bucket and the next one."""
    assert reason(replace(STATE, readers=readers)) == expected


@pytest.mark.parametrize(
    ("start", "needs_from", "expected"),
    [
        (ticks(), ticks(hours=1), None),
        (ticks(minutes=1), ticks(hours=1), Reason.BEFORE_START),
        (ticks(), ticks(minutes=59), Reason.STILL_READ),
        (ticks(), None, Reason.STILL_READ),
    ],
)
def test_cleanup_refuses_bucket_still_read(start, needs_from, expected):
    """Buckets may go only if delivery began at or before their start and later runs need none of their
    rows.
    """
    assert reason(replace(STATE, cleaning=Delivered("orders", start, needs_from))) == expected


def test_no_run_is_open_that_might_read_it():
    """Open runs that might read the bucket keep it, also those of another pipeline unless that starts behind
    the bucket.
    """
    assert reason(replace(STATE, cleaning=replace(STATE.cleaning, open_run=7))) == Reason.STILL_READ
    withdrawing = Delivered("mirror", ticks(days=-9), ticks(days=2), open_run=3)
    assert reason(replace(STATE, others=[withdrawing])) == Reason.STILL_READ
    assert reason(replace(STATE, others=[replace(withdrawing, start=ticks(hours=1))])) is None


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(-2, -1, None), (-2, 0, Reason.HELD), (0, 0, Reason.HELD), (-1, 1, Reason.HELD), (1, 3, None)],
)
def test_no_hold_may_find_its_rows_in_it(first, last, expected):
    """Holds keep all buckets in which their missing rows may lie."""
    held = Held(BUCKET.timebucket + first * HOUR, BUCKET.timebucket + last * HOUR, "p")
    away = Held(BUCKET.timebucket - 9 * HOUR, BUCKET.timebucket - 8 * HOUR, "q")
    assert reason(replace(STATE, cleaning=replace(STATE.cleaning, holds=[away, held]))) == expected


@pytest.mark.parametrize(
    ("proofs", "expected"),
    [
        ({}, Reason.NOT_AUDITED),
        ({"orders": replace(PROOF, agrees=False)}, Reason.AUDIT_DISAGREES),
        ({"orders": PROOF}, None),
    ],
)
def test_its_audit_agrees(proofs, expected):
    """Buckets may go only after an audit of theirs that agrees."""
    assert reason(proofs=proofs) == expected


@pytest.mark.parametrize(
    ("other", "proof", "there", "expected"),
    [
        (Delivered("mirror", ticks(days=-9), ticks(days=2)), PROOF, 16, None),
        (Delivered("mirror", ticks(days=-9), ticks(days=2)), None, 16, Reason.NOT_AUDITED),
        (Delivered("mirror", ticks(days=-9), ticks(days=2)), PROOF, 15, Reason.NOT_IN_CLICKHOUSE),
        (Delivered("mirror", ticks(days=-9), None), PROOF, 16, Reason.STILL_READ),
        # This pipeline starts behind the bucket, so it need not have delivered it.
        (Delivered("mirror", ticks(hours=1), None), None, 0, None),
    ],
)
def test_every_pipeline_that_delivers_it_has_proven_it(other, proof, there, expected):
    """Pipelines that deliver the bucket as well need an audit that agrees and all rows in ClickHouse, too."""
    proofs = {"orders": PROOF} | ({"mirror": proof} if proof else {})
    now = replace(NOW, in_clickhouse={"orders": 16, "mirror": there})
    assert reason(replace(STATE, others=[other]), proofs, now) == expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (replace(NOW, rows=17), Reason.CHANGED),
        (replace(NOW, rows=15), Reason.CHANGED),
        # The count of rows is the same, but one was written after the audit.
        (replace(NOW, newest_write=rules.microseconds(AUDITED) + 1), Reason.CHANGED),
        (replace(NOW, newest_write=rules.microseconds(AUDITED)), None),
        (replace(NOW, in_clickhouse={"orders": 15}), Reason.NOT_IN_CLICKHOUSE),
        (replace(NOW, in_clickhouse={}), Reason.NOT_IN_CLICKHOUSE),
        (replace(NOW, in_clickhouse={"orders": 17}), None),
        # One row came late, after sixteen were cleaned: the sixteen in ClickHouse do not cover it.
        (replace(NOW, cleaned=1), Reason.NOT_IN_CLICKHOUSE),
        (replace(NOW, cleaned=1, in_clickhouse={"orders": 17}), None),
    ],
)
def test_it_is_still_what_the_audit_saw(now, expected):
    """Buckets stay if rows came, went or changed since the audit, or if ClickHouse has fewer rows."""
    assert reason(now=now) == expected


def test_delete_up_to_is_oldest_audit():
    """Rows written after the oldest of the pipelines' audits survive the deletion."""
    later = replace(PROOF, audited_at=AUDITED + timedelta(hours=1))
    assert rules.delete_up_to({"orders": later, "mirror": PROOF}) == AUDITED


def test_a_candidate_ends_before_its_ttl_begins():
    """Candidates end at or before the moment that lies older_than_days back."""
    assert rules.limit(NOON + timedelta(days=30, hours=1), 30) == BUCKET.end


def test_merged_holds_cover_all_ranges():
    """Overlapping ranges of holds become one range; none is lost."""
    ranges = [Held(5, 9, "c"), Held(0, 2, "a"), Held(1, 4, "b"), Held(7, 8, "d")]
    assert rules.merged(ranges) == [Held(0, 4, "a"), Held(5, 9, "c")]
    assert rules.merged([]) == []


@pytest.mark.parametrize(
    ("is_open", "finished_at", "gone"),
    [(False, NOON, True), (False, AUDITED, False), (True, NOON, False), (False, None, False)],
)
def test_what_is_under_way_is_never_past_retention(is_open, finished_at, gone):
    """Records of open or unfinished work are kept; finished work is past retention once it finished before
    the limit.
    """
    assert rules.past_retention(is_open, finished_at, NOON + timedelta(hours=1)) is gone
