"""When rows outside their buckets stop a rebucket."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tagmill.config.tag_views import PipelineSettings
from tagmill.domain.time_buckets import BucketSize, View
from tagmill.errors import DataQualityStop
from tagmill.views.rebucket.guards import must_have_buckets
from tagmill.views.rebucket.table_diff import Survey

ROWS = cast("Any", SimpleNamespace(keyspace="orders", source=View("tag_views", BucketSize.DAY)))


def check(rows: int, misplaced: int, **quality: float) -> None:
    """Judge a source of so many rows and misplaced rows."""
    pipeline = PipelineSettings.model_validate(
        {
            "keyspace": "orders",
            "bucket_size": "Day",
            "tags": ["order"],
            "first_time_bucket": datetime(2026, 11, 21, tzinfo=UTC),
            "destination": "orders",
            "quality": quality,
        }
    )
    survey = Survey(cast("Any", None), None, rows, 0, misplaced, 0, 0)
    must_have_buckets(survey, ROWS, pipeline)


@pytest.mark.parametrize(
    ("rows", "misplaced", "quality"),
    [
        (5000, 501, {}),
        (40, 40, {"min_rows_for_share": 40}),
        (5000, 51, {"max_wrong_bucket_share_percent": 1}),
    ],
    ids=["defaults", "fewer rows count", "smaller share counts"],
)
def test_wrong_bucket_size_stop_names_keys(rows, misplaced, quality):
    with pytest.raises(DataQualityStop) as stopped:
        check(rows, misplaced, **quality)
    assert str(stopped.value) == (
        f"orders.tag_views: {misplaced} of {rows} rows are not in the Day bucket of their time, the pipeline "
        "says Day. Nothing was copied; set bucket_size as in the application (or, if it is the rows that are "
        "wrong, quality.max_wrong_bucket_share_percent = 100)"
    )


@pytest.mark.parametrize(
    ("rows", "misplaced", "quality"),
    [
        (4999, 4999, {}),
        (5000, 500, {}),
        (39, 39, {"min_rows_for_share": 40}),
        (5000, 5000, {"max_wrong_bucket_share_percent": 100}),
    ],
    ids=["few rows", "small share", "few rows by setting", "every share allowed"],
)
def test_misplaced_rows_within_limits_pass(rows, misplaced, quality):
    check(rows, misplaced, **quality)
