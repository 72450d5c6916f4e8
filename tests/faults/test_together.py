"""Two commands at once: one works, the other waits or names the holder of the lease."""

from collections.abc import Callable
from typing import Any

import pytest

from tagmill.ledger import lease


def test_two_deliveries_at_once_deliver_once(
    delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Start two deliveries in the same moment, without waiting; the one that gets no lease names the
    holder.
    """
    one = delivery()
    one.sealed()
    both = [one.deliver(at="push.before_insert") if i == 0 else one.deliver() for i in range(2)]
    refused = both[1].end()
    assert refused.code == 75, refused
    assert f"cli/{lease.socket.gethostname()}/{both[0].process.pid}/" in refused.error
    assert "is at work. Nothing was done; try again later" in refused.error
    assert both[0].end().code == 0
    undisturbed("gap-middle").equals(one)
    assert one.check().code == 0


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_deliveries_may_wait_both_end_well(
    delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Start two deliveries that may wait for the lease; both end with 0, and each row is delivered once."""
    one = delivery(lease_wait_seconds=300)
    both = [one.deliver(), one.deliver()]
    assert [command.end().code for command in both] == [0, 0], [command.ended() for command in both]
    undisturbed("gap-middle").equals(one)
    assert one.check().code == 0


def test_void_or_abandon_during_delivery_refuses(delivery: Callable[..., Any]) -> None:
    """Void and abandon a run while another process pushes it; both refuse, and the delivery ends well."""
    one = delivery()
    one.sealed()
    at_work = one.deliver(at="push.before_insert")
    for verb in ("void", "abandon"):
        refused = one.said("run", verb, "--why", "impatience", "--yes")
        assert refused.code == 75, refused
        assert "is at work" in refused.error
    assert at_work.end().code == 0
    assert {state for *_, state, _ in one.batches()} == {"IN_CLICKHOUSE"}
