"""Backlogs are cut so that an id's older records never come behind newer ones, whatever the timestamps
say.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.kafka.offset_ranges import Range
from tagmill.kafka.partitioner import HOME, layout_of, murmur2, partition_of
from tagmill.kafka_journal.pieces import Move, cut, in_turn

PARTITIONS = 3


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_of_keys_equals_kafka_clients(key, expected):
    """Expected values are those of UtilsTest in Kafka's clients."""
    assert murmur2(key) == expected % 2**32


def test_layout_of_moved_key_is_older_than_home():
    key = next(
        f"k{n}".encode()
        for n in range(100)
        if (partition_of(f"k{n}".encode(), 2), partition_of(f"k{n}".encode(), 3)) == (1, 0)
    )
    assert (layout_of(key, 1, 3), layout_of(key, 0, 3), layout_of(key, 2, 3)) == (2, HOME, 0)
    stays = [{"partition": 0, "since": 1}, {"partition": 1, "since": 9}]
    assert [stay["partition"] for stay in in_turn(key, stays, 3)] == [1, 0]


def test_in_turn_of_other_partitioners_goes_by_timestamps():
    key = next(f"k{n}".encode() for n in range(100) if partition_of(f"k{n}".encode(), 3) == 2)
    stays = [{"partition": 0, "since": 9}, {"partition": 1, "since": 1}]
    assert [stay["partition"] for stay in in_turn(key, stays, 3)] == [1, 0]


@given(st.data())
def test_cut_pieces_never_part_moved_ids(data):
    """Cut to the end: every round makes progress, and takes a later record of a move only after all of its
    earlier ones.
    """
    ends = [data.draw(st.integers(1, 12)) for _ in range(PARTITIONS)]
    at = data.draw(st.integers(1, 6))
    pairs = [(a, b) for a in range(PARTITIONS) for b in range(PARTITIONS) if a != b]
    moves = [
        Move("t", a, data.draw(st.integers(0, ends[a] - 1)), b, data.draw(st.integers(0, ends[b] - 1)))
        for a, b in data.draw(st.lists(st.sampled_from(pairs), max_size=6))
    ]
    done = [0] * PARTITIONS
    while done != ends:
        pieces = [
            Range(topic="t", partition=p, first=done[p], end=min(ends[p], done[p] + at))
            for p in range(PARTITIONS)
            if done[p] < ends[p]
        ]
        before = list(done)
        for one in cut(pieces, moves, [("t", 0), ("t", 1), ("t", 2)]):
            assert one.first == done[one.partition] and one.end <= ends[one.partition]
            done[one.partition] = one.end
        assert done != before
        assert not [
            move for move in moves if done[move.later] > move.first and done[move.earlier] <= move.last
        ]


def test_cut_keeps_ranges_that_note_lost_records():
    lost, rest = Range(topic="t", partition=0, first=7, end=7), Range(topic="t", partition=1, first=0, end=4)
    assert cut([lost, rest], [Move("t", 0, 3, 1, 2)], []) == [lost, rest]


def test_cut_notes_where_unread_partition_begins():
    """Keep a range of which nothing is left as the partition's first pointer, unless it has one or begins at 0."""
    earlier = Range(topic="t", partition=0, first=5, end=9)
    for first, pointed, noted in ((3, [], True), (3, [("t", 1)], False), (0, [], False)):
        later = Range(topic="t", partition=1, first=first, end=7)
        left = later.model_copy(update={"end": first})
        found = cut([earlier, later], [Move("t", 0, 20, 1, first)], pointed)
        assert found == [earlier, left] if noted else found == [earlier]
