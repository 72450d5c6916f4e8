"""Report on a topic or a Kafka Journal: how much is delivered, how much waits, and whether ledger and
ClickHouse agree.
"""

from collections.abc import Iterator
from typing import Any

from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.delivery.batch_verification import Finding, differences, parted, stored, unfinished_of
from tagmill.delivery.destination_retention import ExpiredRows
from tagmill.delivery.pipeline_facts import UNTOLD, collect, contents, now, record_checks
from tagmill.delivery.topics.plan import must_keep_columns
from tagmill.delivery.topics.positions import topic_positions
from tagmill.delivery.topics.run_files import read_manifest
from tagmill.delivery.topics.same_journal import other_life
from tagmill.delivery.topics.table_columns import layout, verifiable_layout
from tagmill.domain import identifiers
from tagmill.domain.batches.states import BatchState
from tagmill.domain.verdict import Facts, judged
from tagmill.errors import about_pipeline
from tagmill.kafka.positions import TopicPosition
from tagmill.ledger.checks import WHOLE
from tagmill.ledger.dead_letters import DeadLetters
from tagmill.ledger.retired_batches import Retired
from tagmill.ledger.set_apart import Kind, SetApart
from tagmill.runs import checkpoints
from tagmill.runs.ledger_comparison import destination_ahead
from tagmill.runs.workspace import Workspace, open_workspace

COLUMNS = (
    "pipeline",
    "waiting",
    "delivered",
    "batches",
    "clickhouse_rows",
    "expired",
    "dead_letters",
    "verdict",
)


@about_pipeline
def topic_line(settings: Settings, pipeline: str, *, verify: bool) -> dict[str, Any]:
    """Return COLUMNS and level of a pipeline; `verify` reads every row in ClickHouse again, and records the
    outcome in the ledger.

    `waiting` counts offsets that no closed run has read: readable ones in Kafka, or a Kafka Journal's
    replicated ones.
    """
    chosen = settings.stream(pipeline)
    with open_workspace(settings, pipeline) as workspace, workspace.clickhouse(layout(chosen)) as clickhouse:
        clickhouse.check_destination(chosen.destination)
        if verify:
            must_keep_columns(workspace)
        clickhouse.layout = verifiable_layout(chosen, clickhouse.columns_of(chosen.destination, plain=True))
        at, known = now(workspace.ledger), collect(workspace, clickhouse, chosen.destination)
        delivered, new, findings = _delivered(workspace)
        checked = contents(clickhouse, chosen.destination) if verify else UNTOLD
        if ahead := destination_ahead(workspace, clickhouse):
            look = f"{ahead}. Look: tagmill ledger restore --pipeline {pipeline} --dry-run"
            findings.insert(0, Finding(WHOLE, look))
        checkpoints.reached("status.read")
        ((rows,),) = clickhouse.rows(f"SELECT count() FROM {identifiers.sql(chosen.destination)}")
        least, most = sum(delivered), sum(delivered) + new
        if not least <= int(rows) <= most:  # a run may have come or gone meanwhile
            again, new, _ = _delivered(workspace)
            least, most = min(least, sum(again)), max(most, sum(again) + new)
        counted = {WHOLE: (sum(delivered), int(rows))}
        expired = ExpiredRows.declared(workspace, clickhouse).by_tag(counted).get(WHOLE, 0)
        positions = topic_positions(workspace)
        line: dict[str, Any] = {
            "pipeline": pipeline,
            "waiting": sum(position.waiting for position in positions),
            "delivered": sum(delivered),
            "batches": len(delivered),
            "clickhouse_rows": int(rows),
            "expired": expired,
            "dead_letters": workspace.store(DeadLetters).count(),
        }
        apart = workspace.store(SetApart)
        if verify:
            findings += _compared(workspace, clickhouse)
        differing, at_work = parted(findings)
        wrong, changing = ([one.text for one in some] for some in (differing, at_work))
        least -= sum(finding.rows for finding in at_work)
        if verify:
            record_checks(workspace, {WHOLE: wrong}, {WHOLE: changing}, at, known, checked)
        facts = Facts(
            **known.of_tag(WHOLE, verified=at if verify else None),
            # It counts what the open run has pushed, too.
            delivered=line["delivered"],
            pushed=least - line["delivered"],
            sealed=most - least,
            expired=expired,
            stored=line["clickhouse_rows"],
            waiting=line["waiting"],
            unreadable=sum(position.not_readable for position in positions),
            dead_letters=line["dead_letters"],
            left_out=len({*apart.items(Kind.ID), *apart.items(Kind.SINCE)}),
            differences=tuple(wrong),
            changing=tuple(changing),
            obstacles=(
                *_problems(workspace, positions),
                *clickhouse.ttl_warnings(chosen.destination, chosen.destination_retention_days),
            ),
        )
        return judged(line, facts)


def _problems(workspace: Workspace, positions: list[TopicPosition]) -> list[str]:
    """Return what stops the next run; tables that were created again stop it even if no partition is left."""
    if not positions:
        of_all, _ = other_life(workspace)
        return [of_all] if of_all else []
    return list(dict.fromkeys(filter(None, (position.problem for position in positions))))


def _delivered(workspace: Workspace) -> tuple[list[int], int, list[Finding]]:
    """Return the row count of each batch that is in ClickHouse, the rows of those that are NEW, and what
    unfinished_of says of each batch of a closed run that is NEW.
    """
    ledger, pipeline = workspace.ledger, workspace.name
    last, retired = (
        ledger.last_run(pipeline),
        workspace.store(Retired),
    )
    found, new, unfinished = {kept.batch_id: kept.rows for kept in retired.batches(last)}, 0, list[Finding]()
    numbers = range(retired.up_to() + 1, last + 1)
    for number, batches in ledger.batches_of_many(pipeline, numbers):
        found |= {one.batch_id: one.rows for one in batches if one.state == BatchState.IN_CLICKHOUSE}
        if waiting := [one.rows for one in batches if one.state == BatchState.NEW]:
            new += sum(waiting)
            unfinished += unfinished_of(ledger, pipeline, number)
    return list(found.values()), new, unfinished


def _compared(workspace: Workspace, clickhouse: ClickHouse) -> Iterator[Finding]:
    table = workspace.stream.destination
    batches, unknown = stored(workspace, clickhouse, table, read_manifest)
    yield from differences(workspace.name, batches)
    for one in unknown:
        yield Finding(WHOLE, f"batch {one} is in {table}, and no run of pipeline {workspace.name} has it")
    if twice := _twice(clickhouse, table):
        yield Finding(WHOLE, f"{twice} events are there more than once in one batch")


def _twice(clickhouse: ClickHouse, table: str) -> int:
    """Return the number of events that one batch has more than once.

    Two batches may have the same id: after the window, or when ids were made by a new rule.
    """
    same = ", ".join(map(identifiers.sql, clickhouse.layout.identity))
    query = (
        f"SELECT count() FROM (SELECT {same} FROM {identifiers.sql(table)} GROUP BY {same} HAVING "
        "count() > uniqExact(`batch_id`))"
    )
    ((count,),) = clickhouse.rows(query)
    return int(count)
