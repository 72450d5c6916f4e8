"""What an exception of ClickHouse means: whether the same request may succeed later."""

import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import ClickHouseSettings
from tagmill.errors import ConfigurationError, StoreUnavailable


def raised(code: int | None) -> None:
    """Raise an exception of ClickHouse, as the client raises it, where Tagmill explains it."""
    clickhouse = ClickHouse.__new__(ClickHouse)  # The constructor would connect to a server.
    clickhouse.where = "ClickHouse at nowhere"
    with clickhouse.explained("could not answer"):
        raise DatabaseError(f"Code: {code}. DB::Exception: so it is", code=code)


@pytest.mark.parametrize("code", [None, 198, 209, 225, 236, 241, 286, 499, 500, 722, 762])
def test_what_passes_is_worth_another_try(code: int | None) -> None:
    """Errors that may pass, or that have no code, say to run the same command again."""
    with pytest.raises(StoreUnavailable, match="Run the same command again"):
        raised(code)


@pytest.mark.parametrize("code", [47, 60, 62, 497])
def test_permanent_error_is_configuration_error(code: int) -> None:
    """Errors that a person has to correct are not tried again."""
    with pytest.raises(ConfigurationError):
        raised(code)


def test_timeouts_below_a_second_are_taken() -> None:
    """Nobody listens on the port: that is said, whatever the timeouts."""
    settings = ClickHouseSettings(port=1, connect_timeout_seconds=0.5, request_timeout_seconds=0.5)
    with pytest.raises(StoreUnavailable):
        ClickHouse(settings)
