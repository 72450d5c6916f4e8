"""Which holds a plan looks at when there are more than it can look at."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tagmill.delivery.tag_views.holds import MAX_PROBES, gap_buckets, pick_holds
from tagmill.domain.continuity.model import Gap, Progress
from tagmill.domain.time_buckets import BucketSize
from tagmill.ledger.progress import HoldRow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOLD = HoldRow("t", "", "hole", Gap(1, 1, 0, 2), 0, 1, 1, NOW, "seen")


def test_in_turn_reaches_all_holds_changed_first() -> None:
    """Holds have their turn over several plans; one that a person has changed comes first."""
    holds = [replace(HOLD, persistence_id=f"p-{n}") for n in range(2 * MAX_PROBES)]
    holds[-1] = replace(holds[-1], seen="")
    looked_at = set[str]()
    for minutes in range(20):
        chosen = pick_holds(iter(holds), NOW + timedelta(minutes=minutes))
        assert len(chosen) == MAX_PROBES and chosen[0] == holds[-1]
        looked_at.update(hold.persistence_id for hold in chosen)
    assert len(looked_at) == len(holds)


def test_all_are_looked_at_when_they_are_few() -> None:
    """Look at all holds if there are no more than a plan can look at."""
    few = [replace(HOLD, persistence_id=f"p-{n}") for n in range(5)]
    assert {hold.persistence_id for hold in pick_holds(few, NOW)} == {hold.persistence_id for hold in few}


@given(
    size=st.sampled_from(BucketSize),
    delivered=st.integers(10**16, 10**16 + 10**12),
    held=st.integers(10**16, 10**16 + 10**12),
    skew=st.integers(-1, 1),
)
def test_gap_buckets_reach_around_missing_rows(
    size: BucketSize, delivered: int, held: int, skew: int
) -> None:
    """Missing rows lie between the last delivered event and the first held one, whichever is earlier, or in
    the bucket next to either.
    """
    hold = replace(HOLD, from_ticks=held)
    buckets = gap_buckets(size, Progress(1, 1, delivered, "", ()), hold, start_ticks=0)
    for tick in (delivered, held):
        assert size.start(tick) + skew * size.milliseconds in buckets
    assert size.start(held) in gap_buckets(size, None, hold, start_ticks=held)
