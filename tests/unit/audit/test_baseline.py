"""Up to where an audit that agrees proves everything, and whether another may begin there."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from tagmill.audit.baseline import Baseline, border
from tagmill.audit.staging import Scope
from tagmill.domain.time_buckets import BucketSize, View

HOUR = BucketSize.HOUR.ticks
VIEW = View("tag_views", BucketSize.HOUR)
SCOPE = Scope(
    "p",
    ("a", "b"),
    BucketSize.HOUR,
    {"a": 0, "b": HOUR},
    {"a": 7 * HOUR + 5, "b": 6 * HOUR - 1},
    8 * HOUR,
    {"a": 8 * HOUR, "b": 8 * HOUR},
)
KEPT = Baseline(
    audit=3,
    read_all_at=datetime(2026, 11, 1, tzinfo=UTC),
    before=4 * HOUR,
    view=str(VIEW),
    start=dict(SCOPE.start),
    first=None,
    untagged=0,
    rows={},
)


def test_border_is_bucket_of_least_due_tag() -> None:
    assert border(SCOPE) == 5 * HOUR
    assert border(replace(SCOPE, size=BucketSize.DAY)) == 0


def test_border_without_delivery_is_none() -> None:
    """A tag without a watermark has no row that is due."""
    assert border(replace(SCOPE, due={"a": 7 * HOUR, "b": -1})) == 0


@pytest.mark.parametrize(
    ("scope", "view", "fits"),
    [
        (SCOPE, VIEW, True),
        (replace(SCOPE, due={"a": 7 * HOUR, "b": 4 * HOUR}), VIEW, True),
        (replace(SCOPE, due={"a": 7 * HOUR, "b": 4 * HOUR - 1}), VIEW, False),
        (replace(SCOPE, start={"a": 0}), VIEW, False),
        (replace(SCOPE, start={"a": 0, "b": 0}), VIEW, False),
        (SCOPE, View("other", BucketSize.HOUR), False),
        (SCOPE, View("tag_views", BucketSize.DAY), False),
    ],
    ids=["same", "just due", "rows came late", "other tags", "other start", "other table", "other size"],
)
def test_baseline_fits_the_same_scope_only(scope: Scope, view: View, fits: bool) -> None:
    assert KEPT.fits(scope, view) is fits
