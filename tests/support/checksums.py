"""The checksum of one row by the rule of tagmill.domain.batches.layout, in plain numbers."""

from collections.abc import Iterable, Mapping
from typing import Any

from xxhash import xxh64_intdigest

from tagmill.domain.batches.layout import FACTOR, NULL_VALUE, Column

MODULUS = 2**64


def checksum(row: Mapping[str, Any], columns: Iterable[Column]) -> int:
    """Return a row's checksum over these columns."""
    folded = 0
    for column in columns:
        value = row[column.name]
        absent = value is None
        if column.kind == "number":
            hashed = int(value or 0) % MODULUS
        else:
            content = b"" if absent else value if isinstance(value, bytes) else value.encode()
            hashed = xxh64_intdigest(content)
        if column.optional:
            folded += 0 if absent else _of_number(hashed * FACTOR + column.salt)
        else:
            folded = folded * FACTOR + (NULL_VALUE if absent else hashed)
    return _of_number(folded)


def _of_number(value: int) -> int:
    return xxh64_intdigest((value % MODULUS).to_bytes(8, "little"))
