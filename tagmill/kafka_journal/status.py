"""Report on the replication of a Kafka Journal: how much waits, what cannot be read, and what stops the next
replication.
"""

from typing import Any

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.domain import clock
from tagmill.domain.verdict import Facts, Level, OpenRun, judged, moment
from tagmill.kafka_journal.model import PartitionStatus
from tagmill.kafka_journal.replicate import status
from tagmill.ledger.attempts import unended
from tagmill.ledger.dead_letters import DeadLetters
from tagmill.ledger.failures import Failures
from tagmill.ledger.replications import SEALED, Replications

REPLICATED = "all that is in Kafka is replicated"


def replication_line(
    settings: Settings, pipeline: str, *, verify: bool = False
) -> tuple[dict[str, Any], list[PartitionStatus]]:
    """Return pipeline, waiting, dead_letters, verdict and level of a replication, and its partitions.

    What is replicated is known by Kafka's offsets, which are asked for now; with `verify` that counts as
    proof. No row is read again.
    """
    partitions, keyspace = status(settings, pipeline), settings.cassandra.ledger_keyspace
    with Cassandra(settings.cassandra) as cassandra:
        newest = Replications(cassandra, keyspace, pipeline).newest()
        line: dict[str, Any] = {
            "pipeline": pipeline,
            "waiting": sum(partition.waiting for partition in partitions),
            "dead_letters": DeadLetters(cassandra, keyspace, pipeline).count(),
        }
        facts = Facts(
            open_run=OpenRun(newest.replication, newest.state, 1)
            if newest and newest.state == SEALED
            else None,
            failure=Failures(cassandra, keyspace, pipeline).current(),
            unended=unended(cassandra, keyspace, pipeline),
            waiting=line["waiting"],
            unreadable=sum(partition.not_readable for partition in partitions),
            dead_letters=line["dead_letters"],
            obstacles=tuple(
                dict.fromkeys(partition.problem for partition in partitions if partition.problem)
            ),
            settled=f"{REPLICATED}, offsets compared at {moment(clock.earliest(cassandra.clocks))}"
            if verify
            else REPLICATED,
            settled_level=Level.PROVEN if verify else Level.COUNTED,
        )
    return judged(line, facts), partitions
