"""A driver session on the local Cassandra, and one clear line when it isn't there."""

from collections.abc import Iterator
from contextlib import contextmanager

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable, Session
from cassandra.policies import DCAwareRoundRobinPolicy, TokenAwarePolicy

from tagmill.errors import StoreUnavailable


@contextmanager
def session(port: int, host: str = "127.0.0.1") -> Iterator[Session]:
    """A session that is closed at the end; raises StoreUnavailable."""
    profile = ExecutionProfile(load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy("datacenter1")), request_timeout=60)
    cluster = Cluster(
        [host], port=port, execution_profiles={EXEC_PROFILE_DEFAULT: profile}, protocol_version=5, connect_timeout=10
    )
    try:
        try:
            connected = cluster.connect()
        except NoHostAvailable:
            raise StoreUnavailable(
                f"no Cassandra answers on {host}:{port}. Start it: tagmill local up --part cassandra"
            ) from None
        yield connected
    finally:
        cluster.shutdown()
