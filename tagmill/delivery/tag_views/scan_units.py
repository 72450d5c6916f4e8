"""Divide the slices of a plan into units, each read by one task. Pure."""

from collections.abc import Iterator
from typing import Literal

from tagmill.delivery.tag_views.model import ScanUnit, Slice
from tagmill.domain import time_buckets as bucket_rules
from tagmill.domain.time_buckets import BucketSize


def units_of(
    kind: Literal["new", "again"], parts: list[tuple[str, Slice]], number: int, size: BucketSize, rows: int
) -> Iterator[ScanUnit]:
    """Yield units of slices: whole buckets of one tag and month together, up to `rows`; part of a bucket
    alone.

    A bucket with more rows is divided into pieces, each a unit alone.
    """
    groups: list[tuple[tuple[object, ...], str, list[Slice]]] = []
    for tag, part in sorted(parts, key=lambda item: (item[0], item[1].timebucket, item[1].after or 0)):
        for piece in _pieces(part, size, rows):
            alone = () if piece.whole else (piece.timebucket, piece.after)
            key = (tag, bucket_rules.month(bucket_rules.first_ticks(piece.timebucket)), *alone)
            if groups and groups[-1][0] == key and sum(p.rows for p in groups[-1][2]) + piece.rows <= rows:
                groups[-1][2].append(piece)
            else:
                groups.append((key, tag, [piece]))
    for offset, (_, tag, slices) in enumerate(groups):
        yield ScanUnit(number=number + offset, tag=tag, kind=kind, slices=slices)


def _pieces(part: Slice, size: BucketSize, rows: int) -> list[Slice]:
    count = -(-part.rows // rows)
    if count <= 1:
        return [part]
    low = part.after if part.after is not None else bucket_rules.first_ticks(part.timebucket) - 1
    high = (
        part.until if part.until is not None else bucket_rules.first_ticks(part.timebucket) + size.ticks - 1
    )
    cuts = [low + (high - low) * i // count for i in range(1, count)]
    edges = zip([part.after, *cuts], [*cuts, part.until], strict=True)
    return [
        Slice(
            timebucket=part.timebucket,
            after=a,
            until=u,
            rows=part.rows // count,
            ttl_seconds=part.ttl_seconds,
        )
        for a, u in edges
    ]


def distinct(parts: list[tuple[str, Slice]]) -> list[tuple[str, Slice]]:
    """Merge slices of look-back, holds and re-reads, which may overlap: return one slice per bucket that
    covers them all.
    """
    covering: dict[tuple[str, int], Slice] = {}
    for tag, part in parts:
        known = covering.get((tag, part.timebucket))
        covering[(tag, part.timebucket)] = part if known is None else _cover(known, part)
    return [(tag, part) for (tag, _), part in covering.items()]


def _cover(a: Slice, b: Slice) -> Slice:
    after = None if a.after is None or b.after is None else min(a.after, b.after)
    until = None if a.until is None or b.until is None else max(a.until, b.until)
    return Slice(timebucket=a.timebucket, after=after, until=until, rows=max(a.rows, b.rows))
