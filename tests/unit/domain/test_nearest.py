"""The nearest of known words."""

import pytest

from tagmill.domain.nearest import did_you_mean, nearest


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("bucket_sise", "bucket_size"),
        ("BUCKET_SIZE", "bucket_size"),
        ("Tag", "tags"),
        ("zzz", None),
        ("", None),
    ],
    ids=["a letter", "case", "one more", "far", "nothing"],
)
def test_nearest_word_is_named_or_none(word: str, expected: str | None) -> None:
    known = ["bucket_size", "batch_size", "tags"]
    assert nearest(word, known) == expected
    assert did_you_mean(word, known) == (f". Did you mean {expected}?" if expected else "")
