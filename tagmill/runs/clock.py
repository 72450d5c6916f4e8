"""The time that decides what a run reads, deletes or considers done: the earliest of what the servers' clocks
show.
"""

from datetime import datetime

import structlog

from tagmill.cassandra.client import Cassandra
from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.domain import clock
from tagmill.errors import StoreUnavailable

log = structlog.get_logger()


def agreed_now(settings: Settings, cassandra: Cassandra) -> datetime:
    """Return the earliest of the servers' times; raises ClockDiffers where any clock, ours included, is too
    far off.

    A ClickHouse that does not answer is left out: the step that needs it says so.
    """
    readings = list(cassandra.clocks)
    quick = {"request_timeout_seconds": settings.clickhouse.connect_timeout_seconds}
    try:
        with ClickHouse(settings.clickhouse.model_copy(update=quick)) as clickhouse:
            readings.append(clock.read(clickhouse.where, clickhouse.now))
    except StoreUnavailable as error:
        log.warning("the clock of ClickHouse was not read", error=str(error))
    clock.require_agreement(readings, settings.cassandra.max_clock_difference_seconds)
    return clock.earliest(readings)
