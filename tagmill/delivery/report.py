"""What a person asks of a pipeline: how much is delivered, held, and in ClickHouse; and whether both agree, row for row."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tagmill import names
from tagmill.batches.states import BatchState
from tagmill.delivery.runfiles import Sealed, read_manifest
from tagmill.settings import Settings
from tagmill.stores.cleaned import Cleaned
from tagmill.stores.clickhouse import ClickHouse, Totals
from tagmill.stores.erasures import Erasures
from tagmill.stores.files import RunFiles
from tagmill.stores.guard import check_view
from tagmill.stores.ledger import BatchRow, Ledger, RunRow
from tagmill.stores.retired import Retired
from tagmill.stores.views import Views

EXACTLY_ONCE = "exactly once"


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not agree, in a sentence."""

    tag: str
    text: str


def tag_table(settings: Settings, pipeline: str, *, count_view: bool = True, verify: bool = True) -> list[dict[str, Any]]:
    """One line a tag: in_view and cleaned (None if not counted), delivered, held, batches, clickhouse_rows, verdict.

    `count_view` counts the view's rows on the server, and those that cleanups have deleted of it; `verify`
    reads every row in ClickHouse again (see `check`).
    """
    chosen = settings.pipeline(pipeline)
    with Ledger(settings.cassandra) as ledger, ClickHouse(settings.clickhouse) as clickhouse:
        clickhouse.check_destination(chosen.destination)
        if count_view:
            check_view(ledger.cassandra, settings, pipeline)
        marks = ledger.delivered.watermarks(pipeline)
        held = dict.fromkeys(chosen.tags, 0)
        for hold in ledger.delivered.holds(pipeline, chosen.tags):
            held[hold.tag] += hold.held_rows
        in_view = _in_view(ledger, settings, pipeline) if count_view else {}
        cleaned = _cleaned(ledger, settings, pipeline) if count_view else {}
        there = dict(clickhouse.rows(f"SELECT toString(`tag`), count() FROM {names.sql(chosen.destination)} GROUP BY `tag`"))
        if verify:
            findings = list(check(settings, pipeline, ledger, clickhouse))
        elif any(mark.delivered > int(there.get(tag, 0)) for tag, mark in marks.items()):
            findings = list(unfinished(settings, pipeline, ledger))  # only then, since it asks for the batches of every run
        else:
            findings = []
        table = []
        for tag in chosen.tags:
            mark, rows = marks.get(tag), int(there.get(tag, 0))
            delivered = mark.delivered if mark else 0
            wrong = [finding.text for finding in findings if finding.tag in (tag, "")]
            line = {
                "tag": tag,
                "in_view": in_view.get(tag),
                "cleaned": cleaned.get(tag),
                "delivered": delivered,
                "held": held[tag],
            }
            line |= {"batches": mark.batches if mark else 0, "clickhouse_rows": rows}
            table.append(line | {"verdict": _verdict(line, wrong)})
        return table


def _verdict(line: dict[str, Any], wrong: list[str]) -> str:
    if wrong:
        return f"differs: {wrong[0]}"
    if line["delivered"] != line["clickhouse_rows"]:
        return f"differs: {line['clickhouse_rows'] - line['delivered']:+d} rows in ClickHouse"
    if line["held"]:
        return f"{line['held']} held"
    if line["in_view"] is None and not line["delivered"]:
        return "nothing delivered yet"
    if line["in_view"] is not None and line["in_view"] + line["cleaned"] > line["delivered"]:
        return f"{line['in_view'] + line['cleaned'] - line['delivered']} not delivered"
    return EXACTLY_ONCE


def _in_view(ledger: Ledger, settings: Settings, pipeline: str) -> dict[str, int]:
    chosen = settings.pipeline(pipeline)
    views = Views(ledger.cassandra, chosen.journal)
    parts = [(tag, bucket, None, None) for tag, buckets in views.buckets(chosen.tags).items() for bucket in buckets]
    counted = dict.fromkeys(chosen.tags, 0)
    for (tag, *_), (rows, _) in zip(parts, views.count(parts), strict=True):
        counted[tag] += rows
    return counted


def _cleaned(ledger: Ledger, settings: Settings, pipeline: str) -> dict[str, int]:
    """Rows that cleanups have deleted of the view, of the buckets that this pipeline was to deliver, less those that were erased since."""
    chosen = settings.pipeline(pipeline)
    cleaned = Cleaned(ledger.cassandra, settings.cassandra.ledger_keyspace, chosen.keyspace, chosen.view)
    erasures = Erasures(ledger.cassandra, settings.cassandra.ledger_keyspace, chosen.keyspace)
    return {tag: max(0, cleaned.total(tag, chosen.start_ticks(tag)) - erasures.unseen(pipeline, tag)) for tag in chosen.tags}


def check(settings: Settings, pipeline: str, ledger: Ledger, clickhouse: ClickHouse) -> Iterator[Finding]:
    """Everything in which ledger and ClickHouse disagree.

    Each batch's rows and checksum read again from the stored columns, batches that the ledger doesn't know, events that are
    there twice, and holds that are too old.
    """
    chosen = settings.pipeline(pipeline)
    batches, unknown = stored(settings, pipeline, ledger, clickhouse, chosen.destination)
    yield from differences(pipeline, batches)
    for batch_id in unknown:
        yield Finding("", f"batch {batch_id} is in {chosen.destination}, and no run of pipeline {pipeline} has it")
    yield from _twice(clickhouse, chosen.destination)
    now = datetime.now(UTC)
    for hold in ledger.delivered.holds(pipeline, chosen.tags):
        if (now - hold.since).total_seconds() > chosen.max_hold_age_seconds:
            yield Finding(
                hold.tag,
                f"{hold.persistence_id!r} is held since run {hold.since_run} for {hold.reason}: longer than max_hold_age_seconds",
            )


def _stored(clickhouse: ClickHouse, table: str) -> dict[UUID, list[Totals]]:
    """Totals of every batch in the table, by its columns and not by the projection; one line a batch."""
    rows = clickhouse.rows(
        f"SELECT `batch_id`, `generation`, count(), sum({clickhouse.layout.row_checksum_sql()}) "
        f"FROM {names.sql(table)} GROUP BY `batch_id`, `generation`",
        settings={"optimize_use_projections": 0},
    )
    found: dict[UUID, list[Totals]] = {}
    for batch_id, generation, count, checksum in rows:
        found.setdefault(UUID(str(batch_id)), []).append(Totals(int(generation), int(count), int(checksum)))
    return found


@dataclass(frozen=True, slots=True)
class Stored:
    """A batch of the ledger and what ClickHouse has of it; `expected` is empty for one that is not to be there (or not yet).

    `open`: its run is, so the next delivery pushes it if it is NEW.
    """

    run: int
    batch: BatchRow
    expected: list[Totals]
    there: list[Totals]
    past_retention: bool = False
    open: bool = False

    @property
    def agrees(self) -> bool:
        """Exactly the sealed rows, once."""
        return self.there == self.expected


def stored(
    settings: Settings,
    pipeline: str,
    ledger: Ledger,
    clickhouse: ClickHouse,
    table: str,
    read: Callable[[RunFiles, RunRow], Sealed] = read_manifest,
) -> tuple[list[Stored], list[UUID]]:
    """Every batch of every run, also past retention, its rows in `table` read again by their columns; and the ids that no run has."""
    found = _stored(clickhouse, table)
    files = RunFiles(settings.storage.root)
    retired, last = Retired(ledger.cassandra, settings.cassandra.ledger_keyspace, pipeline), ledger.last_run(pipeline)
    batches: dict[UUID, Stored] = {}
    for number in range(retired.up_to() + 1, last + 1):
        row = ledger.run(pipeline, number)
        if row is None or not row.manifest_file:
            continue
        sealed = {batch.number: batch for batch in read(files, row).batches}
        for batch in ledger.batches(pipeline, number):
            wanted = sealed[batch.number]
            expected = [Totals(batch.generation, wanted.rows, wanted.checksum)] if batch.state == BatchState.IN_CLICKHOUSE else []
            there = found.pop(batch.batch_id, [])
            batches[batch.batch_id] = Stored(number, batch, expected, there, open=row.state.is_open)
    # after the runs: one that is retired meanwhile is found in at least one of the two
    for kept in retired.batches(last):
        if kept.batch_id not in batches:
            row_of_it = BatchRow(
                kept.number, kept.batch_id, BatchState.IN_CLICKHOUSE, kept.generation, kept.tag, kept.rows, 0, None
            )
            expected = [Totals(kept.generation, kept.rows, kept.checksum)]
            batches[kept.batch_id] = Stored(kept.run, row_of_it, expected, found.pop(kept.batch_id, []), past_retention=True)
    return list(batches.values()), list(found)


def differences(pipeline: str, batches: list[Stored]) -> Iterator[Finding]:
    """Batches of which ClickHouse has not exactly the sealed rows, once, or that no delivery pushes any more."""
    for one in batches:
        batch = one.batch
        if batch.state == BatchState.NEW:
            if not one.open:
                yield _not_sent(pipeline, one.run, batch)
        elif not one.agrees:
            rows, wanted = sum(total.rows for total in one.there), sum(total.rows for total in one.expected)
            same = "other values" if rows == wanted and one.expected else f"{rows} rows instead of {wanted}"
            state = "past retention" if one.past_retention else batch.state
            yield Finding(batch.tag, f"batch {batch.batch_id} of run {one.run} ({state}) has {same} in ClickHouse")


def unfinished(settings: Settings, pipeline: str, ledger: Ledger) -> Iterator[Finding]:
    """Batches that are NEW although their run isn't open: from the ledger alone."""
    for number in runs_with_new(ledger, settings.cassandra.ledger_keyspace, pipeline):
        yield from unfinished_of(ledger, pipeline, number)


def runs_with_new(ledger: Ledger, ledger_keyspace: str, pipeline: str) -> Iterator[int]:
    """Runs of which a batch is NEW. One past retention has none."""
    retired = Retired(ledger.cassandra, ledger_keyspace, pipeline).up_to()
    for number in range(retired + 1, ledger.last_run(pipeline) + 1):
        if any(batch.state == BatchState.NEW for batch in ledger.batches(pipeline, number)):
            yield number


def unfinished_of(ledger: Ledger, pipeline: str, run: int) -> Iterator[Finding]:
    """Those of one run. Its state is read before its batches: one that is being pushed meanwhile is none of them."""
    row = ledger.run(pipeline, run)
    if row is not None and not row.state.is_open:
        yield from (_not_sent(pipeline, run, batch) for batch in ledger.batches(pipeline, run) if batch.state == BatchState.NEW)


def _not_sent(pipeline: str, run: int, batch: BatchRow) -> Finding:
    return Finding(
        batch.tag,
        f"batch {batch.batch_id} of run {run} is not delivered: sending it again is not finished. Finish it: "
        f"tagmill batches resend {batch.batch_id} --run {run} --pipeline {pipeline} --why …",
    )


def _twice(clickhouse: ClickHouse, table: str) -> Iterator[Finding]:
    rows = clickhouse.rows(
        "SELECT toString(`tag`), countIf(n > 1), anyIf(`persistence_id`, n > 1) FROM ("
        f"SELECT `tag`, `persistence_id`, `sequence_nr`, `writer_uuid`, count() AS n FROM {names.sql(table)} "
        "GROUP BY `tag`, `persistence_id`, `sequence_nr`, `writer_uuid`) GROUP BY `tag`",
        settings={"optimize_aggregation_in_order": 1},
    )
    for tag, count, example in rows:
        if count:
            yield Finding(tag, f"{count} events are there more than once, for example of {example!r}")
