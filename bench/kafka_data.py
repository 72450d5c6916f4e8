"""Run one step of bench/kafka in a process of its own: python -m bench.kafka_data STEP CONFIG ARGUMENT...

produce EVENTS | ready FOLDER | empty | write FOLDER tuned|plain
"""

import base64
import json
import random
import sys
from collections import defaultdict
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.connector import BATCHES, CASSANDRA, session, table
from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.ledger.schema import statements

TOPIC, PARTITIONS, IDS, AT_ONCE, MARK_EVERY = "bench", 4, 20_000, 2, 20


def produce(settings: Settings, events: str) -> None:
    """Create the ledger, and a topic of appends and marks."""
    with Cassandra(settings.cassandra) as cassandra:
        options = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        for statement in statements(
            "cassandra", {"ledger": settings.cassandra.ledger_keyspace, "replication": options}
        ):
            cassandra.execute(statement)
    servers = {"bootstrap.servers": ",".join(settings.kafka.bootstrap_servers)}
    admin = AdminClient(servers)
    for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        made.result(30)
    producer, choice, last = (
        Producer({**servers, "linger.ms": 50}),
        random.Random(1),
        defaultdict[int, int](int),
    )  # noqa: S311
    for number in range(int(events) // AT_ONCE):
        one = choice.randrange(IDS)
        first = last[one] + 1
        last[one] += AT_ONCE
        payload = base64.b64encode(choice.randbytes(140)).decode()
        value = {
            "events": [
                {"seqNr": n, "tags": ["t"], "payload": {"id": one, "data": payload}}
                for n in (first, first + 1)
            ]
        }
        _send(
            producer,
            one,
            json.dumps(value),
            {"append": {"range": {"from": first, "to": first + 1}, "payloadType": "json"}},
        )
        if number % MARK_EVERY == 0:
            _send(producer, one, None, {"mark": {"id": str(number)}})
    producer.flush()


def _send(producer: Producer, key_number: int, value: str | None, action: dict[str, object]) -> None:
    headers = {"journal.action": json.dumps(action)}
    while True:
        try:
            producer.produce(TOPIC, value, f"cart-{key_number:06d}", key_number % PARTITIONS, headers=headers)
            return
        except BufferError:
            producer.poll(1)


def ready(settings: Settings, folder: str) -> None:
    """Write the rows of journal to Parquet files, in the order of its partitions."""
    keyspace = settings.kafka_journal("bench").keyspace
    rows = table(session(settings), keyspace, "journal").repartition(8, "id", "topic", "segment")
    rows.sortWithinPartitions("topic", "id", "segment", "seq_nr").write.mode("overwrite").parquet(folder)


def empty(settings: Settings) -> None:
    """Empty the journal's tables, as they were before the first replication."""
    keyspace = settings.kafka_journal("bench").keyspace
    with Cassandra(settings.cassandra) as cassandra:
        for name in ("journal", "metajournal", "pointer2"):
            cassandra.execute(f"TRUNCATE {keyspace}.{name}")


def write(settings: Settings, folder: str, how: str) -> None:
    """Write the ready-made rows with the connector: in our batches (`tuned`) or with its default settings."""
    rows = session(settings).read.parquet(folder)
    options = {
        "keyspace": settings.kafka_journal("bench").keyspace,
        "table": "journal",
        **(BATCHES if how == "tuned" else {}),
    }
    rows.write.format(CASSANDRA).options(**options).mode("append").save()


if __name__ == "__main__":
    globals()[sys.argv[1]](Settings.load(Path(sys.argv[2])), *sys.argv[3:])
