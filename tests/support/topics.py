"""A pipeline over one plain topic for a test: send events to it, run its steps, and read what arrived."""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tagmill.cassandra.client import Cassandra
from tagmill.config.settings import Settings
from tagmill.delivery.topics import destination_table, steps
from tagmill.delivery.topics.status import topic_line
from tagmill.ledger import schema
from tagmill.ledger.dedup import TopicOffsets
from tagmill.runs import checkpoints
from tests.conftest import FEW_ROWS, toml_value
from tests.support.delivery import without_moment
from tests.support.kafka import Topic, create
from tests.support.stack import LEDGER

OWNER = "o"


class Crashed(BaseException):
    """Stands for the end of the process; the code under test doesn't catch it."""


def checked_verdict(one: "Shop") -> str:
    """Return what `tagmill check` says of the pipeline, without the time of the check."""
    return without_moment(topic_line(one.settings, one.name, verify=True)["verdict"])


class Shop:
    """A pipeline over one topic, of JSON events unless configured otherwise."""

    def __init__(self, stack: Any, kafka: Any, spark: Any, folder: Path) -> None:
        self.stack, self.kafka, self.spark = stack, kafka, spark
        self.name = f"s_{uuid.uuid4().hex[:10]}"
        self.file = folder / f"{self.name}.toml"
        self.topic = Topic(kafka.port, self.name)
        self.keys: dict[str, Any] = {}
        self.ledger = LEDGER

    def configure(self, **keys: Any) -> Settings:
        """Write the configuration with these keys added to earlier ones, and return its Settings."""
        self.keys |= keys
        of_topic = (
            {}
            if "kind" in self.keys
            else {"kind": "topic", "topics": [self.name], "format": "json", "batch_min_rows": 1, "shards": 3}
        )
        wanted = {**of_topic, "destination": self.name, "seconds_between_inserts": 0, **self.keys}
        lines = [
            "[cassandra]",
            f"port = {self.stack.cassandra.port}",
            f'ledger_keyspace = "{self.ledger}"',
            "[clickhouse]",
            f"port = {self.stack.clickhouse.port}",
            "[kafka]",
            f'bootstrap_servers = ["127.0.0.1:{self.kafka.port}"]',
            "[spark]",
            f"conf = {toml_value(FEW_ROWS)}",
            "[storage]",
            'root = "data"',
            f"[pipelines.{self.name}]",
            *(f"{key} = {toml_value(value)}" for key, value in wanted.items()),
        ]
        self.file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.settings = Settings.load(self.file)
        return self.settings

    def applied(self) -> "Shop":
        """Apply the schema of the ledger and of the destination, and return this shop."""
        schema.apply(self.settings)
        destination_table.apply(self.settings)
        return self

    def send(self, product: int | None, partition: int = 0, **more: Any) -> None:
        """Send an event of a product; with None, the event's key is incomplete."""
        event = {"project": "p", "event_type": "created", "product_id": product, **more}
        self.topic.send(str(product), json.dumps(event).encode(), partition=partition)

    def deliver(self, **options: Any) -> list[dict[str, Any]]:
        """Deliver run by run until nothing is new (with `letters` only once); return each run's result."""
        self.topic.flush()
        done: list[dict[str, Any]] = []
        while (planned := steps.plan(self.settings, self.name, owner=OWNER, **options))["run"] is not None:
            done.append(self.finish(planned))
            if options.get("letters"):
                break
        return done

    def finish(self, planned: dict[str, Any]) -> dict[str, Any]:
        """Seal, push and close a planned run; return the result of the close."""
        at = (planned["run"], planned["fence"])
        steps.seal(self.settings, self.name, *at, owner=OWNER, spark=lambda: self.spark)
        steps.push(self.settings, self.name, *at, owner=OWNER)
        return steps.close(self.settings, self.name, *at, owner=OWNER)

    def sealed(self) -> dict[str, Any]:
        """Plan and seal a run; return the plan."""
        self.topic.flush()
        planned = steps.plan(self.settings, self.name, owner=OWNER)
        steps.seal(
            self.settings, self.name, planned["run"], planned["fence"], owner=OWNER, spark=lambda: self.spark
        )
        return planned

    def rows(self, columns: str = "payload") -> list[tuple[Any, ...]]:
        """Return the rows that arrived, in Kafka's order."""
        found = self.stack.rows(f"SELECT {columns} FROM {self.name} ORDER BY topic, partition, offset")
        return [tuple(row) for row in found]

    def products(self) -> list[int]:
        """Return the product of each row that arrived, in Kafka's order."""
        return [json.loads(payload)["product_id"] for (payload,) in self.rows()]

    def ids(self) -> dict[str, tuple[int, int]]:
        """Return shard and run of each unique_id in deduplication, under all rules."""
        return {row.unique_id: (row.shard, row.run) for row in self._deduplication()}

    def rules(self) -> set[str]:
        """Return the rules under which deduplication has ids."""
        return {row.rule for row in self._deduplication()}

    def _deduplication(self) -> list[Any]:
        rows = self.stack.session.execute(
            f"SELECT pipeline, rule, shard, unique_id, run FROM {self.ledger}.deduplication"
        )
        return [row for row in rows if row.pipeline == self.name]

    def offsets(self) -> dict[int, int]:
        """Return the offset up to which each partition is delivered."""
        with Cassandra(self.settings.cassandra) as cassandra:
            offsets = TopicOffsets(cassandra, self.ledger, self.name).read_to()
        return {partition: offset for (_, partition), offset in offsets.items()}


def crashing(at: str) -> Any:
    """Return a patch that raises Crashed at a checkpoint, as if the process ended there."""

    def reached(name: str) -> None:
        if name == at:
            raise Crashed(name)

    return patch.object(checkpoints, "reached", reached)


def made(stack: Any, kafka: Any, spark: Any, folder: Path) -> Iterator[Callable[..., Shop]]:
    """Yield make(partitions, configuration of the topic, ledger keyspace, **keys of the pipeline), which
    returns a shop with topic and tables.
    """

    def make(
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        ledger: str = LEDGER,
        **keys: Any,
    ) -> Shop:
        one = Shop(stack, kafka, spark, folder)
        one.ledger = ledger
        create(kafka.port, one.name, partitions, **(config or {}))
        one.configure(**keys)
        return one.applied()

    yield make
