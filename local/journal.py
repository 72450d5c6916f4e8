"""Load the journals that the demo delivers, and list the rows that have to arrive: the recorded orders, or
generated events.
"""

import json
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from cassandra.cluster import Session

from local.fixtures import TABLES, WITHOUT_VIEWS, Case, load_case
from local.generate import SERIALIZER, Plan, generate, plan
from tagmill.domain.timeuuid import ticks, to_datetime
from tagmill.errors import ConfigurationError


class Row(NamedTuple):
    """One expected row of the destination: the columns of tag_views, with the time in 100 ns ticks since 1970
    UTC.
    """

    tag: str
    timebucket: int
    persistence_id: str
    sequence_nr: int
    tag_pid_sequence_nr: int
    event_time: int
    offset: str
    writer_uuid: str
    ser_id: int
    ser_manifest: str
    event_manifest: str
    event: bytes
    meta_ser_id: int | None
    meta_ser_manifest: str | None
    meta: bytes | None


class Journal(ABC):
    """A journal that the demo can load and whose rows are known."""

    name: str  # the name of pipeline, keyspace and destination
    first_time_bucket: str
    tags: tuple[str, ...]

    @abstractmethod
    def load(self, session: Session) -> None:
        """Write the journal into Cassandra; a second call changes nothing."""

    @abstractmethod
    def expected(self) -> Iterator[tuple[str, int, list[Row]]]:
        """Yield all rows that have to arrive: tag, timebucket and the rows of that bucket."""

    def delivered_by_the_plugin(self, tag: str) -> set[tuple[str, int, str]] | None:
        """Return what the plugin itself delivered for a tag: (persistence_id, sequence_nr, offset).

        None if the plugin's reading was not recorded.
        """
        return None


class Orders(Journal):
    """The order journal that the real plugin wrote, with what the plugin read from it."""

    name = "orders"
    tables: tuple[str, ...] = TABLES

    def __init__(self) -> None:
        self.case = Case("orders")
        self.first_time_bucket = str(self.case.expected["first_time_bucket"])
        self.tags = tuple(self.case.tags)

    def load(self, session: Session) -> None:
        """Write the journal's tables.

        Raises:
            ConfigurationError: this machine's clock is before the recorded events, so that nothing would be
                delivered.
        """
        last = max(row.event_time for _, _, rows in self.expected() for row in rows)
        if to_datetime(last) > datetime.now(UTC):
            raise ConfigurationError(
                f"this machine's clock ({datetime.now(UTC):%Y-%m-%d %H:%M} UTC) is before the recorded "
                "orders "
                f"({to_datetime(last):%Y-%m-%d %H:%M}). Nothing was loaded. Set the clock, or use "
                "--events N, "
                "which generates events of the last hours"
            )
        load_case(session, self.case.name, self.name, tables=self.tables)

    def expected(self) -> Iterator[tuple[str, int, list[Row]]]:
        """Yield the recorded rows of tag_views by tag and timebucket."""
        for (tag, bucket), rows in sorted(self._rows.items()):
            yield tag, bucket, rows

    def delivered_by_the_plugin(self, tag: str) -> set[tuple[str, int, str]]:
        """Return the recorded content of expected-TAG.tsv."""
        return set(self.case.delivered(tag))

    @cached_property
    def _rows(self) -> dict[tuple[str, int], list[Row]]:
        found: defaultdict[tuple[str, int], list[Row]] = defaultdict(list)
        for row in self.case.table("tag_views").to_pylist():
            offset = row.pop("timestamp")
            columns = {**row, "tag": row["tag_name"], "offset": offset, "event_time": ticks(UUID(offset))}
            found[row["tag_name"], row["timebucket"]].append(
                Row(**{name: columns[name] for name in Row._fields})
            )
        return dict(found)


class OrdersWithoutViews(Orders):
    """The order journal as if its application had run with events-by-tag off: Tagmill builds the view before
    it delivers.
    """

    name = "orders_built"
    tables = WITHOUT_VIEWS


class Generated(Journal):
    """Events of the last hours; the plan is kept in a file, so that a second start generates and delivers
    nothing new.
    """

    def __init__(self, rows: int, home: Path) -> None:
        if rows < 1:
            raise ConfigurationError(f"--events {rows}: give at least 1. Nothing was started")
        self.name = f"generated_{rows}"
        self._file = home / f"{self.name}.json"
        self.plan = self._kept() or plan(rows)
        self.tags, self.first_time_bucket = self.plan.tags, self.plan.first_time_bucket

    def load(self, session: Session) -> None:
        """Write the plan's rows unless the plan's file says that they are loaded."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        if self._loaded():
            return
        self.keep_plan(loaded=False)  # a run after a killed one goes on with the same plan
        generate(session, self.name, self.plan)
        self.keep_plan(loaded=True)

    def expected(self) -> Iterator[tuple[str, int, list[Row]]]:
        """Yield the plan's rows, one bucket at a time."""
        size, start = self.plan.size, 0
        while start < self.plan.events:
            bucket = size.start(self.plan.event(start).ticks)
            end = (bucket + size.milliseconds) * 10_000 - self.plan.first_ticks
            stop = min(self.plan.events, -(-end // self.plan.step_ticks))
            rows: dict[str, list[Row]] = {tag: [] for tag in self.plan.tags}
            for index in range(start, stop):
                for row in self._rows(index, bucket):
                    rows[row.tag].append(row)
            for tag, found in rows.items():
                yield tag, bucket, found
            start = stop

    def _rows(self, index: int, bucket: int) -> Iterator[Row]:
        event = self.plan.event(index)
        for tag, number in event.tags:
            yield Row(
                tag=tag,
                timebucket=bucket,
                persistence_id=event.persistence_id,
                sequence_nr=event.sequence_nr,
                tag_pid_sequence_nr=number,
                event_time=event.ticks,
                offset=str(event.offset),
                writer_uuid=event.writer_uuid,
                ser_id=SERIALIZER,
                ser_manifest=event.ser_manifest,
                event_manifest="",
                event=event.event,
                meta_ser_id=None,
                meta_ser_manifest=None,
                meta=None,
            )

    def _kept(self) -> Plan | None:
        try:
            content = json.loads(self._file.read_text())["plan"]
        except FileNotFoundError:
            return None
        return Plan(**{**content, "tags": tuple(content["tags"])})

    def _loaded(self) -> bool:
        return self._file.exists() and bool(json.loads(self._file.read_text())["loaded"])

    def keep_plan(self, loaded: bool) -> None:
        """Write the plan, and whether it is loaded, to the file that the next run reads."""
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps({"plan": asdict(self.plan), "loaded": loaded}))
        draft.replace(self._file)
