"""Explain what the next replication of a Kafka Journal would do; nothing is written, and Spark does not
start.
"""

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.domain.explanation import Explanation, Reading
from tagmill.kafka_journal.replicate import status
from tagmill.ledger.dead_letters import DeadLetters
from tagmill.ledger.replications import SEALED, Replications


def explain(settings: Settings, pipeline: str) -> Explanation:
    """Say what the next replication reads, by Kafka's offsets and the pointers of the keyspace."""
    configured, keyspace = settings.kafka_journal(pipeline), settings.cassandra.ledger_keyspace
    partitions = status(settings, pipeline)
    with Cassandra(settings.cassandra) as cassandra:
        newest = Replications(cassandra, keyspace, pipeline).newest()
        letters = DeadLetters(cassandra, keyspace, pipeline).count()
    number = newest.replication if newest and newest.state == SEALED else None
    number = number or (newest.replication if newest else 0) + 1
    waiting = [one for one in partitions if one.waiting]
    total = sum(one.waiting for one in waiting)
    sentences = []
    if newest and newest.state == SEALED:
        sentences.append(f"Replication {newest.replication} is SEALED and is finished first.")
    if total:
        pieces = -(-total // configured.max_records_per_run)
        sentences.append(
            f"It reads {total:,} records of {len(waiting)} partitions in {pieces} pieces of at most "
            f"{configured.max_records_per_run:,}, and writes what they say to keyspace {configured.keyspace}."
        )
    elif not sentences:
        sentences.append("There is nothing to do: all records are replicated.")
    if unreadable := sum(one.not_readable for one in partitions):
        sentences.append(f"{unreadable:,} offsets are behind an open transaction.")
    if letters:
        sentences.append(f"{letters:,} records could not be read: `tagmill deadletters list` shows them.")
    return Explanation(
        pipeline=pipeline,
        kind=configured.kind,
        run=number if total or (newest and newest.state == SEALED) else None,
        sentences=sentences,
        reads=[
            Reading(
                source=f"{one.topic}/{one.partition}",
                begin=str(max(one.first, one.end - one.waiting)),
                end=str(one.end),
                new=one.waiting,
            )
            for one in waiting
        ],
        stops=list(dict.fromkeys(one.problem for one in partitions if one.problem)),
    )
