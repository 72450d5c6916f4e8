"""Sessions that jobs ask for."""

from contextlib import contextmanager
from unittest.mock import sentinel

import pytest

from tagmill.spark import session


@pytest.mark.parametrize("at_once", [False, True])
def test_session_is_made_when_asked(monkeypatch, at_once):
    """Make the session once, when it is first asked for or at once, and stop it at the end."""
    steps = []

    @contextmanager
    def made(*_, **__):
        steps.append("made")
        yield sentinel.spark
        steps.append("stopped")

    monkeypatch.setattr(session, "spark_session", made)
    with session.session_when_asked(sentinel.settings, "job", at_once=at_once) as spark:
        assert steps == ["made"] * at_once
        assert spark() is spark() is sentinel.spark
    assert steps == ["made", "stopped"]
    with session.session_when_asked(sentinel.settings, "job"):
        pass
    assert steps == ["made", "stopped"]


def test_rows_are_counted_before_a_session(monkeypatch):
    """Ask how much there is to read once, and not if no session is asked for."""
    steps = []

    @contextmanager
    def made(*_, few_rows):
        steps.append(few_rows)
        yield sentinel.spark

    def has_few_rows():
        steps.append("counted")
        return True

    monkeypatch.setattr(session, "spark_session", made)
    with session.session_when_asked(sentinel.settings, "job", has_few_rows=has_few_rows) as spark:
        assert steps == []
        assert spark() is spark()
    assert steps == ["counted", True]
