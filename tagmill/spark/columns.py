"""Expressions of Spark columns: the time in a TimeUUID, and numbers by the value of a column."""

import json
from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from tagmill.domain.timeuuid import GREGORIAN_TICKS


def number_by(column: str, numbers: Mapping[str, int] | Mapping[int, int]) -> Column:
    """Return the number (bigint) that belongs to a column's value; null if there is none.

    The mapping is one literal: with columns for its keys, py4j would ask the JVM six times for each of them.
    """
    return F.from_json(F.lit(json.dumps(numbers)), "map<string,bigint>")[F.col(column).cast("string")]


def offset_ticks(offset: Column) -> Column:
    """Return the ticks since 1970 (bigint) of a TimeUUID given as text; meaningless unless its version is 1.

    It costs more than most expressions: as a column of its own, to which other expressions refer, it is
    computed once.
    """
    digits = F.concat(_bytes_of(offset, 16, 3), _bytes_of(offset, 10, 4), _bytes_of(offset, 1, 8)).cast(
        "string"
    )
    return F.conv(digits, 16, 10).cast("bigint") - F.lit(GREGORIAN_TICKS)


def is_time_uuid(offset: Column) -> Column:
    """Return whether a UUID given as text is a TimeUUID, which has version 1."""
    return _bytes_of(offset, 15, 1) == F.lit(b"1")


def _bytes_of(text: Column, position: int, length: int) -> Column:
    """Return a part of a text as bytes: of a string, Spark would count all characters first."""
    return F.substring(text.cast("binary"), position, length)
