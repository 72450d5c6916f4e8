"""Limits of a write follow from the server's settings, under the names of every release."""

import pytest

from tagmill.cassandra.write_limits import DEFAULT_BYTES, largest_write

MIB = 1024**2


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, DEFAULT_BYTES),
        (
            {
                "commitlog_segment_size": "32MiB",
                "native_transport_max_frame_size": "16MiB",
                "max_mutation_size": None,
            },
            16 * MIB,
        ),
        ({"commitlog_segment_size": "64MiB", "native_transport_max_frame_size": "256MiB"}, 32 * MIB),
        ({"commitlog_segment_size": "64MiB", "max_mutation_size": "5120KiB"}, 5 * MIB),
        ({"max_mutation_size": "20MiB", "native_transport_max_message_size": "2097152B"}, 2 * MIB),
        ({"commitlog_segment_size_in_mb": "32", "max_mutation_size_in_kb": "null"}, 16 * MIB),
        ({"max_mutation_size_in_kb": "2048", "native_transport_max_frame_size_in_mb": "1"}, MIB),
        ({"max_mutation_size_in_kb": "2048", "native_transport_max_frame_size_in_mb": "-1"}, 2 * MIB),
    ],
    ids=["nothing told", "5.0", "larger segment", "5.0 set", "message", "4.0", "4.0 frame", "no frame"],
)
def test_write_limit_is_the_smallest_told(settings, expected):
    """Take the smallest limit that the settings give for segment, frame, message and mutation, or else the
    default.
    """
    assert largest_write(settings) == expected
