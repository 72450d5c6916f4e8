"""Avro records that the specification forbids, or that claim more than they hold."""

from typing import Any

ENUM = {"type": "enum", "name": "Side", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "Pair", "size": 2}
INTS, NULLS = {"type": "array", "items": "int"}, {"type": "array", "items": "null"}
BILLION = "80a8d6b907"
ENDS = "it ends within a value"
# Each name maps to the type, its bytes in hexadecimal, and the reason for the refusal.
# The first nine cases are those of apache/avro, share/test/data/binary-rejections.json.
REFUSED: dict[str, tuple[Any, str, str]] = {
    "long without an end": ("long", "80" * 10, "more than 64 bits"),
    "int without an end": ("int", "80" * 5, "more than 32 bits"),
    "smallest count of a block": (INTS, "ffffffffffffffffff0102", "more values than"),
    "bytes of length -1": ("bytes", "01", "a length of -1"),
    "string of length -1": ("string", "01", "a length of -1"),
    "union index -1": (["null", "int"], "01", "index -1 of a union of 2 types"),
    "union index 5": (["null", "int"], "0a", "index 5 of a union of 2 types"),
    "enum index -1": (ENUM, "01", "index -1 of enum Side"),
    "enum index 5": (ENUM, "0a", "index 5 of enum Side"),
    "union index -1 of three": (["null", "int", "string"], "01", "index -1 of a union of 3"),
    "union index 3 of three": (["null", "int", "string"], "06", "index 3 of a union of 3"),
    "union index beyond 32 bits": (["null", "int"], "808080808001", "more than 32 bits"),
    "enum index beyond 32 bits": (ENUM, "808080808001", "more than 32 bits"),
    "int of 33 bits": ("int", "8080808010", "more than 32 bits"),
    "int as a long": ("int", "808080808001", "more than 32 bits"),
    "date of 33 bits": ({"type": "int", "logicalType": "date"}, "ffffffff7f", "more than 32 bits"),
    "long of 65 bits": ("long", "ffffffffffffffffff02", "more than 64 bits"),
    "long of 70 bits": ("long", "ffffffffffffffffff7f", "more than 64 bits"),
    "long of 11 bytes": ("long", "80" * 10 + "00", "more than 64 bits"),
    "length of 65 bits": ("string", "ffffffffffffffffff7f", "more than 64 bits"),
    "boolean 2": ("boolean", "02", "a boolean of 2"),
    "boolean 255": ("boolean", "ff", "a boolean of 255"),
    "text that is not UTF-8": ("string", "04ffff", "not UTF-8"),
    "overlong UTF-8": ("string", "04c080", "not UTF-8"),
    "half of a surrogate pair": ("string", "06eda080", "not UTF-8"),
    "name in a map that is not UTF-8": ({"type": "map", "values": "int"}, "0202ff0200", "not UTF-8"),
    "long string of length -65": ("string", "8101", "a length of -65"),
    "bytes of 2 GiB": ("bytes", "8080808010", ENDS),
    "string cut off": ("string", "0a61", ENDS),
    "long cut off": ("long", "80", ENDS),
    "double cut off": ("double", "00" * 7, ENDS),
    "float cut off": ("float", "00" * 3, ENDS),
    "fixed cut off": (FIXED, "00", ENDS),
    "boolean missing": ("boolean", "", ENDS),
    "union missing": (["null", "int"], "", ENDS),
    "array cut off": (INTS, "0202", ENDS),
    "bytes behind": ("int", "0200", "1 bytes are left over"),
    "block of a wrong size": (INTS, "0306020200", "a block that says"),
    "block of size -1": (INTS, "0301020200", "a block that says"),
    "map's block of a wrong size": ({"type": "map", "values": "null"}, "0106026100", "a block that says"),
    "10⁹ nulls": (NULLS, BILLION + "00", "more values than"),
    "10⁹ nulls in two blocks": (NULLS, "02" + BILLION + "00", "more values than"),
    "10⁹ nulls with a size": (NULLS, "ffa7d6b9070000", "more values than"),
    "10⁹ empty records": (
        {"type": "array", "items": {"type": "record", "name": "No", "fields": []}},
        BILLION + "00",
        "more values",
    ),
    "10⁹ fixed of no bytes": (
        {"type": "array", "items": {**FIXED, "size": 0}},
        BILLION + "00",
        "more values than",
    ),
    "10⁹ strings": ({"type": "array", "items": "string"}, BILLION + "00", "more values than"),
    "10⁹ entries": ({"type": "map", "values": "null"}, BILLION + "00", "more values than"),
}
