"""The id that makes an event unique. Pure, and never to change: ids of old events must stay what they are.

part      = type letter, ":", text          s:text  i:integer  f:float (Python's shortest form)  b:true or b:false
            d:number of JSON that a double would round, its digits without zeros at the end, "e", exponent
unique_id = the first 16 bytes, in hexadecimal, of SHA-256 over all parts, each after its length in bytes (4 bytes, big endian)
shard     = bytes 16 to 23 of the same SHA-256, as an unsigned big-endian number, modulo the number of shards
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

from tagmill.topics.numbers import Number

Value = str | int | float | bool | Number
# of the hash, in bytes: the id, and what the shard is made of
OF_ID, SHARDED = slice(0, 16), slice(16, 24)


class UniqueId(NamedTuple):
    """An id and where it is looked up."""

    shard: int
    unique_id: str


def unique_id(values: Sequence[Value], shards: int) -> UniqueId:
    """The id of these values, in their order: the fields that the pipeline names, the producer's id behind them."""
    parts = [part_of(value) for value in values]
    found = sha256(b"".join([len(part).to_bytes(4, "big") + part for part in parts])).digest()
    return UniqueId(int.from_bytes(found[SHARDED], "big") % shards, found[OF_ID].hex())


def part_of(value: Value) -> bytes:
    """What the hash is made over, without its length."""
    if isinstance(value, str):
        return b"s:" + value.encode("utf-8", "surrogatepass")
    if isinstance(value, bool):
        return b"b:true" if value else b"b:false"
    if isinstance(value, int):
        return b"i:%d" % value
    if isinstance(value, Number):
        return b"d:" + value.shortest().encode()
    return b"f:" + repr(value).encode()
