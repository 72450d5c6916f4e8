"""Create the topics of a Kafka Journal for a test, write to them, and read the tables of its keyspace."""

import json
import struct
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tagmill.config.settings import Settings
from tests.support.stack import LEDGER, Stack, own_keyspaces

BEGIN = 1_790_000_000_000  # first timestamp of a topic, in milliseconds since 1970


def admin(port: int) -> AdminClient:
    return AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})


def create(port: int, topic: str, partitions: int = 1, **config: str) -> None:
    """Create a topic, also where one of this name was just deleted; return once clients know all its
    partitions.
    """
    client = admin(port)
    for attempt in Retrying(
        retry=retry_if_exception_type(KafkaException),
        stop=stop_after_delay(30),
        wait=wait_fixed(0.2),
        reraise=True,
    ):
        with attempt:
            _done(client.create_topics([NewTopic(topic, partitions, 1, config=config)]))
    _until(lambda: len(_partitions(client, topic)) == partitions)


def delete(port: int, topic: str) -> None:
    """Delete a topic; return once clients no longer know it."""
    client = admin(port)
    _done(client.delete_topics([topic]))
    _until(lambda: topic not in client.list_topics(timeout=10).topics)


def lose(port: int, topic: str, partition: int, before: int) -> None:
    """Delete the records before an offset, as retention does."""
    client = admin(port)
    _done(client.delete_records([TopicPartition(topic, partition, before)]))


def _done(futures: dict[Any, Any]) -> None:
    for one in futures.values():
        one.result(30)


def _partitions(client: AdminClient, topic: str) -> Any:
    found = client.list_topics(topic, timeout=10).topics[topic]
    return [] if found.error else found.partitions


def _open_transaction(port: int, topic: str) -> bool:
    """Tell whether a partition of the topic has records that readers of committed ones can't see yet."""
    client = admin(port)
    partitions = [TopicPartition(topic, found.id) for found in _partitions(client, topic).values()]

    def ends(isolation: IsolationLevel) -> list[int]:
        futures = client.list_offsets(
            dict.fromkeys(partitions, OffsetSpec.latest()), isolation_level=isolation, request_timeout=10
        )
        return [futures[partition].result().offset for partition in partitions]

    return ends(IsolationLevel.READ_COMMITTED) != ends(IsolationLevel.READ_UNCOMMITTED)


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "Kafka did not do it in time"
        time.sleep(0.05)


@dataclass
class Topic:
    """A topic and its producer; every record's timestamp is `step` milliseconds after that of the record
    before.
    """

    port: int
    name: str
    clock: int = BEGIN
    step: int = 1
    _producer: Producer | None = None

    def send(
        self,
        key: str | bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: int = 0,
    ) -> int:
        """Send one record; return its timestamp in milliseconds."""
        if self._producer is None:
            self._producer = Producer(
                {
                    "bootstrap.servers": f"127.0.0.1:{self.port}",
                    "linger.ms": 5,
                    "log_level": 0,
                    "message.max.bytes": 10**9,
                }
            )
        self.clock += self.step
        self._producer.produce(
            self.name, value, key, partition, timestamp=self.clock, headers=list(headers), on_delivery=_must
        )
        self._producer.poll(0)
        return self.clock

    @contextmanager
    def transaction(self, *, abort: bool = False) -> Iterator[None]:
        """Send all records of the body in one transaction, whose end takes an offset of its own; `abort`
        aborts it. Return once readers can see its end, which the broker writes after its answer.
        """
        self.flush()
        before = self._producer
        self._producer = Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{self.port}",
                "transactional.id": f"t-{uuid.uuid4().hex[:8]}",
                "log_level": 0,
            }
        )
        self._producer.init_transactions(30)
        self._producer.begin_transaction()
        try:
            yield
            self._producer.flush(30)
            (self._producer.abort_transaction if abort else self._producer.commit_transaction)(30)
            _until(lambda: not _open_transaction(self.port, self.name))
        finally:
            self._producer = before

    def grow(self, partitions: int) -> None:
        """Raise the number of partitions to `partitions`; return once clients know them."""
        self.flush()
        client, self._producer = (
            admin(self.port),
            None,
        )  # the old producer would learn of the new partitions only later
        _done(client.create_partitions([NewPartitions(self.name, partitions)]))
        _until(lambda: len(_partitions(client, self.name)) == partitions)

    def flush(self) -> None:
        """Wait until all records have arrived."""
        if self._producer is not None:
            assert self._producer.flush(30) == 0

    # -- actions of a Kafka Journal

    def append(
        self,
        key: str,
        events: Sequence[tuple[int, Any]],
        *,
        partition: int = 0,
        expire_after: str | None = None,
        tags: Sequence[str] = (),
        origin: str | None = "app",
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> int:
        """Send an append of events, given as (sequence number, JSON payload), in the JSON form; return its
        timestamp.
        """
        value: dict[str, Any] = {
            "events": [{"seqNr": n, "tags": list(tags), "payload": payload} for n, payload in events]
        }
        if expire_after:
            value["metadata"] = {"expireAfter": expire_after}
        action = append_header(events[0][0], events[-1][0], origin=origin)
        return self.send(key, json.dumps(value).encode(), [action, *headers], partition)

    def delete(self, key: str, to: int, partition: int = 0) -> int:
        return self.send(key, None, [header(delete={"to": to})], partition)

    def purge(self, key: str, partition: int = 0) -> int:
        return self.send(key, None, [header(purge={})], partition)

    def mark(self, key: str, partition: int = 0) -> int:
        return self.send(key, None, [header(mark={"id": str(uuid.uuid4())})], partition)


def _must(error: Any, _: Any) -> None:
    assert error is None, error


def header(**action: Any) -> tuple[str, bytes]:
    return "journal.action", json.dumps(action).encode()


def append_header(first: int, last: int, payload_type: str = "json", **more: Any) -> tuple[str, bytes]:
    return header(
        append={"range": {"from": first, "to": last}, "payloadType": payload_type, "metadata": {}, **more}
    )


def binary(
    events: Sequence[tuple[int, Sequence[str], int, bytes]], version: int = 1, metadata: Any = None
) -> bytes:
    """Return the binary form of events, given as (sequence number, tags, payload kind, payload)."""

    def sized(content: bytes) -> bytes:
        return struct.pack(">i", len(content)) + content

    parts = []
    for seq_nr, tags, kind, payload in events:
        listed = b"".join(sized(tag.encode()) for tag in tags)
        parts.append(sized(struct.pack(">q", seq_nr) + sized(listed) + bytes([kind]) + sized(payload)))
    tail = json.dumps(metadata or {}).encode() if version == 1 else b""
    return bytes([version]) + struct.pack(">i", len(events)) + b"".join(parts) + tail


@dataclass
class KafkaJournal:
    """A pipeline of kind kafka_journal over its own topics and keyspace."""

    stack: Stack
    port: int
    folder: Path
    name: str
    ledger: str = LEDGER

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.toml"

    def topic(self, suffix: str = "a", partitions: int = 1, **config: str) -> Topic:
        """Create a topic whose name starts with the pipeline's prefix."""
        topic = Topic(self.port, f"{self.name}-{suffix}")
        create(self.port, topic.name, partitions, **config)
        return topic

    def settings(self, spark_conf: dict[str, str], **keys: Any) -> Settings:
        """Write the pipeline's configuration to `file`, and return its Settings."""
        wanted = {"topic_prefixes": [f"{self.name}-"], "keyspace": self.name, "lease_seconds": 30, **keys}
        conf = ", ".join(f"{json.dumps(key)} = {json.dumps(value)}" for key, value in spark_conf.items())
        lines = [
            "[cassandra]",
            f"port = {self.stack.cassandra.port}",
            f'ledger_keyspace = "{self.ledger}"',
            "[clickhouse]",
            f"port = {self.stack.clickhouse.port}",
            "[kafka]",
            f'bootstrap_servers = ["127.0.0.1:{self.port}"]',
            "request_timeout_seconds = 10",
            "[spark]",
            'driver_memory = "1g"',
            f"conf = {{ {conf} }}",
            "[storage]",
            'root = "data"',
            f"[pipelines.{self.name}]",
            'kind = "kafka_journal"',
            *(f"{key} = {json.dumps(value)}" for key, value in wanted.items()),
        ]
        self.file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return Settings.load(self.file)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of journal in the order of id, topic, segment, seq_nr and timestamp."""
        found = [row._asdict() for row in self.stack.session.execute(f"SELECT * FROM {self.name}.journal")]
        return sorted(
            found, key=lambda row: (row["id"], row["topic"], row["segment"], row["seq_nr"], row["timestamp"])
        )

    def entries(self) -> dict[str, dict[str, Any]]:
        """Return the rows of metajournal by id."""
        return {
            row.id: row._asdict()
            for row in self.stack.session.execute(f"SELECT * FROM {self.name}.metajournal")
        }

    def pointers(self) -> dict[tuple[str, int], int]:
        found = self.stack.session.execute(f"SELECT topic, partition, offset FROM {self.name}.pointer2")
        return {(row.topic, row.partition): row.offset for row in found}

    def seq_nrs(self, key: str) -> list[int]:
        return [row["seq_nr"] for row in self.rows() if row["id"] == key]


def moment(milliseconds: int) -> datetime:
    """Return the moment as the Cassandra driver does: a datetime in UTC without a time zone."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).replace(tzinfo=None)


def made(stack: Stack, port: int, folder: Path) -> Iterator[Any]:
    """Yield a function that makes journals, and drop these at the end."""
    with own_keyspaces(stack.session) as create:
        yield lambda: KafkaJournal(stack, port, folder, create())
