"""What the doctor says of an error leaves out that nothing was done: it never does anything."""

import pytest

from tagmill.doctor.model import said_of


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a at b can't be reached. Nothing was done; is it up?", "a at b can't be reached; is it up?"),
        ("it refused. Nothing was done", "it refused"),
        (
            "x differs; y is missing. Nothing was read or sent. Rename it",
            "x differs; y is missing. Rename it",
        ),
        (
            "no answer: timeout. Run the same command again; every step is safe to repeat",
            "no answer: timeout",
        ),
        ("a\n  b", "a b"),
    ],
)
def test_said_leaves_out_what_was_not_done(text: str, said: str) -> None:
    assert said_of(ValueError(text)) == said
