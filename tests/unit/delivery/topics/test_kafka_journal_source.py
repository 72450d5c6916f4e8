"""The time of a Kafka Journal's event, as Cassandra's driver gives it."""

from cassandra.cqltypes import DateType
from hypothesis import given
from hypothesis import strategies as st

from tagmill.delivery.topics.kafka_journal_source import milliseconds_of


@given(st.integers(-2_208_988_800_000, 10_413_791_999_999))
def test_time_of_event_keeps_its_millisecond(milliseconds):
    """Keep milliseconds from 1900 to 2299, the years that ClickHouse can hold."""
    assert milliseconds_of(DateType.deserialize(DateType.serialize(milliseconds, 4), 4)) == milliseconds
