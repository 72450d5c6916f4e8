"""Failures that Spark passes on, in the text in which they come, become one error with one line and the right
exit status.
"""

from pathlib import Path

import pytest

from tagmill import errors
from tagmill.errors import AGAIN, StoreUnavailable
from tagmill.spark.errors import explain, explained, not_fetched
from tests.support.sparkfailures import FAILURES, SparkFailure

WHERE = "Cassandra at 127.0.0.1:9042"


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
def test_explain_known_failure_gives_one_line(failure) -> None:
    told = explain(SparkFailure(failure.text), WHERE, "Nothing was sealed")
    assert type(told) is failure.error
    said = str(told)
    assert "\n" not in said and len(said) < 600 and "  " not in said
    for words in failure.words:
        assert words in said


def test_explain_defect_gives_nothing() -> None:
    assert explain(ZeroDivisionError("division by zero"), WHERE) is None
    assert explain(SparkFailure("org.apache.spark.SparkException: Job aborted"), WHERE) is None


def test_explained_keeps_cause_says_state() -> None:
    """Ask what is untouched when the failure occurs, not when the work begins."""
    state = ["Nothing was sealed"]
    with (
        pytest.raises(errors.StoreUnavailable, match="The build is sealed") as told,
        explained(WHERE, lambda: state[0]),
    ):
        state[0] = "The build is sealed"
        raise SparkFailure(FAILURES["storage silent"].text)
    assert isinstance(told.value.__cause__, SparkFailure)


def test_explained_error_behind_interrupt_is_interrupt() -> None:
    """Errors that occur while Ctrl-C unwinds the stack are not the reason for the end."""
    with pytest.raises(KeyboardInterrupt), explained(WHERE):
        try:
            raise KeyboardInterrupt
        finally:
            raise SparkFailure(FAILURES["memory"].text)


def test_explained_error_without_words_is_told() -> None:
    """Py4J asks the JVM for the text of its error; there is none if the JVM has ended."""

    class Silent(Exception):
        def __str__(self) -> str:
            raise ConnectionRefusedError

    with pytest.raises(Silent), explained(WHERE):
        raise Silent


def test_not_fetched_package_is_named(tmp_path: Path) -> None:
    """A JVM that could not fetch a package ends as if Java were missing; its log says why."""
    log = tmp_path / "log"
    log.write_text("\t\t:: no.such#thing;1: not found\nunresolved dependency: no.such#thing;1: not found]\n")
    told = not_fetched(log)
    assert told is not None and "could not fetch no.such#thing;1" in str(told) and "\n" not in str(told)
    log.write_text("Error: JAVA_HOME is not set\n")
    assert not_fetched(log) is None and not_fetched(None) is None


def test_unanswered_client_says_what_is_untouched() -> None:
    """A client says only that its server did not answer; the operation adds what it left as it was, once."""
    silent = StoreUnavailable(f"{WHERE} did not answer: timed out. {AGAIN}", pipeline="orders", run=7)
    told = explain(silent, WHERE, "Nothing was sealed")
    assert str(told) == f"{WHERE} did not answer: timed out. Nothing was sealed. {AGAIN}"
    assert isinstance(told, StoreUnavailable) and (told.pipeline, told.run) == ("orders", 7)
    assert explain(told, WHERE, "Nothing was sealed") is told
    knows = StoreUnavailable(f"{WHERE} did not answer. Batch 3 is pushed; run deliver again")
    assert explain(knows, WHERE, "Nothing was sealed") is knows
