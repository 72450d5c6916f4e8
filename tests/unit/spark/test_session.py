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
    def made(*_):
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
