"""Look up how far the partitions of a pipeline's topics, or of its replicated Kafka Journal, are
delivered.
"""

from tagmill.config.kafka import TopicSettings
from tagmill.delivery.topics.plan import spans_of
from tagmill.delivery.topics.same_journal import other_life
from tagmill.kafka.client import Kafka
from tagmill.kafka.offset_ranges import partitions_of
from tagmill.kafka.positions import TopicPosition, kafka_positions
from tagmill.ledger.dedup import TopicOffsets
from tagmill.ledger.topic_ids import TopicIds, recreated_topics
from tagmill.runs.workspace import Workspace


def topic_positions(workspace: Workspace) -> list[TopicPosition]:
    """Return which offsets of each partition exist, can be read, and are delivered.

    Of a Kafka Journal, replicated ones count as existing.

    Raises ConfigurationError: a named topic, or the tables of the Kafka Journal, do not exist.
    """
    configured = workspace.stream
    delivered_to = workspace.store(TopicOffsets).read_to()
    if not isinstance(configured, TopicSettings):
        of_all, of_topic = other_life(workspace)
        return [
            TopicPosition(
                *partition,
                delivered_to=delivered_to.get(partition),
                log_start=span.first,
                last_stable_offset=span.end,
                high_watermark=span.end,
                another_life=of_all or of_topic.get(partition[0], ""),
            )
            for partition, span in spans_of(workspace).items()
        ]
    before = workspace.store(TopicIds).read()
    with Kafka(workspace.settings.kafka) as kafka:
        read = partitions_of(kafka, workspace.name, configured.topics, configured.topic_prefixes)
        recreated = recreated_topics(kafka.topic_ids({topic for topic, _ in read}), before, delivered_to)
        return kafka_positions(kafka, read, delivered_to, recreated)
