"""Cut an ordered stream of rows into batches: bounded rows and bytes, one ClickHouse partition each. Pure."""

from collections.abc import Iterable, Iterator


def cut(rows: Iterable[tuple[int, object]], max_rows: int, max_bytes: int) -> Iterator[int]:
    """Yield the batch (0, 1, …) of each row (bytes, month), in order.

    A row larger than the limit goes alone.
    """
    batch, count, size = 0, 0, 0
    month: object = None
    for row_bytes, row_month in rows:
        if count and (count == max_rows or size + row_bytes > max_bytes or row_month != month):
            batch, count, size = batch + 1, 0, 0
        count, size, month = count + 1, size + row_bytes, row_month
        yield batch
