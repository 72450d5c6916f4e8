"""Batches are bounded in rows and bytes, lie in one month, and keep the order of the rows."""

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tagmill.domain.batches.cutting import cut


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], []),
        ([(1, 1)] * 5, [0, 0, 0, 1, 1]),
        ([(4, 1), (6, 1), (1, 1)], [0, 0, 1]),
        ([(1, 1), (11, 1), (1, 1)], [0, 1, 2]),
        ([(11, 1), (12, 1)], [0, 1]),
        ([(1, 1), (1, 2), (1, 2), (1, 1)], [0, 1, 1, 2]),
        ([(0, 1), (0, 1)], [0, 0]),
    ],
    ids=["nothing", "rows", "bytes", "an oversized row goes alone", "two oversized", "month", "no bytes"],
)
def test_cut_ends_batch_at_each_limit(rows: list[tuple[int, int]], expected: list[int]) -> None:
    """Batches end at three rows, ten bytes or the end of a month; a row above ten bytes gets a batch of its
    own.
    """
    assert list(cut(rows, 3, 10)) == expected


ROWS = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 2)), max_size=40)


@given(ROWS, st.integers(1, 5), st.integers(1, 12))
def test_cut_batches_are_bounded_and_full(rows: list[tuple[int, int]], max_rows: int, max_bytes: int) -> None:
    """Batches keep their limits and lie in one month.

    They end only where the next row would pass a limit or lies in another month.
    """
    numbers = list(cut(rows, max_rows, max_bytes))
    assert len(numbers) == len(rows)
    batches = [
        [row for _, row in group]
        for _, group in groupby(zip(numbers, rows, strict=True), key=lambda pair: pair[0])
    ]
    assert sorted(set(numbers)) == numbers[:1] + [n for n in range(1, len(batches))]
    for batch in batches:
        assert len({month for _, month in batch}) == 1
        assert len(batch) <= max_rows
        assert len(batch) == 1 or sum(size for size, _ in batch) <= max_bytes
    for batch, following in zip(batches, batches[1:], strict=False):
        size, month = following[0]
        assert len(batch) == max_rows or sum(s for s, _ in batch) + size > max_bytes or batch[0][1] != month
