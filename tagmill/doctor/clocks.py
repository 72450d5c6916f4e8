"""Compare the clocks of this machine and the servers."""

from tagmill.cassandra.client import Cassandra
from tagmill.clickhouse.client import ClickHouse
from tagmill.doctor.model import Finding, Scope, fine, not_checked, said_of, warning, wrong
from tagmill.domain import clock
from tagmill.errors import TagmillError

KEY = "cassandra.max_clock_difference_seconds"


def examine(scope: Scope, cassandra: Cassandra | None, clickhouse: ClickHouse | None) -> Finding:
    """Return the finding for the clocks of the servers that are connected."""
    check, limit = "clocks", scope.settings.cassandra.max_clock_difference_seconds
    if cassandra is None and clickhouse is None:
        return not_checked(check, "no connection to Cassandra or ClickHouse")
    try:
        readings = list(cassandra.clocks) if cassandra else []
        if clickhouse is not None:
            readings.append(clock.read(clickhouse.where, clickhouse.now))
    except TagmillError as error:
        return not_checked(check, said_of(error))
    if differing := clock.difference(readings, limit):
        return wrong(check, f"{differing} ({KEY} is {limit:g})", "set the clock (NTP) of that machine")
    furthest = max(abs(reading.ahead).total_seconds() for reading in readings)
    compared = ", ".join(reading.where for reading in readings)
    said = f"at most {furthest:.1f} s between this machine and {compared}"
    if cassandra is None or (clickhouse is None and scope.delivering):
        unread = "Cassandra" if cassandra is None else "ClickHouse"
        return warning(check, f"{said}; not checked: no connection to {unread}")
    return fine(check, said)
