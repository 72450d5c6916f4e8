"""What an exception of ClickHouse means: whether the same again may succeed."""

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from tagmill.errors import ConfigurationError, StoreUnavailable
from tagmill.stores.clickhouse import ClickHouse


def raised(code: int | None) -> None:
    """An exception of the server's, as the client raises it."""
    clickhouse = ClickHouse.__new__(ClickHouse)  # there is no server
    clickhouse.where = "ClickHouse at nowhere"
    with clickhouse._explained("could not answer"):  # noqa: SLF001
        raise DatabaseError(f"Code: {code}. DB::Exception: so it is", code=code)


@pytest.mark.parametrize("code", [None, 209, 225, 236, 241, 286, 722])
def test_what_passes_is_worth_another_try(code: int | None) -> None:
    with pytest.raises(StoreUnavailable, match="Run the same command again"):
        raised(code)


@pytest.mark.parametrize("code", [47, 60, 62, 497])
def test_what_somebody_has_to_mend_is_not_tried_again(code: int) -> None:
    with pytest.raises(ConfigurationError):
        raised(code)
