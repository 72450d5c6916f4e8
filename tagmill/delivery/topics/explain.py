"""Explain what the next run of a topic, or of a Kafka Journal's events, would do; nothing is written, and
Spark does not start.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from tagmill.config.kafka import Stream, TopicSettings
from tagmill.config.settings import Settings
from tagmill.delivery.topics.formats import schema_contents
from tagmill.delivery.topics.plan import has_waited, must_keep_columns
from tagmill.delivery.topics.positions import topic_positions
from tagmill.delivery.topics.same_journal import require_same_journal
from tagmill.delivery.topics.schema_evolution import fits
from tagmill.domain.explanation import Explanation, Reading, stops_of
from tagmill.errors import ConfigurationError
from tagmill.kafka.offset_ranges import Range, capped
from tagmill.kafka.positions import TopicPosition
from tagmill.ledger.dead_letters import DeadLetters
from tagmill.ledger.dedup import Rules
from tagmill.runs.clock import agreed_now
from tagmill.runs.ledger_comparison import require_up_to_date
from tagmill.runs.workspace import Workspace, open_workspace


def explain(settings: Settings, pipeline: str) -> Explanation:
    """Say what the next run reads and pushes, by Kafka's offsets (of a Kafka Journal: the replicated ones)
    and the ledger.
    """
    configured = settings.stream(pipeline)
    with open_workspace(settings, pipeline) as workspace:
        ledger = workspace.ledger
        if unfinished := ledger.open_run(pipeline):
            batches = ledger.batches(pipeline, unfinished.run)
            rows = sum(batch.rows for batch in batches)
            sealed = f" Its {len(batches)} sealed batches have {rows:,} rows." if batches else ""
            said = [f"Run {unfinished.run} is {unfinished.state} and is finished first.{sealed}"]
            return Explanation(pipeline=pipeline, kind=configured.kind, run=unfinished.run, sentences=said)
        number, now = ledger.free_number(pipeline), agreed_now(settings, ledger.cassandra)
        positions = topic_positions(workspace)
        stops = [
            *dict.fromkeys(position.problem for position in positions if position.problem),
            *stops_of(_guards(workspace, number)),
        ]
        waiting = [
            Range(
                topic=position.topic,
                partition=position.partition,
                first=max(position.begin, position.log_start),
                end=position.last_stable_offset,
            )
            for position in positions
            if position.waiting and not position.recreated
        ]
        total = sum(one.end - one.first for one in waiting)
        few = total < configured.batch_min_rows and not has_waited(
            ledger, pipeline, now, configured.max_wait_seconds
        )
        reads = [] if few else capped(waiting, configured.max_records_per_run)
        letters = workspace.store(DeadLetters).count()
        sentences = [
            *_sentences(settings, configured, number, total, reads),
            *_of_positions(positions, letters),
        ]
        return Explanation(
            pipeline=pipeline,
            kind=configured.kind,
            run=number if reads else None,
            sentences=sentences,
            reads=[
                Reading(
                    source=f"{one.topic}/{one.partition}",
                    begin=str(one.first),
                    end=str(one.end),
                    new=one.end - one.first,
                )
                for one in reads
            ],
            stops=stops,
        )


def _guards(workspace: Workspace, number: int) -> Iterable[Callable[[], object]]:
    pipeline = workspace.name
    configured = workspace.stream

    def destination() -> None:
        with workspace.clickhouse() as clickhouse:
            clickhouse.check_for_plan(configured.destination, configured.destination_retention_days)

    def rule() -> None:
        if not isinstance(configured, TopicSettings):
            return
        fits(configured, schema_contents(configured.schema_files))
        must_keep_columns(workspace)
        current = workspace.store(Rules).current()
        if current and current.rule != configured.rule:
            raise ConfigurationError(
                f"pipeline {pipeline}: the ids of delivered events were made by {current.rule}, and the "
                f"configuration says {configured.rule}. Put it back, or make the ids again: tagmill dedup "
                f"rekey --pipeline {pipeline}",
                pipeline=pipeline,
            )

    return (
        lambda: workspace.ledger.delivered.write_times.require_own(pipeline, number),
        destination,
        lambda: require_up_to_date(workspace, number),
        lambda: require_same_journal(workspace),
        rule,
    )


def _sentences(
    settings: Settings,
    configured: Stream,
    number: int,
    total: int,
    reads: Sequence[Range],
) -> Iterator[str]:
    if not total:
        yield "There is nothing to do: all records are delivered."
        return
    if not reads:
        yield (
            f"There is nothing to do yet: {total:,} records wait until there are "
            f"{configured.batch_min_rows:,}, or {configured.max_wait_seconds:g} s have passed since the last "
            "run."
        )
        return
    taken = sum(one.end - one.first for one in reads)
    yield f"Run {number} reads up to {taken:,} records of {len(reads)} partitions."
    if isinstance(configured, TopicSettings):
        yield (
            f"Events whose id was delivered in the last {configured.window_days} days are not delivered again; "
            "how many these are is known once they are read."
        )
    batches = -(-taken // configured.batch_rows)
    yield (
        f"It pushes to {settings.clickhouse.database}.{configured.destination}, in about {batches} batches of "
        f"at most {configured.batch_rows:,} rows."
    )
    if taken < total:
        yield f"{total - taken:,} more records are left to further runs."


def _of_positions(positions: Sequence[TopicPosition], letters: int) -> Iterator[str]:
    if unreadable := sum(position.not_readable for position in positions):
        yield f"{unreadable:,} offsets are behind an open transaction: they are read once it has ended."
    if letters:
        yield f"{letters:,} dead letters are held apart; only `tagmill deadletters replay` reads them again."
