"""Which holds a plan looks at when there are more than it can look at."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tagmill.delivery.tag_views.holds import MAX_PROBES, in_turn
from tagmill.domain.continuity.model import Hole
from tagmill.ledger.progress import HoldRow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOLD = HoldRow("t", "", "hole", Hole(1, 1, 0, 2), 0, 1, 1, NOW, "seen")


def test_in_turn_reaches_all_holds_changed_first() -> None:
    """Holds have their turn over several plans; one that a person has changed comes first."""
    holds = [replace(HOLD, persistence_id=f"p-{n}") for n in range(2 * MAX_PROBES)]
    holds[-1] = replace(holds[-1], seen="")
    looked_at = set[str]()
    for minutes in range(20):
        chosen = in_turn(iter(holds), NOW + timedelta(minutes=minutes))
        assert len(chosen) == MAX_PROBES and chosen[0] == holds[-1]
        looked_at.update(hold.persistence_id for hold in chosen)
    assert len(looked_at) == len(holds)


def test_all_are_looked_at_when_they_are_few() -> None:
    """Look at all holds if there are no more than a plan can look at."""
    few = [replace(HOLD, persistence_id=f"p-{n}") for n in range(5)]
    assert {hold.persistence_id for hold in in_turn(few, NOW)} == {hold.persistence_id for hold in few}
