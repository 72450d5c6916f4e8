"""Make the id that makes an event unique. Pure. This must never change, since old events keep their ids.

part      = type letter, ":", text          s:text  i:integer  f:float (Python's shortest form)  b:true or
b:false
            d:number of JSON that a double would round, its digits without zeros at the end, "e", exponent
unique_id = the first 16 bytes, in hexadecimal, of SHA-256 over all parts, each after its length in bytes (4
bytes, big endian) shard     = bytes 16 to 23 of the same SHA-256, as an unsigned big-endian number, modulo
the number of shards
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from tagmill.delivery.topics.json_numbers import Number

Value = str | int | float | bool | Number
# Bytes of the hash: those that are the id, and those that the shard is made of.
OF_ID, SHARDED = slice(0, 16), slice(16, 24)


class UniqueId(NamedTuple):
    """An id, and the shard in which it is looked up."""

    shard: int
    unique_id: str


def unique_id(values: Sequence[Value], shards: int) -> UniqueId:
    """Return the id and the shard of these values, in their order: the fields that the pipeline names, then
    the producer's id.
    """
    parts = [part_of(value) for value in values]
    found = sha256(b"".join([len(part).to_bytes(4, "big") + part for part in parts])).digest()
    return UniqueId(int.from_bytes(found[SHARDED], "big") % shards, found[OF_ID].hex())


def part_of(value: Value) -> bytes:
    """Return the part of a value over which the hash is made, without its length."""
    if isinstance(value, str):
        return b"s:" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bool):
        return b"b:true" if value else b"b:false"
    if isinstance(value, int):
        return b"i:%d" % value
    if isinstance(value, Number):
        return b"d:" + value.shortest().encode()
    return b"f:" + repr(value).encode()
