"""Compute how many bytes one write to Cassandra may have, from the settings that its servers report. Pure."""

import re
from collections.abc import Mapping

# Bytes of one write to a server that reports no setting: half of commitlog_segment_size, which is 32 MiB by
# default.
DEFAULT_BYTES = 16 * 1024**2
# Bytes of a mutation and its message in addition to the values: names, lengths, times, the rest of the key.
BESIDE_VALUES = 64 * 1024
# Bytes of a row of tag_views in addition to its values; its names are known, and its key counts as a value.
BESIDE_VIEW_ROW = 4 * 1024
# Bytes of a cell of a collection in addition to its value.
BESIDE_CELL = 64
# Bytes that the name of an entry in a map or an element of a set may have.
LARGEST_NAME = 65_535
QUERY = "SELECT name, value FROM system_views.settings"
_UNITS = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_SIZE = re.compile(r"(\d+)(B|KiB|MiB|GiB|)")


def largest_write(settings: Mapping[str, str | None]) -> int:
    """Return the number of bytes that a server takes in one write.

    Args:
        settings: rows of system_views.settings: names and values as Cassandra 4.0 has them (`…_in_kb`) or
            later ones (`16MiB`).
    """
    segment = _bytes(settings, "commitlog_segment_size", "commitlog_segment_size_in_mb", 1024**2)
    mutation = _bytes(settings, "max_mutation_size", "max_mutation_size_in_kb", 1024) or (
        segment // 2 if segment else DEFAULT_BYTES
    )
    frame = _bytes(
        settings, "native_transport_max_frame_size", "native_transport_max_frame_size_in_mb", 1024**2
    )
    message = _bytes(settings, "native_transport_max_message_size", "", 1)
    return min(size for size in (mutation, frame, message) if size)


def _bytes(settings: Mapping[str, str | None], name: str, earlier: str, unit: int) -> int | None:
    """Return a size in bytes from the settings: `name`, or `earlier`, which counts in `unit`; None: neither
    is set.
    """
    if size := _SIZE.fullmatch(settings.get(name) or ""):
        return int(size[1]) * _UNITS[size[2]] or None
    told = settings.get(earlier) or ""
    return int(told) * unit if told.isdigit() and int(told) else None
