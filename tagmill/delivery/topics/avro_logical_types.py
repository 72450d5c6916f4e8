"""Convert values of Avro's base types to the logical types of their schemas. Pure.

A logical type that is unknown here, belongs to another base type, or is not valid, is read as its base type,
as the specification says. So is a value that its logical type can't hold: a date after 9999, a text that is
not a UUID.
Source: https://avro.apache.org/docs/1.12.0/specification/#logical-types
"""

import struct
import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, NamedTuple

NANOSECONDS = 1_000_000_000
NANOSECONDS_OF_MILLISECOND = 1_000_000
EPOCH, DAY = datetime(1970, 1, 1), timedelta(days=1)
UUID_BYTES = 16
# Bytes of a decimal, at most: digits of more are slow to make.
DECIMAL_BYTES = 1000
DURATION = struct.Struct("<III")
# Moves a decimal's point without rounding.
EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


class Nanoseconds(int):
    """A moment in nanoseconds since 1970, in UTC."""

    zone = "Z"

    @property
    def milliseconds(self) -> int:
        """Whole milliseconds since 1970, rounded down."""
        return self // NANOSECONDS_OF_MILLISECOND

    def text(self) -> str:
        """Return the moment in ISO 8601, with all nine digits of the fraction."""
        seconds, rest = divmod(int(self), NANOSECONDS)
        return f"{(EPOCH + timedelta(seconds=seconds)).isoformat()}.{rest:09}{self.zone}"


class LocalNanoseconds(Nanoseconds):
    """A moment in nanoseconds since 1970, in a time zone that the schema does not name."""

    zone = ""


class LogicalType(NamedTuple):
    """A logical type: its kind, by which evolution lists the columns that take it, and the function that
    converts a base value to it.
    """

    kind: str
    convert: Callable[[Any], Any]


def _time(unit: timedelta) -> Callable[[int], time]:
    def since_midnight(value: int) -> time:
        if not 0 <= value < DAY // unit:
            raise ValueError("not within a day")
        return (EPOCH + value * unit).time()

    return since_midnight


def _duration(value: bytes) -> str:
    """Return a duration in ISO 8601: months, days, and seconds with milliseconds, which are not converted
    into each other.
    """
    months, days, milliseconds = DURATION.unpack(value)
    return f"P{months}M{days}DT{milliseconds // 1000}.{milliseconds % 1000:03}S"


# Logical types by base type and name: first those that fastavro reads, then Tagmill's own.
_BY_FASTAVRO = {
    ("long", "timestamp-millis"): "moment",
    ("long", "timestamp-micros"): "moment",
    ("long", "local-timestamp-millis"): "moment",
    ("long", "local-timestamp-micros"): "moment",
    ("int", "date"): "day",
    ("string", "uuid"): "uuid",
}
_OWN = {
    ("long", "timestamp-nanos"): LogicalType("nanoseconds", Nanoseconds),
    ("long", "local-timestamp-nanos"): LogicalType("nanoseconds", LocalNanoseconds),
    ("int", "time-millis"): LogicalType("time", _time(timedelta(milliseconds=1))),
    ("long", "time-micros"): LogicalType("time", _time(timedelta(microseconds=1))),
}


def logical_type(schema: Mapping[str, Any]) -> LogicalType | None:
    """Return the logical type of a parsed schema; None if values are read as its base type."""
    name = schema.get("logicalType")
    if not isinstance(name, str):
        return None
    base = (schema["type"], name)
    if base in _BY_FASTAVRO:
        from fastavro.read import LOGICAL_READERS

        convert: Any = LOGICAL_READERS["-".join(base)]
        return LogicalType(_BY_FASTAVRO[base], convert)
    if base == ("fixed", "uuid") and schema["size"] == UUID_BYTES:
        return LogicalType("uuid", lambda value: uuid.UUID(bytes=value))
    if base == ("fixed", "duration") and schema["size"] == DURATION.size:
        return LogicalType("duration", _duration)
    if base in (("bytes", "decimal"), ("fixed", "decimal")):
        return _decimal(schema)
    return _OWN.get(base)


def _decimal(schema: Mapping[str, Any]) -> LogicalType | None:
    precision, scale = schema.get("precision"), schema.get("scale") or 0
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
        return None

    def decimal(value: bytes) -> Decimal:
        if len(value) > DECIMAL_BYTES:
            raise ValueError("too many digits")
        return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, EXACT)

    return LogicalType("decimal", decimal)
