"""Warnings of a cleanup before it reads any row."""

import pytest

from tagmill.config.tag_views import PipelineSettings
from tagmill.maintenance.view_cleanup.clean import stated_ttl

DAY = 86_400


@pytest.mark.parametrize(
    ("ttl", "words"),
    [
        (None, []),
        (100 * DAY, []),
        (89 * DAY, ["older_than_days (90): the application deletes rows first"]),
        (
            6 * DAY,
            ["older_than_days (90)", "max_hold_age_seconds (604800): rows may expire while they are held"],
        ),
    ],
)
def test_an_application_that_deletes_first_is_told_of(ttl, words):
    """Warn if the application's TTL is shorter than older_than_days or the age that a hold may reach."""
    pipeline = PipelineSettings.model_validate(
        {
            "keyspace": "orders",
            "bucket_size": "Day",
            "tags": ["t"],
            "first_time_bucket": "20260101T00:00",
            "destination": "orders",
            "cleanup": {"older_than_days": 90, "application_ttl_seconds": ttl},
        }
    )
    warnings = list(stated_ttl(pipeline))
    assert len(warnings) == len(words)
    assert all(word in warning for word, warning in zip(words, warnings, strict=True))
