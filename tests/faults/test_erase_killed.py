"""A killed erasure is finished by the next one, and until then every delivery refuses."""

from collections.abc import Callable

import pytest

from tests.faults.conftest import Delivery

INSTANTS = ("erase.events_erased", "erase.resealed", "erase.before_end")
KILLED = "erase.resealed"


@pytest.mark.timeout(900)
def test_erase_killed_at_each_instant_finishes(delivery: Callable[..., Delivery]) -> None:
    """Kill or crash an erasure at each announced instant; the last one leaves the rows and progress of the other
    persistence ids only.
    """
    disturbed = delivery("gap-middle")
    disturbed.finish()
    ids = sorted({row[1] for row in disturbed.rows()})[:3]
    others = [row for row in disturbed.rows() if row[1] not in ids]
    progress = [row for row in disturbed.progress() if row[1] not in ids]
    assert others and len(others) < len(disturbed.rows())
    named = [option for one in ids for option in ("--persistence-id", one)]
    disturbed.start("erase", *named, "--why", "a test", "--yes", at="erase.recorded").kill()
    refused = disturbed.said("run", "deliver")
    assert refused.code == 2 and "finish it: tagmill erase" in refused.error
    for instant in INSTANTS:
        if instant == KILLED:
            disturbed.start("erase", "--yes", at=instant).kill()
        else:
            disturbed.crash("erase", "--yes", at=instant)
    ended = disturbed.here("erase", "--yes")
    assert ended.code == 0, ended
    assert disturbed.rows() == others and disturbed.progress() == progress
    assert not any(one in cell for row in disturbed.view() for cell in row for one in map(repr, ids))
    assert sum(delivered for _, delivered in disturbed.marks()) == len(others)
    assert "failed at" in disturbed.check().out  # check reports the refused delivery until one succeeds
    disturbed.finish()
    assert disturbed.check().code == 0
    assert disturbed.rows() == others
