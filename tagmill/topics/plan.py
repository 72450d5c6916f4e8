"""What a run of a topic or a Kafka Journal reads, fixed before anything is read."""

from datetime import UTC, datetime, timedelta

from tagmill.batches.states import BatchState, RunState
from tagmill.errors import ConfigurationError
from tagmill.kafka.ranges import capped, places, same_topics, unread
from tagmill.kafkasettings import JournalSettings, Stream, TopicSettings
from tagmill.settings import Settings
from tagmill.stores.deadletters import DeadLetters
from tagmill.stores.deduplication import Rules, TopicOffsets
from tagmill.stores.files import RunFiles
from tagmill.stores.kafka import Kafka, Place, Span
from tagmill.stores.kafkajournal import KafkaJournalTables
from tagmill.stores.ledger import Ledger
from tagmill.stores.topicids import TopicIds
from tagmill.topics.columns import must_keep
from tagmill.topics.evolution import fits
from tagmill.topics.formats import schema_contents
from tagmill.topics.model import TopicPlan
from tagmill.topics.runfiles import read_manifest, read_plan


def must_fit(settings: Settings, ledger: Ledger, pipeline: str) -> None:
    """Raise ConfigurationError unless ids and columns can be made as configured."""
    chosen = settings.stream(pipeline)
    if isinstance(chosen, JournalSettings):
        return
    fits(chosen, schema_contents(chosen.schema_files))
    must_keep_columns(settings, ledger, pipeline)
    there = Rules(ledger.cassandra, settings.cassandra.ledger_keyspace, pipeline).begin(chosen.rule)
    if there.rule != chosen.rule:
        raise ConfigurationError(
            f"pipeline {pipeline}: the ids of delivered events were made by {there.rule}, and the configuration says {chosen.rule}. "
            f"Nothing was read. Put it back, or make the ids again: tagmill dedup rekey --pipeline {pipeline}"
        )


def must_keep_columns(settings: Settings, ledger: Ledger, pipeline: str) -> None:
    """Raise ConfigurationError unless the columns that aren't nullable are those of the last sealed run."""
    rows = (ledger.run(pipeline, number) for number in range(ledger.last_run(pipeline), 0, -1))
    last = next((row for row in rows if row and row.manifest_file), None)
    if last:
        sealed = read_manifest(RunFiles(settings.storage.root), last).required
        must_keep(settings.stream(pipeline), sealed, f"pipelines.{pipeline}.columns: run {last.run}")


def letters_planned(settings: Settings, ledger: Ledger, pipeline: str, number: int) -> TopicPlan | None:
    """A run that reads the pipeline's dead letters; None: there are none."""
    if not DeadLetters(ledger.cassandra, settings.cassandra.ledger_keyspace, pipeline).any():
        return None
    chosen, now = settings.topic(pipeline), datetime.now(UTC)
    return TopicPlan(
        pipeline=pipeline, run=number, planned_at=now, ranges=[], known_since=_known_since(chosen, now), rule=chosen.rule, letters=True,
        warnings=[], more=False,
    )  # fmt: skip


def planned(settings: Settings, ledger: Ledger, pipeline: str, number: int, accept_lost: bool) -> TopicPlan | None:
    """A run that reads what is new; None: nothing is, or too little that is too young."""
    chosen, now = settings.stream(pipeline), datetime.now(UTC)
    offsets = TopicOffsets(ledger.cassandra, settings.cassandra.ledger_keyspace, pipeline)
    spans = spans_of(settings, ledger, pipeline)
    go_on = f"tagmill run deliver --pipeline {pipeline} --accept-lost"
    read_to, warnings = offsets.read_to(), list[str]()
    if isinstance(chosen, TopicSettings):
        ids = TopicIds(ledger.cassandra, settings.cassandra.ledger_keyspace, pipeline)
        with Kafka(settings.kafka) as kafka:
            warnings += same_topics(kafka, ids, pipeline, read_to, spans, accept_lost=accept_lost, go_on=go_on)
    ranges, found = unread(pipeline, spans, read_to, accept_lost=accept_lost, go_on=go_on)
    waiting = sum(one.end - one.first for one in ranges)
    few = waiting < chosen.batch_min_rows and not accept_lost
    if not ranges or (few and not _waited(ledger, pipeline, now - timedelta(seconds=chosen.max_wait_seconds))):
        return None
    made = TopicPlan(
        pipeline=pipeline, run=number, planned_at=now, ranges=capped(ranges, chosen.max_records_per_run),
        known_since=_known_since(chosen, now), rule=chosen.rule, warnings=[*warnings, *found], more=waiting > chosen.max_records_per_run,
    )  # fmt: skip
    return made if chosen.rule else _going_on(settings, ledger, made)


def _going_on(settings: Settings, ledger: Ledger, made: TopicPlan) -> TopicPlan:
    """A Kafka Journal's plan as the run before it left things.

    After one of which batches were voided: the same ranges again, without what its other batches have delivered. Of a backlog: with the
    partitions that its runs have begun. Where topics get more partitions ids move, and what an id has in its old one is found by what
    it has in its new one, which may be delivered before.
    """
    files, numbers = RunFiles(settings.storage.root), range(ledger.last_run(made.pipeline), 0, -1)
    # the newest that was not abandoned: numbers that were only claimed, and runs past retention, have no row
    row = next(
        (found for number in numbers if (found := ledger.run(made.pipeline, number)) and found.state == RunState.CLOSED), None
    )
    if row is None:
        return made
    states = {batch.number: batch.state for batch in ledger.batches(made.pipeline, row.run)}
    before, voided = read_plan(files, row), BatchState.VOIDED in states.values()
    if before.more or voided:
        made = made.model_copy(update={"begun": [*before.begun, *(one for one in before.ranges if not one.first)]})
    if not voided:
        return made
    sealed = read_manifest(files, row).batches
    there = [batch.file for batch in sealed if states[batch.number] == BatchState.IN_CLICKHOUSE]
    return made.model_copy(update={"ranges": before.ranges, "delivered": [*before.delivered, *there], "more": True})


def spans_of(settings: Settings, ledger: Ledger, pipeline: str) -> dict[Place, Span]:
    """What can be read: of topics what Kafka has, of a Kafka Journal how far it is replicated."""
    chosen = settings.stream(pipeline)
    if isinstance(chosen, TopicSettings):
        with Kafka(settings.kafka) as kafka:
            return kafka.spans(places(kafka, pipeline, chosen.topics, chosen.topic_prefixes))
    tables = KafkaJournalTables(ledger.cassandra, chosen.keyspace)
    if not tables.there():
        raise ConfigurationError(
            f"pipelines.{pipeline}.keyspace: {chosen.keyspace} has not the tables of a Kafka Journal. Nothing was read; "
            "replicate to it first, or correct the name"
        )
    reach = {
        place: Span(0, offset + 1) for place, offset in tables.reach().items() if not chosen.topics or place[0] in chosen.topics
    }
    if missing := set(chosen.topics) - {topic for topic, _ in reach}:
        raise ConfigurationError(
            f"pipelines.{pipeline}.topics: nothing of {', '.join(sorted(missing))} is replicated to {chosen.keyspace}. Nothing was read"
        )
    return dict(sorted(reach.items()))


def _known_since(chosen: Stream, now: datetime) -> int:
    return 0 if isinstance(chosen, JournalSettings) else round((now - timedelta(days=chosen.window_days)).timestamp() * 1000)


def _waited(ledger: Ledger, pipeline: str, since: datetime) -> bool:
    """Whether the newest run is older than this, or there was none: few records have waited for others long enough."""
    newest = ledger.run(pipeline, ledger.last_run(pipeline))
    return newest is None or newest.planned_at is None or newest.planned_at <= since
