"""Plan a run of a topic or a Kafka Journal: what it reads is fixed before anything is read."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from tagmill.config.kafka import KafkaJournalEventsSettings, Stream, TopicSettings
from tagmill.delivery.topics.formats import schema_contents
from tagmill.delivery.topics.model import TopicPlan
from tagmill.delivery.topics.run_files import read_manifest, read_plan
from tagmill.delivery.topics.schema_evolution import fits
from tagmill.delivery.topics.table_columns import require_unchanged_columns
from tagmill.domain.batches.states import BatchState, RunState
from tagmill.errors import ConfigurationError, GuardRefused, SealedFileDamaged
from tagmill.kafka.client import Kafka, Partition, Span
from tagmill.kafka.offset_ranges import OWN_TABLES, Range, capped, partitions_of, unread
from tagmill.kafka.set_apart import Apart, Since, of_topic, within
from tagmill.kafka_journal.tables import KafkaJournalTables
from tagmill.ledger.dead_letters import DeadLetters
from tagmill.ledger.dedup import Rules, TopicOffsets
from tagmill.ledger.runs import Ledger, RunRow
from tagmill.ledger.set_apart import Kind, SetApart
from tagmill.ledger.topic_ids import TopicIds, recreated_topics, same_topics
from tagmill.runs.clock import agreed_now
from tagmill.runs.sealed_files import way_out
from tagmill.runs.storage import RunFiles
from tagmill.runs.workspace import Workspace


def must_fit(workspace: Workspace) -> None:
    """Raise ConfigurationError if a topic's ids or columns can't be made as configured; the ledger's first
    rule is noted here.
    """
    chosen = workspace.stream
    if isinstance(chosen, KafkaJournalEventsSettings):
        return
    fits(chosen, schema_contents(chosen.schema_files))
    must_keep_columns(workspace)
    there = workspace.store(Rules).begin(chosen.rule)
    if there.rule != chosen.rule:
        raise ConfigurationError(
            f"pipeline {workspace.name}: the ids of delivered events were made by {there.rule}, and the "
            f"configuration says {chosen.rule}. "
            f"Nothing was read. Put it back, or make the ids again: tagmill dedup rekey --pipeline {workspace.name}",
            pipeline=workspace.name,
        )


def must_be_as_planned(workspace: Workspace, plan: TopicPlan) -> None:
    """Raise ConfigurationError if a planned run's ids or columns would be made in another way by now."""
    if isinstance(workspace.stream, KafkaJournalEventsSettings):
        return
    if plan.rule != workspace.stream.rule:
        raise ConfigurationError(
            f"run {plan.run} of pipeline {workspace.name} was planned with ids made by {plan.rule}, and the "
            f"configuration says {workspace.stream.rule}. "
            f"Nothing was sealed. Put it back, or: tagmill run abandon --pipeline {workspace.name} --why …",
            pipeline=workspace.name,
            run=plan.run,
        )
    must_keep_columns(workspace)


def must_keep_columns(workspace: Workspace) -> None:
    """Raise ConfigurationError unless the columns that aren't nullable are those of the last sealed run."""
    ledger, pipeline = workspace.ledger, workspace.name
    rows = (ledger.run(pipeline, number) for number in range(ledger.last_run(pipeline), 0, -1))
    last = next((row for row in rows if row and row.manifest_file), None)
    if last:
        with way_out(pipeline):
            sealed = read_manifest(workspace.files, last).required
        require_unchanged_columns(workspace.stream, sealed, f"pipelines.{pipeline}.columns: run {last.run}")


def letters_planned(workspace: Workspace, number: int) -> TopicPlan | None:
    """Return a plan for a run that reads the pipeline's dead letters again; None if it has none."""
    if not workspace.store(DeadLetters).any():
        return None
    chosen, now = (
        workspace.settings.topic(workspace.name),
        agreed_now(workspace.settings, workspace.cassandra),
    )
    return TopicPlan(
        pipeline=workspace.name,
        run=number,
        planned_at=now,
        ranges=[],
        known_since=_known_since(chosen, now),
        rule=chosen.rule,
        letters=True,
        apart=(apart := _apart(workspace, [])),
        warnings=list(apart.warnings()),
        more=False,
    )


def planned(
    workspace: Workspace, number: int, accept_lost: bool, recreated: bool = False
) -> TopicPlan | None:
    """Return a plan for a run that reads new records; None if there are none, or so few that they wait for
    others.

    With `recreated`, topics that were created again are read from their first record.
    """
    pipeline = workspace.name
    chosen, now = workspace.stream, agreed_now(workspace.settings, workspace.cassandra)
    offsets = workspace.store(TopicOffsets)
    spans = spans_of(workspace)
    go_on = f"tagmill run deliver --pipeline {pipeline} --accept-lost"
    read_to, warnings, ways_on = offsets.read_to(), list[str](), OWN_TABLES
    if isinstance(chosen, KafkaJournalEventsSettings) and (made := _of_returned_id(workspace, number, now)):
        return made
    if isinstance(chosen, TopicSettings):
        ids = workspace.store(TopicIds)
        ways_on = (
            "To read the new topic from its first record: tagmill run deliver --pipeline "
            f"{pipeline} --recreated"
        )
        with Kafka(workspace.settings.kafka) as kafka:
            if recreated:
                warnings += _begin_again(workspace, kafka, ids, spans, number)
                read_to = offsets.read_to()
            warnings += same_topics(
                kafka, ids, pipeline, read_to, spans, accept_lost=accept_lost, go_on=go_on, ways_on=ways_on
            )
    ranges, found = unread(pipeline, spans, read_to, accept_lost=accept_lost, go_on=go_on, ways_on=ways_on)
    waiting = sum(one.end - one.first for one in ranges)
    few = waiting < chosen.batch_min_rows and not accept_lost
    if not ranges or (few and not has_waited(workspace.ledger, pipeline, now, chosen.max_wait_seconds)):
        return None
    ranges = capped(ranges, chosen.max_records_per_run)
    apart = _apart(workspace, ranges)
    made = TopicPlan(
        pipeline=pipeline,
        run=number,
        planned_at=now,
        ranges=ranges,
        known_since=_known_since(chosen, now),
        rule=chosen.rule,
        apart=apart,
        warnings=[*warnings, *found, *apart.warnings()],
        more=waiting > chosen.max_records_per_run,
    )
    return made if chosen.rule else _going_on(workspace, made)


def _begin_again(
    workspace: Workspace, kafka: Kafka, ids: TopicIds, spans: Mapping[Partition, Span], number: int
) -> list[str]:
    """Let the next run read recreated topics from their first record; return a warning for each.

    Raises GuardRefused: a recreated topic has dead letters, or records that are set apart.

    In: the next run's number.

    If a partition of a topic that was not recreated has become shorter than what was read, it goes on at its
    end. Positions are written before ids: if the process ends in between, the topic still counts as
    recreated.
    """
    offsets = workspace.store(TopicOffsets)
    read_to, now, before = offsets.read_to(), kafka.topic_ids({topic for topic, _ in spans}), ids.read()
    short = {partition: span.end for partition, span in spans.items() if read_to.get(partition, 0) > span.end}
    again = {*recreated_topics(now, before, read_to), *(topic for topic, _ in short if topic not in now)}
    _must_be_decided(workspace, again)
    cut_off = {partition: end for partition, end in short.items() if partition[0] not in again}
    # A partition that the new topic lacks begins at its first record, too, should the topic get it later.
    begins = dict.fromkeys(read_to, 0) | {partition: span.first for partition, span in spans.items()}
    offsets.write(number, cut_off | {one: begin for one, begin in begins.items() if one[0] in again})
    ids.write({topic: now[topic] for topic in again if topic in now})
    return [
        *(f"topic {topic} was made anew: it is read from its first record" for topic in sorted(again)),
        *(
            f"topic {topic}, partition {partition} has lost its end: it goes on at offset {end}"
            for (topic, partition), end in cut_off.items()
        ),
    ]


def _must_be_decided(workspace: Workspace, again: Collection[str]) -> None:
    """Raise GuardRefused if one of these recreated topics has dead letters, or records that are set apart: records
    of the new topic at their offsets would take their place.
    """
    apart = workspace.store(SetApart).items(Kind.RECORD)
    for topic in sorted(again):
        letters = sum(1 for _ in workspace.store(DeadLetters).positions(topic))
        records = len(of_topic(apart, topic))
        if letters or records:
            name = workspace.name
            raise GuardRefused(
                f"{name}: of topic {topic}, as it was before it was made anew, there are {letters} dead letters, and "
                f"{records} records are set apart. Records of the new topic at their offsets would take their place. "
                f"Nothing was read. To keep them: tagmill deadletters list --pipeline {name} --json --limit 100000; to "
                f"deliver those that can be read by now: tagmill deadletters replay --pipeline {name}; then: tagmill "
                f"deadletters discard --pipeline {name} --topic {topic} --why …",
                pipeline=name,
            )


def _apart(workspace: Workspace, ranges: list[Range]) -> Apart:
    """Return what a person has set apart; of the records only those in these ranges."""
    table = workspace.store(SetApart)
    records = within(table.items(Kind.RECORD), ranges)
    columns, batches, ids = (list(table.items(kind)) for kind in (Kind.COLUMN, Kind.BATCH, Kind.ID))
    return Apart(records=records, columns=columns, batches=batches, ids=ids)


def _of_returned_id(workspace: Workspace, number: int, now: datetime) -> TopicPlan | None:
    """Return a plan for the events of an id that is no longer set apart; None without such an id, or before
    an ordinary run.
    """
    before, there = left_partly(workspace)
    if there is not None and (before is None or before.only is None):
        return None
    table = workspace.store(SetApart)
    apart = table.items(Kind.ID)
    returned = {
        key: Since.model_validate_json(text)
        for key, text in table.items(Kind.SINCE).items()
        if key not in apart
    }
    read_to = workspace.store(TopicOffsets).read_to()
    begun_first = sorted(returned, key=lambda key: (before is None or key != before.only, key))
    for key in begun_first:
        since = returned[key]
        delivered = there if there is not None and before and before.only == key else since.delivered
        if lost(workspace.files, delivered):
            continue  # only the lost files tell which of its events are delivered: it stays set apart, and status says so
        firsts = {(topic, partition): offset for topic, partition, offset in since.places}
        ranges = [
            Range(topic=partition[0], partition=partition[1], first=first, end=end)
            for partition, end in sorted(read_to.items())
            if (first := firsts.get(partition, 0)) < end
        ]
        if not ranges:
            table.remove(Kind.SINCE, key)
            continue
        return TopicPlan(
            pipeline=workspace.name,
            run=number,
            planned_at=now,
            ranges=ranges,
            known_since=0,
            rule="",
            only=key,
            delivered=delivered,
            begun=_begun(before) if before and before.more else [],
            warnings=[f"{key!r} is set apart no longer: its events are read again"],
            more=True,
        )
    return None


def lost(files: RunFiles, names: Sequence[str]) -> bool:
    """Return whether any of these files cannot be read."""
    try:
        for name in names:
            files.open(name).close()
    except SealedFileDamaged:
        return True
    return False


def _begun(before: TopicPlan) -> list[Range]:
    return [*before.begun, *(one for one in before.ranges if not one.first)]


def left_partly(workspace: Workspace) -> tuple[TopicPlan | None, list[str] | None]:
    """Return the plan of a Kafka Journal's newest closed run, and the files of its delivered batches if
    others were voided.

    The files are None if the run delivered all of its records: then the next run begins behind it.
    """
    ledger, pipeline = workspace.ledger, workspace.name
    files, row = workspace.files, next(closed_runs(ledger, pipeline), None)
    if row is None:
        return None, None
    states = {batch.number: batch.state for batch in ledger.batches(pipeline, row.run)}
    with way_out(pipeline):
        before = read_plan(files, row)
        if BatchState.VOIDED not in states.values():
            return before, None
        sealed = read_manifest(files, row).batches
        for file in before.delivered:
            files.open(file).close()
    there = [batch.file for batch in sealed if states[batch.number] == BatchState.IN_CLICKHOUSE]
    return before, [*before.delivered, *there]


def _going_on(workspace: Workspace, made: TopicPlan) -> TopicPlan:
    """Return a Kafka Journal's plan, adapted to what the run before it has left.

    After a run with voided batches, it reads the same ranges again, without what the other batches have
    delivered. Within a backlog, it names the partitions that the backlog's runs have begun: ids move when a
    topic gets more partitions, and the events of an id in its old partition are found through those in its
    new one, which may be delivered before.
    """
    before, there = left_partly(workspace)
    if before is None:
        return made
    if before.more or there is not None:
        made = made.model_copy(update={"begun": _begun(before)})
    if there is None or before.only is not None:
        return made
    return made.model_copy(update={"ranges": before.ranges or made.ranges, "delivered": there, "more": True})


def closed_runs(ledger: Ledger, pipeline: str) -> Iterator[RunRow]:
    """Yield the closed runs that read records, the newest first; a run that was only claimed, or is past
    retention, has no row.
    """
    for number in range(ledger.last_run(pipeline), 0, -1):
        row = ledger.run(pipeline, number)
        if row and row.state == RunState.CLOSED and row.plan_file:
            yield row


def spans_of(workspace: Workspace) -> dict[Partition, Span]:
    """Return the offsets that can be read: of topics what Kafka has, of a Kafka Journal what is replicated.

    Raises ConfigurationError: the Kafka Journal's tables are missing, or nothing of a named topic is
    replicated.
    """
    pipeline = workspace.name
    chosen = workspace.stream
    if isinstance(chosen, TopicSettings):
        with Kafka(workspace.settings.kafka) as kafka:
            return kafka.spans(partitions_of(kafka, pipeline, chosen.topics, chosen.topic_prefixes))
    tables = KafkaJournalTables(workspace.cassandra, chosen.keyspace)
    if not tables.there():
        raise ConfigurationError(
            f"pipelines.{pipeline}.keyspace: {chosen.keyspace} has not the tables of a Kafka Journal. "
            "Nothing was read; "
            "replicate to it first, or correct the name",
            pipeline=pipeline,
        )
    reach = {
        partition: Span(0, offset + 1)
        for partition, offset in tables.reach().items()
        if not chosen.topics or partition[0] in chosen.topics
    }
    if missing := set(chosen.topics) - {topic for topic, _ in reach}:
        raise ConfigurationError(
            f"pipelines.{pipeline}.topics: nothing of {', '.join(sorted(missing))} is replicated to "
            f"{chosen.keyspace}. Nothing was read",
            pipeline=pipeline,
        )
    return dict(sorted(reach.items()))


def _known_since(pipeline: Stream, now: datetime) -> int:
    return (
        0
        if isinstance(pipeline, KafkaJournalEventsSettings)
        else round((now - timedelta(days=pipeline.window_days)).timestamp() * 1000)
    )


def has_waited(ledger: Ledger, pipeline: str, now: datetime, seconds: float) -> bool:
    """Return whether few records have waited long enough for others: the newest run was planned at least
    `seconds` ago.

    A run from the future was planned under a wrong clock, and lets no records wait.
    """
    newest = ledger.run(pipeline, ledger.last_run(pipeline))
    return (
        newest is None
        or newest.planned_at is None
        or not now - timedelta(seconds=seconds) < newest.planned_at <= now
    )
