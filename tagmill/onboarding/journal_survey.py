"""Ask a keyspace what it holds, with reads that have a limit each: nothing reads a whole table.

Partitions come in the order of their tokens, which is random: the first ones of a table are a fair sample.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from cassandra import ConsistencyLevel

from tagmill.cassandra.client import Cassandra
from tagmill.domain.journal_tables import JournalTables, event_tags, tag_columns
from tagmill.domain.timeuuid import TICKS_PER_MILLISECOND, ticks
from tagmill.errors import ConfigurationError
from tagmill.onboarding.bucket_sizes import DAY_MS, Detection, detect, spread
from tagmill.onboarding.consistency import Replication
from tagmill.onboarding.journal_layout import Layout, generation, layout_of

# Limits of the reads: partitions of the view that are listed, partitions of messages, rows of each, rows of
# tag_write_progress.
MOST_BUCKETS, MOST_PARTITIONS, MOST_EVENTS, MOST_PROGRESS = 50_000, 300, 20, 10_000
# Limits of the look into buckets: tags, buckets of each, rows of each.
SAMPLED_TAGS, SAMPLED_BUCKETS, SAMPLED_ROWS = 12, 8, 1000
# Kinds of payloads that get an example, and the characters and bytes of an example.
MOST_EXAMPLES, EXAMPLE_LENGTH = 30, 60
# Reads that are under way at once: the application's own reads come first.
AT_ONCE = 4
# One copy answers: a sample needs no more.
ONE = ConsistencyLevel.ONE


class Payload(NamedTuple):
    """The serializer, the serializer's manifest and the event's manifest of an event."""

    ser_id: int | None
    ser_manifest: str
    event_manifest: str


@dataclass(frozen=True, slots=True)
class PayloadKind:
    """How many of the sampled events have a kind of payload, and one of them: its bytes, where it lies, and
    how it begins.
    """

    payload: Payload
    events: int
    bytes: int = 0
    persistence_id: str = ""
    sequence_nr: int = 0
    example: str = ""
    text: bool = False


@dataclass(frozen=True, slots=True)
class TagFacts:
    """A tag's listed buckets (milliseconds since 1970), rows a day, rows of the largest sampled bucket, and
    the days from the first bucket to the last.
    """

    tag: str
    timebuckets: Sequence[int] = ()
    rows_a_day: float | None = None
    largest_bucket: int = 0
    days: float = 0.0


@dataclass(frozen=True, slots=True)
class JournalSurvey:
    """What is known of a journal.

    `layout`: the keyspace's tables. `tables`: those that were read. `view_listed`: whether all partitions of
    the view were listed. `first_event`: time of the earliest sampled event, milliseconds since 1970.
    `messages_listed`: whether all partitions of messages were sampled.
    """

    keyspace: str
    layout: Layout
    tables: JournalTables
    generation: str
    replication: Replication | None
    tags: Sequence[TagFacts] = ()
    size: Detection = field(default=Detection(None, False, "the view has no rows"))
    view_listed: bool = True
    payloads: Sequence[PayloadKind] = ()
    sampled_events: int = 0
    tagged_events: int = 0
    first_event: int | None = None
    messages_listed: bool = True
    has_progress: bool = False

    @property
    def view_rows(self) -> bool:
        """Whether the view has any row."""
        return any(facts.timebuckets for facts in self.tags)


def keyspaces(cassandra: Cassandra) -> dict[str, Layout]:
    """Return the keyspaces that hold a journal, of Akka, Pekko or Kafka Journal."""
    found = {}
    for name, keyspace in cassandra.all_keyspaces().items():
        layout = layout_of(keyspace.tables.values())
        if layout.is_journal or layout.kafka_journal:
            found[name] = layout
    return found


def replication_of(cassandra: Cassandra, keyspace: str) -> Replication | None:
    """Return the replication of a keyspace; None: it does not exist."""
    found = cassandra.keyspace(keyspace)
    return Replication.of(found.replication) if found else None


def survey(cassandra: Cassandra, keyspace: str, layout: Layout, view: str | None) -> JournalSurvey:
    """Read a sample of a journal.

    Args:
        cassandra: the session.
        keyspace: the journal's keyspace.
        layout: its tables.
        view: the table of tag views to look at; None: there is none.

    Raises ConfigurationError: the tables can't be read.
    """
    return _Survey(cassandra, keyspace, layout, view).read()


class _Survey:
    def __init__(self, cassandra: Cassandra, keyspace: str, layout: Layout, view: str | None) -> None:
        self.cassandra, self.layout, self.view = cassandra, layout, view
        named = {
            kind: table
            for kind in ("messages", "metadata", "all_persistence_ids")
            if (table := layout.first(kind))
        }
        self.tables = JournalTables(keyspace, **({"view": view} if view else {}), **named)
        self.shapes = cassandra.tables(keyspace) or {}
        self.columns = self.shapes[self.tables.messages].columns
        self.progress: list[Any] = []

    def read(self) -> JournalSurvey:
        buckets, listed = self._buckets()
        facts, last_rows = self._tags(buckets, listed)
        events, events_listed = self._events()
        tags = {facts.tag for facts in facts} | self._progress_tags()
        tagged = [event_tags(event) for _, event in events]
        tags |= {tag for of_event in tagged for tag in of_event}
        beside = [TagFacts(tag) for tag in sorted(tags - {facts.tag for facts in facts})]
        times = [_milliseconds(event.timestamp) for _, event in events]
        return JournalSurvey(
            keyspace=self.tables.keyspace,
            layout=self.layout,
            tables=self.tables,
            generation=generation(self.columns, self.layout),
            replication=replication_of(self.cassandra, self.tables.keyspace),
            tags=[*facts, *beside],
            size=detect({bucket for of_tag in buckets.values() for bucket in of_tag}, last_rows),
            view_listed=listed,
            payloads=self._payloads(events),
            sampled_events=len(events),
            tagged_events=sum(1 for of_event in tagged if of_event),
            first_event=min(times, default=None),
            messages_listed=events_listed,
            has_progress=bool(self.progress),
        )

    def _ask(self, cql: str, *values: Any) -> list[Any]:
        return self.cassandra.execute(cql, *values, consistency=ONE)

    def _ask_many(self, cql: str, values: Iterable[tuple[Any, ...]]) -> list[list[Any]]:
        return list(self.cassandra.execute_many(cql, values, consistency=ONE, concurrency=AT_ONCE))

    # -- the view

    def _buckets(self) -> tuple[dict[str, list[int]], bool]:
        """Return the sorted timebuckets by tag, and whether these are all."""
        if self.view is None:
            return {}, True
        rows = self._ask(
            f"SELECT DISTINCT tag_name, timebucket FROM {self.tables.cql(self.view)} LIMIT {MOST_BUCKETS}"
        )
        found: dict[str, list[int]] = {}
        for row in rows:
            found.setdefault(row.tag_name, []).append(row.timebucket)
        return {tag: sorted(buckets) for tag, buckets in sorted(found.items())}, len(rows) < MOST_BUCKETS

    def _tags(
        self, buckets: Mapping[str, Sequence[int]], listed: bool
    ) -> tuple[list[TagFacts], dict[int, int]]:
        """Return the facts of each tag, and the time of the last row of each sampled bucket."""
        largest = sorted(buckets, key=lambda tag: (-len(buckets[tag]), tag))[:SAMPLED_TAGS]
        keys = [(tag, bucket) for tag in largest for bucket in spread(buckets[tag], SAMPLED_BUCKETS)]
        sampled, last_rows = dict[str, list[float]](), dict[int, int]()
        for (tag, bucket), (rows, last) in zip(keys, self._bucket_rows(keys), strict=True):
            sampled.setdefault(tag, []).append(rows)
            if last is not None:
                last_rows[bucket] = max(last, last_rows.get(bucket, last))
        size = detect({bucket for of_tag in buckets.values() for bucket in of_tag}, last_rows).size
        facts = []
        for tag, of_tag in buckets.items():
            rows_a_day, days = None, 0.0
            if (counts := sampled.get(tag)) and size:
                average = sum(counts) / len(counts)
                days = (of_tag[-1] + size.milliseconds - of_tag[0]) / DAY_MS
                # Without a complete list, each possible bucket is taken to have rows.
                each_day = len(of_tag) / max(1.0, days) if listed else DAY_MS / size.milliseconds
                rows_a_day = average * each_day
            facts.append(TagFacts(tag, of_tag, rows_a_day, round(max(sampled.get(tag, [0]))), days))
        return facts, last_rows

    def _bucket_rows(self, keys: Sequence[tuple[str, int]]) -> list[tuple[float, int | None]]:
        """Return for each bucket its rows and the time of the last one; more rows than SAMPLED_ROWS are
        estimated by their times.
        """
        if not keys or self.view is None:
            return []
        of_bucket = (
            f"SELECT timestamp FROM {self.tables.cql(self.view)} WHERE tag_name = ? AND timebucket = ?"
        )
        firsts = self._ask_many(f"{of_bucket} LIMIT {SAMPLED_ROWS}", keys)
        lasts = self._ask_many(f"{of_bucket} ORDER BY timestamp DESC LIMIT 1", keys)
        return [estimate(first, last) for first, last in zip(firsts, lasts, strict=True)]

    # -- tag_write_progress and messages

    def _progress_tags(self) -> set[str]:
        if "tag_write_progress" in self.shapes:
            table = self.tables.cql("tag_write_progress")
            self.progress = self._ask(f"SELECT tag FROM {table} LIMIT {MOST_PROGRESS}")
        return {row.tag for row in self.progress}

    def _events(self) -> tuple[list[tuple[tuple[str, int], Any]], bool]:
        """Return a sample of events with their partitions, and whether every partition is in it."""
        table = self.tables.cql(self.tables.messages)
        partitions = [
            (row.persistence_id, row.partition_nr)
            for row in self._ask(
                f"SELECT DISTINCT persistence_id, partition_nr FROM {table} LIMIT {MOST_PARTITIONS}"
            )
        ]
        wanted = ["sequence_nr", "timestamp", "ser_id", "ser_manifest", "event_manifest"]
        fields = [name for name in wanted if name in self.columns] + tag_columns(self.columns)
        rows = self._ask_many(
            f"SELECT {', '.join(fields)} FROM {table} WHERE persistence_id = ? AND partition_nr = ? "
            f"LIMIT {MOST_EVENTS}",
            partitions,
        )
        # A partition of an older plugin may have static columns only.
        events = [
            (partition, row)
            for partition, of_partition in zip(partitions, rows, strict=True)
            for row in of_partition
            if row.sequence_nr is not None
        ]
        return events, len(partitions) < MOST_PARTITIONS

    def _payloads(self, events: Sequence[tuple[tuple[str, int], Any]]) -> list[PayloadKind]:
        """Return the kinds of payloads, the most frequent first, with an example of each of the first ones."""
        counts, examples = Counter[Payload](), dict[Payload, tuple[Any, ...]]()
        for partition, event in events:
            kind = Payload(
                getattr(event, "ser_id", None),
                getattr(event, "ser_manifest", None) or "",
                getattr(event, "event_manifest", None) or "",
            )
            counts[kind] += 1
            examples.setdefault(kind, (*partition, event.sequence_nr, event.timestamp))
        ordered = counts.most_common()
        shown = [kind for kind, _ in ordered[:MOST_EXAMPLES]] if "event" in self.columns else []
        table = self.tables.cql(self.tables.messages)
        found = self._ask_many(
            f"SELECT event FROM {table} WHERE persistence_id = ? AND partition_nr = ? AND sequence_nr = ? "
            "AND timestamp = ?",
            [examples[kind] for kind in shown],
        )
        bodies = {kind: rows[0].event for kind, rows in zip(shown, found, strict=True) if rows}
        return [_payload_kind(kind, count, examples[kind], bodies.get(kind)) for kind, count in ordered]


def _payload_kind(kind: Payload, events: int, place: Sequence[Any], body: bytes | None) -> PayloadKind:
    text, is_text = excerpt(body)
    return PayloadKind(kind, events, len(body or b""), place[0], place[2], text, is_text)


def excerpt(body: bytes | None) -> tuple[str, bool]:
    """Return how a payload begins, on one line, and whether it is text; binary payloads show their first
    bytes in hexadecimal.
    """
    if body is None:
        return "null", False
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if text and all(sign.isprintable() or sign in "\n\r\t" for sign in text[:EXAMPLE_LENGTH]):
        line = " ".join(text.split())
        return line[:EXAMPLE_LENGTH] + ("…" if len(line) > EXAMPLE_LENGTH else ""), True
    return f"0x{body[: EXAMPLE_LENGTH // 3].hex()}{'…' if len(body) > EXAMPLE_LENGTH // 3 else ''}", False


def estimate(first: Sequence[Any], last: Sequence[Any]) -> tuple[float, int | None]:
    """Return the rows of a bucket and the time of the last one, from its first SAMPLED_ROWS rows and its last
    row.

    If there are more rows, they are taken to come as fast as the first ones.
    """
    if not first or not last:
        return 0.0, None
    times = [_milliseconds(row.timestamp) for row in first]
    end, rows = _milliseconds(last[0].timestamp), float(len(times))
    if len(times) == SAMPLED_ROWS and times[-1] > times[0]:
        rows *= max(1.0, (end - times[0]) / (times[-1] - times[0]))
    return rows, end


def _milliseconds(offset: Any) -> int:
    return ticks(offset) // TICKS_PER_MILLISECOND


def moment_text(milliseconds: int) -> str:
    """Return a moment as the plugin's first-time-bucket has it: yyyyMMddTHH:mm, UTC."""
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y%m%dT%H:%M}"


def require_journal(cassandra: Cassandra, keyspace: str) -> Layout:
    """Return the layout of a keyspace; raises ConfigurationError if it does not exist or holds no journal,
    and names the keyspaces that do.
    """
    tables, others = cassandra.tables(keyspace), keyspaces(cassandra)
    hint = f"Keyspaces with a journal: {', '.join(sorted(others)[:10])}" if others else "No keyspace has one"
    if tables is None:
        raise ConfigurationError(
            f"keyspace {keyspace} does not exist in {cassandra.where}. Nothing was written. {hint}"
        )
    if keyspace not in others:
        there = f"has none of its tables (it has: {', '.join(sorted(tables)[:10]) or 'no table'})"
        raise ConfigurationError(
            f"keyspace {keyspace} holds no journal: it {there}. Nothing was written. {hint}"
        )
    return others[keyspace]
