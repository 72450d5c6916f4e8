"""A connection that can't be made ends with one line."""

import pytest

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import CassandraSettings
from tagmill.errors import StoreUnavailable


def test_hosts_without_address_are_one_line() -> None:
    with pytest.raises(
        StoreUnavailable, match=r"no-such-host\.invalid:9042: no host has an address"
    ) as error:
        Cassandra(CassandraSettings(hosts=["no-such-host.invalid"]))
    assert "\n" not in str(error.value)
