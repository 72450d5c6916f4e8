"""Operations end well, or with one line, while connections to Cassandra and ClickHouse are cut by chance."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.conftest import Delivery
from tests.support.building import VIEWS, recorded, rows
from tests.support.commands import Ended
from tests.support.relay import relayed

CASE = "partition-boundary"
SECONDS_BETWEEN = 0.2


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("small_run_rows", [0, 50_000], ids=["by Spark", "here"])
def test_operations_through_cut_connections_lose_nothing(
    small_run_rows: int, stack: Any, delivery: Callable[..., Delivery], undisturbed: Callable[[str], Any]
) -> None:
    """Deliver, rebuild the view and audit, each again until it succeeds."""
    with (
        relayed(stack.cassandra.port) as cassandra,
        relayed(stack.clickhouse.port) as clickhouse,
    ):
        ports = {"cassandra": {"port": cassandra.port}, "clickhouse": {"port": clickhouse.port}}
        one = delivery(CASE, sections=ports, small_run_rows=small_run_rows)
        with cassandra.cutting(SECONDS_BETWEEN), clickhouse.cutting(SECONDS_BETWEEN):
            succeeds(one, "run", "deliver")
            succeeds(one, "views", "delete", "--offline", "--yes")
            succeeds(one, "views", "rebuild", "--offline", "--yes")
            assert '"agrees": true' in succeeds(one, "audit", "--json").out
        undisturbed(CASE).equals(one)
    assert {table: rows(stack, one.keyspace, table) for table in VIEWS} == {
        table: recorded(CASE, table) for table in VIEWS
    }


def succeeds(one: Delivery, *command: str) -> Ended:
    """Run a command again as long as it ends with one line that says to, and return how it ended."""
    for _ in range(5):
        ended = one.here(*command)
        if ended.code == 0:
            return ended
        assert ended.code == 75 and ended.error.startswith("error: "), ended
    raise AssertionError(ended)
