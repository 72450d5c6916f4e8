"""Find the fields of an event by their paths, and convert them to what a column of ClickHouse takes. Pure."""

import math
import re
import struct
import uuid
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from tagmill.config.kafka import decimal_digits
from tagmill.delivery.topics.avro_logical_types import EXACT, Nanoseconds
from tagmill.delivery.topics.event_ids import Value
from tagmill.delivery.topics.json_numbers import Number
from tagmill.domain.batches.layout import Column
from tagmill.domain.field_path import split

EPOCH = date(1970, 1, 1)
EPOCH_MOMENT, MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
# Characters of a value that an error shows.
SHOWN = 200
# A number as text: as JSON writes it, or with a sign or more zeros in front.
NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# Moments must be before 2100, here in milliseconds since 1970.
BEHIND_LAST_MS = 4_102_444_800_000


class InvalidRecord(ValueError):
    """An event, or a field of one, is not what the pipeline says; the text names the field.

    `reason`: the same text for all values with this fault.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason or text


def unfit(value: Any, reason: str) -> InvalidRecord:
    """Return the error for a value; its text begins with the first SHOWN characters of the value."""
    return InvalidRecord(f"{repr(value)[:SHOWN]} {reason}", reason)


class Nested:
    """A decoder's value that is not a plain one, or that stands for a plain one."""

    def leaf(self) -> Any:
        """Return the value of a path that ends here."""
        return self

    def text(self) -> str:
        """Return the value as a column of text takes it; raises InvalidRecord."""
        raise unfit(self, "has no text")

    def key(self) -> str | None:
        """Return the text that enters an id; None if the value can't be part of one. Raises InvalidRecord."""
        return None

    def milliseconds(self) -> int:
        """Return the whole milliseconds since 1970; raises InvalidRecord."""
        raise unfit(self, "is no moment")


Event = Mapping[str, Any]
# Types whose values enter an id as they are. A float doesn't: it may be NaN.
PLAIN = frozenset((str, int, bool))


def finder(path: str) -> Callable[[Event], Any]:
    """Return a function that finds the field at a dotted path of an event; it returns None if the field or
    its parent is missing.
    """
    first, *rest = split(path)

    def top(event: Event) -> Any:
        found = event.get(first)
        return found.leaf() if isinstance(found, Nested) else found

    def below(event: Event) -> Any:
        found: Any = event.get(first)
        for step in rest:
            # It is nearly always a dict, for which the first test, a quick one, is enough.
            if type(found) is not dict and not isinstance(found, Mapping):
                return None
            found = found.get(step)
        return found.leaf() if isinstance(found, Nested) else found

    return below if rest else top


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def integer(value: Any) -> int:
        if type(value) is int and low <= value <= high:  # nearly always so
            return value
        if isinstance(value, bool) or not isinstance(value, int | Decimal | float) or value != value:
            raise unfit(value, "is no integer")
        if not low <= value <= high:  # before int(), which would write out all digits of 1e999999999
            raise unfit(value, "is out of range")
        if value != int(value):
            raise unfit(value, "is no integer")
        return int(value)

    return integer


def _float_bits(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise unfit(value, "is no number")
    number = float(value)
    if math.isnan(number):
        raise InvalidRecord("NaN", "is NaN")
    if math.isinf(number) and value != number:
        raise unfit(value, "is out of range")
    return int.from_bytes(struct.pack(">d", number + 0.0), "big", signed=True)


def _boolean(value: Any) -> int:
    if not isinstance(value, bool):
        raise unfit(value, "is neither true nor false")
    return int(value)


def _plain_decimal(value: Any) -> Decimal | str:
    if isinstance(value, Number):
        return Decimal(value)
    if isinstance(value, Nanoseconds):
        return value.text()
    raise TypeError(f"{type(value).__name__} has no JSON")


_as_json = msgspec.json.Encoder(enc_hook=_plain_decimal, decimal_format="number")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Nested):
        return value.text()
    if isinstance(value, float) and not math.isfinite(value):
        return str(_with_words(value))
    if isinstance(value, datetime | date | time | uuid.UUID):
        return str(msgspec.to_builtins(value))
    if isinstance(value, Nanoseconds):
        return value.text()
    if type(value) is Decimal:
        return f"{value:f}"  # all digits, without an exponent
    text = _as_json.encode(value)
    # A null may stand for a float that JSON doesn't have.
    return (_as_json.encode(_with_words(value)) if b"null" in text else text).decode()


def _with_words(value: Any) -> Any:
    """Replace floats that JSON doesn't have, at any depth, by ProtoJSON's words for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _with_words(part) for key, part in value.items()}
    return [_with_words(part) for part in value] if isinstance(value, list) else value


def milliseconds(value: Any) -> int:
    """Return the milliseconds from 1970 to a moment, rounded down.

    In: ISO 8601 text (without a zone UTC), a number of milliseconds, or what a decoder makes of its own
    types.
    """
    if isinstance(value, Nested):
        return value.milliseconds()
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        moment = value if value.tzinfo else value.replace(tzinfo=UTC)
        return (moment - EPOCH_MOMENT) // MILLISECOND
    if isinstance(value, Nanoseconds):
        return value.milliseconds
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise unfit(value, "is no moment")
    if not -(2**63) <= value < 2**63:
        raise unfit(value, "is out of range")
    return math.floor(value)


def _moment(value: Any) -> int:
    found = milliseconds(value)
    if not 0 <= found < BEHIND_LAST_MS:
        raise unfit(value, "is not between 1970 and 2100")
    return found


def _day(value: Any) -> int:
    if isinstance(value, str):
        value = date.fromisoformat(value)
    if not isinstance(value, date):
        raise unfit(value, "is no day")
    days = (value.date() if isinstance(value, datetime) else value).toordinal() - EPOCH.toordinal()
    if not 0 <= days <= 65_535:
        raise unfit(value, "is not between 1970 and 2149")
    return days


def _uuid(value: Any) -> str:
    if isinstance(value, bytes):
        return str(uuid.UUID(bytes=value))
    if not isinstance(value, str | uuid.UUID):
        raise unfit(value, "is no UUID")
    return str(uuid.UUID(value) if isinstance(value, str) else value)


def _as_decimal(value: Any) -> Decimal:
    """Return a number as a decimal without loss; a double becomes the decimal that its shortest text says."""
    if isinstance(value, str) and not NUMBER.fullmatch(value):
        raise unfit(value, "is no number")
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise unfit(value, "is no number")
    return (
        value if isinstance(value, Decimal) else Decimal(repr(value) if isinstance(value, float) else value)
    )


def _decimal(precision: int, scale: int) -> Callable[[Any], str]:
    def decimal(value: Any) -> str:
        """Return the digits as ClickHouse's toString writes them, without zeros at the end of the
        fraction.
        """
        try:
            number = EXACT.normalize(_as_decimal(value))
        except ArithmeticError:
            raise unfit(value, "is no number") from None
        exponent = number.as_tuple().exponent
        if not isinstance(exponent, int):  # NaN, Infinity
            raise unfit(value, "is no number")
        if number and number.adjusted() >= precision - scale:
            raise unfit(value, "is out of range")
        if number and exponent < -scale:
            raise unfit(value, f"has more than {scale} digits behind the point")
        return f"{number:f}" if number else "0"

    return decimal


@dataclass(frozen=True, slots=True)
class Kind:
    """A type that a column may have: how a sealed file holds its values, and how a field is converted to
    that.

    `insert` and `stored` are as in batches.columns.Column. A CAST names its type as {type}: to a type that is
    not nullable, ClickHouse refuses null, also in rows whose result is not used, unless
    short_circuit_function_evaluation spares them.
    """

    file_type: str
    number: bool
    convert: Callable[[Any], Any]
    insert: str = "{}"
    stored: str = "{}"


KINDS: dict[str, Kind] = {
    "String": Kind("String", False, _text),
    "LowCardinality(String)": Kind("String", False, _text),
    "Int8": Kind("Int8", True, _integer(-(2**7), 2**7 - 1)),
    "Int16": Kind("Int16", True, _integer(-(2**15), 2**15 - 1)),
    "Int32": Kind("Int32", True, _integer(-(2**31), 2**31 - 1)),
    "Int64": Kind("Int64", True, _integer(-(2**63), 2**63 - 1)),
    "Float64": Kind("Int64", True, _float_bits, "reinterpretAsFloat64({})", "reinterpretAsInt64({})"),
    "Bool": Kind("UInt8", True, _boolean, "CAST({} AS {type})", "CAST({} AS {type})"),
    "DateTime64(3, 'UTC')": Kind(
        "Int64", True, _moment, "fromUnixTimestamp64Milli({}, 'UTC')", "toUnixTimestamp64Milli({})"
    ),
    "Date": Kind("UInt16", True, _day, "CAST({} AS {type})", "CAST({} AS {type})"),
    "UUID": Kind("String", False, _uuid, "toUUID({})", "toString({})"),
}


def kind_of(column_type: str) -> Kind:
    """Return the Kind of a column's type; raises KeyError if no column may have that type."""
    if (digits := decimal_digits(column_type)) is not None:
        return Kind("String", False, _decimal(*digits), "CAST({} AS {type})", "toString({})")
    return KINDS[column_type]


@dataclass(frozen=True, slots=True)
class Field:
    """A column of the destination that is a field of the event."""

    name: str
    path: str
    type: str
    nullable: bool

    def reader(self, nulled: Callable[[str, str], None] | None = None) -> Callable[[Event], Any]:
        """Return a function that takes the field's value out of an event, as a sealed file holds it; it
        raises InvalidRecord, naming the field.

        In a nullable column, a value that the column can't hold becomes null, and `nulled` is called with the
        column and the reason.
        """
        find, convert = finder(self.path), kind_of(self.type).convert

        def read(event: Event) -> Any:
            found = find(event)
            if found is None:
                if self.nullable:
                    return None
                raise InvalidRecord(f"field {self.path} is missing")
            try:
                return convert(found)
            except (ArithmeticError, ValueError, TypeError, RecursionError) as error:
                if self.nullable:
                    if nulled:
                        nulled(
                            self.name,
                            error.reason if isinstance(error, InvalidRecord) else f"is no {self.type}",
                        )
                    return None
                raise InvalidRecord(f"field {self.path} is no {self.type}: {error}") from None

        return read

    @property
    def column(self) -> Column:
        """The column of a batch; where it is null, it leaves the checksum as it is, so that it may be added
        later.
        """
        kind = kind_of(self.type)
        wrap = "Nullable({})" if self.nullable else "{}"
        table_type = (
            "LowCardinality(Nullable(String))"
            if self.nullable and self.type.startswith("Low")
            else wrap.format(self.type)
        )
        file_type = wrap.format(kind.file_type)
        return Column(
            self.name,
            file_type,
            table_type,
            "number" if kind.number else "text",
            self.nullable,
            kind.insert.replace("{type}", table_type),
            kind.stored.replace("{type}", file_type),
            self.nullable,
        )


def key_reader(paths: Sequence[str]) -> Callable[[Event], list[Value]]:
    """Return a function that takes the values of the key's fields out of an event; it raises InvalidRecord if one is
    missing or not plain.
    """
    finders = [(path, finder(path)) for path in paths]

    def read(event: Event) -> list[Value]:
        values = [find(event) for _, find in finders]
        if PLAIN.issuperset(map(type, values)):  # nearly always so
            return values
        return [plain(path, value) for (path, _), value in zip(finders, values, strict=True)]

    return read


def plain(path: str, value: Any) -> Value:
    """Return the value of a key's field in the form from which the id is made; raises InvalidRecord."""
    if isinstance(value, float) and math.isnan(value):
        raise InvalidRecord(f"field {path}, of the key, is NaN, which tells no event from another one")
    if isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Number):
        return value if (double := value.double()) is None else double
    if isinstance(value, uuid.UUID | datetime | date | time | Decimal):
        return str(value)
    if isinstance(value, Nested) and (text := value.key()) is not None:
        return text
    if value is None:
        raise InvalidRecord(f"field {path}, of the key, is missing")
    raise InvalidRecord(f"field {path}, of the key, is no plain value")
