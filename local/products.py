"""Fill and check the demo's topic: what happened to a shop's products, as JSON; some records are sent twice,
some can't be read.
"""

import json
from collections import Counter
from collections.abc import Iterator

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from local.errors import PartDidNotStart
from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.delivery.topics.status import topic_line
from tagmill.delivery.topics.table_columns import layout
from tagmill.domain import identifiers
from tagmill.kafka.client import Kafka

NAME = "products"  # the name of the pipeline, its topic and its table
EVENTS, PARTITIONS = 6000, 2
TWICE_EVERY, BROKEN_EVERY = 20, 1500
SECONDS = 60
KINDS = ("listed", "priced", "sold")


def load(settings: Settings) -> None:
    """Create the topic and write the records that it lacks; a second call changes nothing."""
    topic, servers = settings.topic(NAME).topics[0], ",".join(settings.kafka.bootstrap_servers)
    partitions = [(topic, partition) for partition in range(PARTITIONS)]
    with Kafka(settings.kafka) as kafka:
        if topic in kafka.topics():
            there = {partition: span.end for partition, span in kafka.spans(partitions).items()}
        else:
            there = dict.fromkeys(partitions, 0)
            admin = AdminClient({"bootstrap.servers": servers})
            try:
                admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(SECONDS)
            except KafkaException as error:
                raise PartDidNotStart(
                    f"kafka: the topic {topic} could not be made: {error.args[0].str()}. Run it again"
                ) from None
    producer = Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 20, "log_level": 0}
    )
    for partition in range(PARTITIONS):
        for number, value in enumerate(_sent(partition)):
            if number >= there[topic, partition]:
                producer.produce(topic, value, partition=partition)
                producer.poll(0)
    if left := producer.flush(SECONDS):
        raise PartDidNotStart(
            f"kafka: {left} records were not taken within {SECONDS} s. Run it again: it goes on where it was"
        )


def differences(settings: Settings) -> list[str]:
    """Return what differs from the events that had to arrive; an empty list means that they are equal."""
    chosen = settings.topic(NAME)
    expected = Counter(
        {value for partition in range(PARTITIONS) for value in _sent(partition) if value.endswith(b"}}")}
    )
    with ClickHouse(settings.clickhouse, layout(chosen)) as clickhouse:
        rows = clickhouse.rows(f"SELECT payload FROM {identifiers.sql(chosen.destination)}")
        arrived = Counter(value.encode() if isinstance(value, str) else value for (value,) in rows)
    missing, extra = expected - arrived, arrived - expected
    return (
        [f"{missing.total()} events are missing, {extra.total()} were not expected or came twice"]
        if missing or extra
        else []
    )


def line(settings: Settings) -> dict[str, object]:
    """Return what `tagmill check` reports for the pipeline."""
    return topic_line(settings, NAME, verify=True)


def _sent(partition: int) -> Iterator[bytes]:
    """Yield the records of a partition, in their order."""
    for number in range(partition, EVENTS, PARTITIONS):
        event = {
            "project": "shop",
            "event_type": KINDS[number % len(KINDS)],
            "product_id": number // len(KINDS),
            "price": round(1 + number * 7 % 990 / 10, 2),
            "customer": {"country": ("NL", "DE", "PT", "KE")[number % 4]},
        }
        value = json.dumps(event).encode()
        yield value
        if number % TWICE_EVERY == 0:
            yield value
        if number % BROKEN_EVERY == 0:
            yield value[:-20]
