"""Publishing to a broker that does not answer."""

from datetime import UTC, datetime
from itertools import repeat

import pytest

from tagmill.config.kafka import KafkaSettings
from tagmill.errors import StoreUnavailable
from tagmill.kafka.client import Kafka, KafkaRecord
from tests.support.errors import raises


@pytest.mark.timeout(60)
def test_publish_dead_broker_stops_at_first_failure():
    """Stop within the limit, however many records there are, and say how many were acknowledged."""
    nobody = KafkaSettings(bootstrap_servers=["127.0.0.1:1"], request_timeout_seconds=1)
    record = KafkaRecord("t", 0, 0, datetime.now(UTC), b"id", None, [])
    with (
        Kafka(nobody) as kafka,
        raises(StoreUnavailable, match=r"127\.0\.0\.1:1: .*timed out.* 0 records were acknowledged before"),
    ):
        kafka.publish(repeat(record))


@pytest.mark.timeout(60)
def test_publish_few_records_fail_at_end():
    """Say so, too, if all records fit into the producer's queue."""
    nobody = KafkaSettings(bootstrap_servers=["127.0.0.1:1"], request_timeout_seconds=1)
    record = KafkaRecord("t", 0, 0, datetime.now(UTC), b"id", None, [])
    with Kafka(nobody) as kafka, raises(StoreUnavailable, match="0 records were acknowledged before"):
        kafka.publish([record] * 3)
