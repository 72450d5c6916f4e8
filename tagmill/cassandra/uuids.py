"""Convert whole columns of UUIDs between text and 16 bytes, and compute the time of those of version 1."""

from typing import cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tagmill.domain.timeuuid import GREGORIAN_TICKS

# An array with one row of 16 bytes per UUID.
Uuids = npt.NDArray[np.uint8]
LENGTH = 16
NO_UUID = "00000000-0000-0000-0000-000000000000"
_HYPHENS = [place for place, letter in enumerate(NO_UUID) if letter == "-"]
_DIGITS = [place for place, letter in enumerate(NO_UUID) if letter != "-"]
_NO_DIGIT = 255
_NIBBLES = np.full(256, _NO_DIGIT, np.uint8)
for _digit in "0123456789abcdefABCDEF":
    _NIBBLES[ord(_digit)] = int(_digit, 16)
_PAIRS = np.frombuffer("".join(f"{value:02x}" for value in range(256)).encode(), np.uint8).reshape(256, 2)


def of_binary(values: pa.Array) -> Uuids:
    """Convert binary values to UUIDs, a null to zero; raises ValueError if one does not have 16 bytes."""
    return same_length(values.cast(pa.binary()), bytes(LENGTH), "a value has not 16 bytes")


def of_text(values: pa.Array) -> Uuids:
    """Convert text in the canonical form to UUIDs, a null to zero; raises ValueError if one is not a UUID."""
    letters = same_length(values.cast(pa.string()).cast(pa.binary()), NO_UUID.encode(), "a value is no UUID")
    nibbles = _NIBBLES[letters[:, _DIGITS]]
    if (nibbles == _NO_DIGIT).any() or (letters[:, _HYPHENS] != ord("-")).any():
        raise ValueError("a value is no UUID")
    return cast(Uuids, nibbles[:, 0::2] << 4 | nibbles[:, 1::2])


def text(uuids: Uuids) -> pa.Array:
    """Convert UUIDs to text in the canonical form."""
    letters = np.full((len(uuids), len(NO_UUID)), ord("-"), np.uint8)
    letters[:, _DIGITS] = _PAIRS[uuids].reshape(-1, 2 * LENGTH)
    offsets = np.arange(0, letters.size + 1, len(NO_UUID), dtype=np.int32)
    return pa.StringArray.from_buffers(len(uuids), pa.py_buffer(offsets), pa.py_buffer(letters))


def versions(uuids: Uuids) -> Uuids:
    """Return the version of each UUID; version 1 is a TimeUUID."""
    return cast(Uuids, uuids[:, 6] >> 4)


def ticks(uuids: Uuids) -> npt.NDArray[np.int64]:
    """Return the ticks (100 ns) since 1970 of each UUID, as timeuuid.ticks does; meaningless unless its
    version is 1.
    """
    halves = np.ascontiguousarray(uuids).view(">u8").astype(np.uint64)[:, 0]
    low, middle, high = halves >> 32, halves >> 16 & 0xFFFF, halves & 0x0FFF
    return (high << 48 | middle << 32 | low).astype(np.int64) - GREGORIAN_TICKS


def same_length(values: pa.Array, instead: bytes, problem: str) -> npt.NDArray[np.uint8]:
    """Return the bytes of binary values, one row each; nulls become `instead`.

    Raises ValueError with the text `problem`: a value does not have the length of `instead`.
    """
    filled = pc.fill_null(values, instead)
    if pc.any(pc.not_equal(pc.binary_length(filled), len(instead))).as_py():
        raise ValueError(problem)
    if not len(filled):
        return np.zeros((0, len(instead)), np.uint8)
    begin = np.frombuffer(filled.buffers()[1], np.int32)[filled.offset]
    content = np.frombuffer(filled.buffers()[2], np.uint8)[begin : begin + len(instead) * len(filled)]
    return content.reshape(-1, len(instead))
