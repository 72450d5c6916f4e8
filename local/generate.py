"""Generate a journal as the plugin would have written it: messages, tag_views, tag_write_progress,
all_persistence_ids.

Event i belongs to persistence id i % P; its two tags rotate; every 10th sequence_nr is untagged. Everything
is derived from the plan by arithmetic. Any process can therefore make any part, a second run writes the same
rows, and the expected rows are known.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from multiprocessing import get_context
from typing import Any, NamedTuple
from uuid import UUID

from cassandra.cluster import Session

from local.cql import session as open_session
from local.cql import write_partitions
from local.fixtures import Case
from tagmill.domain.identifiers import cql
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import GREGORIAN_TICKS, from_datetime

TYPES = ("OrderPlaced", "OrderPaid", "OrderShipped", "OrderBilled")
SERIALIZER = 9001
UNTAGGED_EVERY = 10
CHUNK = 10_000  # events (or persistence ids) that one call of a worker writes
IN_PROCESS = 20_000  # rows: up to this many are not worth a second process

VIEW = (
    "tag_name timebucket timestamp persistence_id tag_pid_sequence_nr event event_manifest sequence_nr "
    "ser_id ser_manifest "
    "writer_uuid"
).split()
MESSAGE = (
    "persistence_id partition_nr sequence_nr timestamp event event_manifest ser_id ser_manifest "
    "timebucket writer_uuid tags"
).split()
PROGRESS = "persistence_id tag offset sequence_nr tag_pid_sequence_nr".split()


class Event(NamedTuple):
    """One event of the generated journal."""

    persistence_id: str
    sequence_nr: int
    ticks: int
    offset: UUID
    event: bytes
    ser_manifest: str
    writer_uuid: str
    tags: list[tuple[str, int]]  # tag, tag_pid_sequence_nr


@dataclass(frozen=True)
class Plan:
    """What to generate; equal plans give equal rows."""

    rows: int
    tags: tuple[str, ...]
    persistence_ids: int
    first_ticks: int
    step_ticks: int
    bucket_size: str = "Hour"
    payload_bytes: int = 200
    seed: int = 1

    @cached_property
    def per_event(self) -> int:
        """Number of tags of an event."""
        return min(2, len(self.tags))

    @cached_property
    def events(self) -> int:
        """Number of tagged events."""
        return -(-self.rows // self.per_event)

    @cached_property
    def size(self) -> BucketSize:
        """The bucket size as Tagmill's BucketSize."""
        return BucketSize(self.bucket_size)

    @property
    def first_time_bucket(self) -> str:
        """The events-by-tag.first-time-bucket as the plugin writes it (yyyyMMddTHH:mm)."""
        return datetime.fromtimestamp(self.size.start(self.first_ticks) / 1000, UTC).strftime("%Y%m%dT%H:%M")

    def event(self, index: int) -> Event:
        """Return the tagged event number `index`, counted from 0 in time order."""
        number, owner = divmod(index, self.persistence_ids)
        count = len(self.tags)
        residue = (number + owner) % count
        wanted = 1 if index == self.events - 1 and self.rows % self.per_event else self.per_event
        tags = [
            (self.tags[(residue + k) % count], self._tagged(owner, number, (residue + k) % count))
            for k in range(wanted)
        ]
        sequence_nr = number + 1 + number // (UNTAGGED_EVERY - 1)
        return self._make(owner, sequence_nr, self.first_ticks + index * self.step_ticks, tags)

    def untagged(self, index: int) -> Event | None:
        """Return the untagged event that follows tagged event number `index`, or None if none follows."""
        number, owner = divmod(index, self.persistence_ids)
        if (number + 1) % (UNTAGGED_EVERY - 1):
            return None
        sequence_nr = (number + 1) // (UNTAGGED_EVERY - 1) * UNTAGGED_EVERY
        return self._make(owner, sequence_nr, self.first_ticks + index * self.step_ticks + 1, [])

    def expected(self) -> dict[str, int]:
        """Return the number of rows per tag."""
        found = Counter({tag: 0 for tag in self.tags})
        for owner in range(min(self.persistence_ids, self.events)):
            last = (self.events - 1 - owner) // self.persistence_ids
            for k, tag in enumerate(self.tags):
                found[tag] += self._tagged(owner, last, k)
        if self.rows % self.per_event:  # the last event has one tag less
            number, owner = divmod(self.events - 1, self.persistence_ids)
            found[self.tags[(number + owner + 1) % len(self.tags)]] -= 1
        return dict(found)

    def _tagged(self, owner: int, number: int, tag: int) -> int:
        """Count those of a persistence id's tagged events 0 to `number` that have the tag: the last one's
        tag_pid_sequence_nr.
        """
        count = len(self.tags)
        total = 0
        for residue in range(tag - self.per_event + 1, tag + 1):
            first = (residue - owner) % count
            if number >= first:
                total += (number - first) // count + 1
        return total

    def _make(self, owner: int, sequence_nr: int, ticks: int, tags: list[tuple[str, int]]) -> Event:
        persistence_id, kind = f"g-{owner:06d}", TYPES[sequence_nr % len(TYPES)]
        noise = hashlib.blake2b(b"%d %d %d" % (self.seed, owner, sequence_nr)).hexdigest()
        text = f'{{"order":"{persistence_id}","n":{sequence_nr},"type":"{kind}","amount":{sequence_nr * 17 % 1000}.5,"note":"'
        pad = max(0, self.payload_bytes - len(text) - 2)
        payload = f'{text}{(noise * (pad // len(noise) + 1))[:pad]}"}}'.encode()
        # The offset is a TimeUUID whose writer (clock sequence and node) is unique to the persistence id.
        time = ticks + GREGORIAN_TICKS
        most = (time & 0xFFFFFFFF) << 32 | (time >> 32 & 0xFFFF) << 16 | 0x1000 | time >> 48
        offset = UUID(int=most << 64 | 0x8000_0100_0000_0000 | owner)
        writer = str(UUID(int=(self.seed << 64 | owner) | 0x4000 << 64 | 1 << 127))
        return Event(persistence_id, sequence_nr, ticks, offset, payload, kind, writer, tags)


def plan(
    rows: int,
    *,
    tags: Sequence[str] = ("billing", "order", "shipping"),
    bucket_size: str = "Hour",
    buckets: int = 6,
    end: datetime | None = None,
    persistence_ids: int | None = None,
    payload_bytes: int = 200,
    seed: int = 1,
) -> Plan:
    """Plan a journal of `rows` tag rows, spread evenly over the `buckets` buckets before `end` (default: the
    current hour).
    """
    size = BucketSize(bucket_size)
    moment = (end or datetime.now(UTC)).replace(minute=0, second=0, microsecond=0)
    first = size.start(from_datetime(moment)) * 10_000 - buckets * size.ticks
    events = -(-rows // min(2, len(tags)))
    owners = persistence_ids or max(10, rows // 200)
    return Plan(
        rows,
        tuple(tags),
        owners,
        first,
        max(2, buckets * size.ticks // max(1, events)),
        bucket_size,
        payload_bytes,
        seed,
    )


def generate(session: Session, keyspace: str, wanted: Plan, processes: int = 2) -> dict[str, int]:
    """Create the keyspace, write the plan's rows and return the number of rows per tag; a second call writes
    the same rows.
    """
    for statement in Case("orders").statements(keyspace):
        session.execute(statement)
    chunks = [(start, min(start + CHUNK, wanted.events)) for start in range(0, wanted.events, CHUNK)]
    owners = [
        (start, min(start + CHUNK, wanted.persistence_ids))
        for start in range(0, wanted.persistence_ids, CHUNK)
    ]
    if wanted.rows <= IN_PROCESS or processes <= 1:
        for start, stop in chunks:
            _write_views(session, keyspace, wanted, start, stop)
        for start, stop in owners:
            _write_owners(session, keyspace, wanted, start, stop)
        return wanted.expected()
    point = session.cluster.metadata.all_hosts()[0].endpoint
    where = (str(point.address), int(point.port), keyspace, json.dumps(asdict(wanted)))
    with ProcessPoolExecutor(
        processes, mp_context=get_context("spawn"), initializer=_connect, initargs=where
    ) as pool:
        done = [pool.submit(_chunk, "views", *chunk) for chunk in chunks] + [
            pool.submit(_chunk, "owners", *chunk) for chunk in owners
        ]
        for future in done:
            future.result()
    return wanted.expected()


_worker: tuple[Session, str, Plan]
_worker_scope = ExitStack()  # keeps the session open until the process ends


def _connect(host: str, port: int, keyspace: str, text: str) -> None:
    """Open a worker process's only session, which serves all its chunks and ends with the process."""
    global _worker
    content = json.loads(text)
    _worker = (
        _worker_scope.enter_context(open_session(port, host)),
        keyspace,
        Plan(**{**content, "tags": tuple(content["tags"])}),
    )


def _chunk(table: str, start: int, stop: int) -> None:
    session, keyspace, wanted = _worker
    (_write_views if table == "views" else _write_owners)(session, keyspace, wanted, start, stop)


def _write_views(session: Session, keyspace: str, wanted: Plan, start: int, stop: int) -> None:
    """Write the tag_views rows of the events from `start` to before `stop`, in batches of one partition."""
    partitions: defaultdict[tuple[str, int], list[tuple[Any, ...]]] = defaultdict(list)
    for index in range(start, stop):
        event = wanted.event(index)
        bucket = wanted.size.start(event.ticks)
        for tag, number in event.tags:
            key = (tag, bucket, event.offset, event.persistence_id, number)
            partitions[tag, bucket].append(
                (*key, event.event, "", event.sequence_nr, SERIALIZER, event.ser_manifest, event.writer_uuid)
            )
    write_partitions(session, f"{cql(keyspace)}.tag_views", VIEW, partitions.values(), wanted.payload_bytes)


def _write_owners(session: Session, keyspace: str, wanted: Plan, start: int, stop: int) -> None:
    """Write messages, tag_write_progress and all_persistence_ids of the persistence ids from `start` to
    before `stop`.
    """
    name = cql(keyspace)
    write_partitions(
        session,
        f"{name}.messages",
        MESSAGE,
        (list(_messages(wanted, owner)) for owner in range(start, stop)),
        wanted.payload_bytes,
    )
    write_partitions(
        session,
        f"{name}.tag_write_progress",
        PROGRESS,
        (_progress(wanted, owner) for owner in range(start, stop)),
        0,
    )
    owners = ([(f"g-{owner:06d}",)] for owner in range(start, stop) if owner < wanted.events)
    write_partitions(session, f"{name}.all_persistence_ids", ["persistence_id"], owners, 0)


def _messages(wanted: Plan, owner: int) -> Iterator[tuple[Any, ...]]:
    for index in range(owner, wanted.events, wanted.persistence_ids):
        for event in (wanted.event(index), wanted.untagged(index)):
            if event is not None:
                tags = {tag for tag, _ in event.tags} or None
                bucket = str(BucketSize.HOUR.start(event.ticks))
                key = (event.persistence_id, 0, event.sequence_nr, event.offset)
                yield (*key, event.event, "", SERIALIZER, event.ser_manifest, bucket, event.writer_uuid, tags)


def _progress(wanted: Plan, owner: int) -> list[tuple[Any, ...]]:
    """Return a tag_write_progress row per tag, made from the tag's last event.

    This event is among the last events of the persistence id, so only these are looked at.
    """
    rows: dict[str, tuple[Any, ...]] = {}
    for index in islice(reversed(range(owner, wanted.events, wanted.persistence_ids)), len(wanted.tags) + 1):
        event = wanted.event(index)
        for tag, number in event.tags:
            rows.setdefault(tag, (event.persistence_id, tag, event.offset, event.sequence_nr, number))
    return list(rows.values())
