"""Propose columns, the key and the time of events from a sample of them. Pure.

A proposed type takes every sampled value, by the rules that a delivery has (tagmill.delivery.topics.fields).
"""

import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from itertools import combinations
from typing import Any

from tagmill.config.kafka import BESIDE_COLUMNS, MOST_DIGITS, OWN_COLUMNS
from tagmill.delivery.topics.fields import BEHIND_LAST_MS, kind_of, milliseconds
from tagmill.domain import field_path
from tagmill.onboarding.draft import plain_name

Path = tuple[str, ...]
# Limits: levels of objects that become columns, columns, fields that a key is tried of, fields of a key.
MOST_LEVELS, MOST_COLUMNS, KEY_FIELDS, LONGEST_KEY = 4, 100, 12, 3
# A text column is LowCardinality from this many values on, if at most one in ten and at most 100 differ.
ENOUGH_VALUES, SAME_SHARE, MOST_DIFFERENT = 50, 0.1, 100
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*")
DAY = re.compile(r"\d{4}-\d\d-\d\d")
UUID_TEXT = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
# Names of an event's own id and of its time, the most telling first, in lower case and without separators.
ID_NAMES = ("eventid", "messageid", "eventuuid", "uuid", "guid", "id", "recordid", "changeid", "key")
TIME_NAMES = (
    "createdat", "created", "occurredat", "eventtime", "eventtimestamp", "timestamp", "time", "ts", "date",
    "updatedat",
)  # fmt: skip
# Parts of the names of fields that an id is unique within.
KEY_WORDS = ("type", "version", "seq", "revision", "project", "tenant")
# Moments as numbers count as milliseconds only from 2000 on: seconds would lie in 1970.
FIRST_MS = 946_684_800_000


@dataclass(slots=True)
class Field:
    """A field of the sampled events: its values that are not null, and how many events have it as null."""

    path: Path
    values: list[Any] = field(default_factory=list)
    nulls: int = 0

    @property
    def text(self) -> str:
        """The path as the configuration writes it."""
        return field_path.join(self.path)


@dataclass(frozen=True, slots=True)
class Column:
    """A proposed column, the number of sampled events that have a value for it, and what is odd about it."""

    name: str
    path: str
    type: str
    events: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class EventKey:
    """The fields that make an event unique, as the settings unique_id and producer_id have them."""

    unique_id: Sequence[str]
    producer_id: str | None
    reason: str


def fields_of(events: Iterable[Mapping[str, Any]]) -> list[Field]:
    """Return the fields of events in the order in which they come; objects are walked down to MOST_LEVELS."""
    found: dict[Path, Field] = {}
    for event in events:
        for path, value in _leaves(event, ()):
            seen = found.setdefault(path, Field(path))
            if value is None:
                seen.nulls += 1
            else:
                seen.values.append(value)
    # An object that is null, or another type, in some events is a field next to its own fields.
    return [seen for seen in found.values() if seen.values or not _has_below(seen.path, found)]


def _leaves(event: Mapping[str, Any], above: Path) -> Iterator[tuple[Path, Any]]:
    for name, value in event.items():
        path = (*above, str(name))
        if not str(name):
            continue  # no path names such a field
        if isinstance(value, Mapping) and value and len(path) < MOST_LEVELS:
            yield from _leaves(value, path)
        else:
            yield path, value


def _has_below(path: Path, paths: Iterable[Path]) -> bool:
    return any(len(other) > len(path) and other[: len(path)] == path for other in paths)


def column_type(values: Sequence[Any]) -> tuple[str, str]:
    """Return the type of ClickHouse that takes these values (none of them null), and a note if it is a last
    resort.
    """
    if not values:
        return "String", "only null in the sample"
    kinds = {_kind(value) for value in values}
    if len(kinds) > 1:
        names = " and ".join(sorted(kinds))
        return "String", f"values of several types: {names}"
    (kind,) = kinds
    proposals, note = OF_KIND[kind](values)
    for proposal in proposals:
        if _takes(proposal, values):
            return proposal, ""
    return "String", note


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float | Decimal):
        return "number"
    for kind, types in (("text", str), ("bytes", bytes), ("UUID", uuid.UUID), ("moment", datetime)):
        if isinstance(value, types):
            return kind
    if isinstance(value, date):
        return "day"
    return "list" if isinstance(value, list) else "object" if isinstance(value, Mapping) else "other"


def _numbers(values: Sequence[Any]) -> tuple[list[str], str]:
    if all(isinstance(value, int) for value in values):
        digits = max(len(str(abs(value))) for value in values)
        wide = [f"Decimal({most}, 0)" for most in (38, MOST_DIGITS) if digits <= most]
        return ["Int64", *wide], f"whole numbers of up to {digits} digits, more than any type takes"
    if any(isinstance(value, Decimal) for value in values):
        # A decimal of a decoder is a number that a double would change.
        return [], "numbers with more digits than a double holds: as text they keep them"
    return ["Float64"], "numbers that a double does not hold"


def _texts(values: Sequence[Any]) -> tuple[list[str], str]:
    if all(UUID_TEXT.fullmatch(value) for value in values):
        return ["UUID"], ""
    if all(MOMENT.fullmatch(value) for value in values):
        return ["DateTime64(3, 'UTC')"], ""
    if all(DAY.fullmatch(value) for value in values):
        return ["Date"], ""
    different = len(set(values))
    few = len(values) >= ENOUGH_VALUES and different <= min(MOST_DIFFERENT, SAME_SHARE * len(values))
    return ["LowCardinality(String)"] if few else [], ""


OF_KIND: dict[str, Callable[[Sequence[Any]], tuple[list[str], str]]] = {
    "true or false": lambda _: (["Bool"], ""),
    "number": _numbers,
    "text": _texts,
    "bytes": lambda _: ([], "bytes, as Base64"),
    "UUID": lambda _: (["UUID"], ""),
    "moment": lambda _: (["DateTime64(3, 'UTC')"], ""),
    "day": lambda _: (["Date"], ""),
    "list": lambda _: ([], "lists, as JSON"),
    "object": lambda _: ([], "objects, as JSON"),
    "other": lambda _: ([], ""),
}


def _takes(column: str, values: Iterable[Any]) -> bool:
    convert = kind_of(column).convert
    try:
        for value in values:
            convert(value)
    except (ArithmeticError, ValueError, TypeError, RecursionError):
        return False
    return True


def columns_of(fields: Iterable[Field]) -> list[Column]:
    """Return a column for each field, MOST_COLUMNS at most; names are unique whatever their case is."""
    taken = {*OWN_COLUMNS, *BESIDE_COLUMNS}
    made = []
    for seen in fields:
        name = plain_name("_".join(seen.path), taken, longest=48)
        taken.add(name)
        made.append(Column(name, seen.text, *_typed(seen)))
        if len(made) == MOST_COLUMNS:
            break
    return made


def _typed(seen: Field) -> tuple[str, int, str]:
    proposal, note = column_type(seen.values)
    return proposal, len(seen.values), note


def created_at(fields: Sequence[Field], events: int) -> str | None:
    """Return the path of the field with the events' time; None: no field has a time in every event."""
    timed = [seen for seen in fields if len(seen.values) == events and all(map(_is_moment, seen.values))]
    named = [seen for seen in timed if _plain(seen.path[-1]) in TIME_NAMES]
    best = min(
        named, key=lambda seen: (TIME_NAMES.index(_plain(seen.path[-1])), len(seen.path)), default=None
    )
    return best.text if best else None


def _is_moment(value: Any) -> bool:
    if isinstance(value, str) and not MOMENT.fullmatch(value):
        return False
    try:
        found = milliseconds(value)
    except (ArithmeticError, ValueError, TypeError):
        return False
    return FIRST_MS <= found < BEHIND_LAST_MS


def event_key(fields: Sequence[Field], events: Sequence[Mapping[str, Any]]) -> EventKey | None:
    """Return the fields that tell the events apart; None: none do.

    Events that are equal count as one event that was sent twice. A field must be in every event, and be a
    text or a whole number.
    """
    whole = [seen for seen in fields if len(seen.values) == len(events) and all(map(_fits_key, seen.values))]
    identities = [_identity(event) for event in events]
    ids = sorted(
        (seen for seen in whole if _id_rank(seen) < len(ID_NAMES)),
        key=lambda seen: (len(seen.path), _id_rank(seen)),
    )
    for seen in ids:
        if _tells_apart([seen], identities):
            return EventKey([], seen.text, f"{seen.text} differs in all events of the sample")
    candidates = sorted(filter(_may_tell, whole), key=_key_rank)[:KEY_FIELDS]
    for size in range(1, LONGEST_KEY + 1):
        for chosen in combinations(candidates, size):
            if any(map(_names_id, chosen)) and _tells_apart(chosen, identities):
                paths = [seen.text for seen in chosen]
                return EventKey(paths, None, f"{' and '.join(paths)} differ in all events of the sample")
    return None


def _fits_key(value: Any) -> bool:
    return isinstance(value, str | int | uuid.UUID) and not isinstance(value, bool)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]", "", name).lower()


def _id_rank(seen: Field) -> int:
    name = _plain(seen.path[-1])
    return ID_NAMES.index(name) if name in ID_NAMES else len(ID_NAMES)


def _names_id(seen: Field) -> bool:
    name = _plain(seen.path[-1])
    return name in ID_NAMES or name.endswith(("id", "uuid", "key", "number", "code"))


def _may_tell(seen: Field) -> bool:
    """Return whether a field's name is that of an id, or of what an id is unique within."""
    return _names_id(seen) or any(word in _plain(seen.path[-1]) for word in KEY_WORDS)


def _key_rank(seen: Field) -> tuple[bool, int]:
    return not _names_id(seen), len(seen.path)


def _identity(event: Mapping[str, Any]) -> str:
    return repr(sorted((path, repr(value)) for path, value in _leaves(event, ())))


def _tells_apart(key_fields: Sequence[Field], identities: Sequence[str]) -> bool:
    known: dict[tuple[Any, ...], str] = {}
    keys = zip(*(seen.values for seen in key_fields), strict=True)
    return all(
        known.setdefault(key, identity) == identity for key, identity in zip(keys, identities, strict=True)
    )
