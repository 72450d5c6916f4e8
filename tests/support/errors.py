"""Expect an error of Tagmill by its type and by what it is about, as Airflow and scripts do."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tagmill.errors import TagmillError


@contextmanager
def raises(
    kind: type[TagmillError] | tuple[type[TagmillError], ...], *, match: str | None = None, **about: Any
) -> Iterator[pytest.ExceptionInfo[TagmillError]]:
    """Expect an error of a type with these attributes: `pipeline`, `run`, `batch`.

    `match` is for the one test of the message itself.
    """
    with pytest.raises(kind, match=match) as caught:
        yield caught
    told = {name: getattr(caught.value, name) for name in about}
    assert told == about, f"{type(caught.value).__name__} is about {told}, expected {about}: {caught.value}"
