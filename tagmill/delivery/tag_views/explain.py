"""Explain what the next run of a pipeline of tag views would do; nothing is written, and Spark does not
start.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from tagmill.config.settings import Settings
from tagmill.delivery.tag_views.model import Plan
from tagmill.delivery.tag_views.plan import make_plan
from tagmill.delivery.tag_views.plan_inputs import InputReader
from tagmill.domain.explanation import Explanation, Reading, stops_of
from tagmill.domain.timeuuid import to_datetime
from tagmill.errors import TagmillError
from tagmill.ledger.same_tables import require_same_tables
from tagmill.runs.clock import agreed_now
from tagmill.runs.ledger_comparison import require_up_to_date
from tagmill.runs.workspace import Workspace, open_workspace

KIND = "tag_views"


def explain(settings: Settings, pipeline: str) -> Explanation:
    """Plan the next run as a delivery does, without writing the plan, and say what is in it."""
    configured = settings.pipeline(pipeline)
    with open_workspace(settings, pipeline) as workspace:
        ledger = workspace.ledger
        if unfinished := ledger.open_run(pipeline):
            batches = ledger.batches(pipeline, unfinished.run)
            rows = sum(batch.rows for batch in batches)
            sealed = f" Its {len(batches)} sealed batches have {rows:,} rows." if batches else ""
            return Explanation(
                pipeline=pipeline,
                kind=KIND,
                run=unfinished.run,
                sentences=[f"Run {unfinished.run} is {unfinished.state} and is finished first.{sealed}"],
            )
        number = ledger.free_number(pipeline)
        stops = list(stops_of(_guards(workspace, number)))
        try:
            now = agreed_now(settings, ledger.cassandra)
            reader = InputReader(workspace, configured.tags, number, now, only_look=True)
            made = make_plan(reader.inputs())
        except TagmillError as error:
            said = [f"Run {number} could not be planned."]
            return Explanation(
                pipeline=pipeline, kind=KIND, run=number, sentences=said, stops=[*stops, error.line]
            )
        held = ledger.delivered.held_rows(pipeline, configured.tags)
        delay = configured.eventual_consistency_delay_seconds
        if made is None:
            said = [
                f"There is nothing to do: the view has no new row that is older than {delay:g} s, and no "
                "earlier one has come since it was read.",
                *_of_builds(settings, pipeline),
                *_of_holds(held, None),
            ]
            return Explanation(pipeline=pipeline, kind=KIND, run=None, sentences=said, stops=stops)
        return Explanation(
            pipeline=pipeline,
            kind=KIND,
            run=number,
            sentences=list(_sentences(settings, made, held)),
            reads=list(_reads(made, held)),
            stops=stops,
        )


def _guards(workspace: Workspace, number: int) -> Iterable[Callable[[], object]]:
    configured = workspace.pipeline

    def destination() -> None:
        with workspace.clickhouse() as clickhouse:
            clickhouse.check_for_plan(configured.destination, configured.destination_retention_days)

    return (
        lambda: workspace.ledger.delivered.write_times.require_own(workspace.name, number),
        destination,
        lambda: require_up_to_date(workspace, number),
        lambda: require_same_tables(workspace.settings, workspace.cassandra, workspace.name),
    )


def _sentences(settings: Settings, made: Plan, held: Mapping[str, int]) -> Iterator[str]:
    configured = settings.pipeline(made.pipeline)
    new = [unit for unit in made.units if unit.kind == "new"]
    again = [unit for unit in made.units if unit.kind == "again"]
    slices = sum(len(unit.slices) for unit in new)
    tags = len({unit.tag for unit in new})
    if new:
        yield (
            f"Run {made.run} reads {sum(unit.rows for unit in new):,} new rows of {tags} tags, in "
            f"{slices:,} slices of the view {made.view}."
        )
    else:
        yield f"Run {made.run} reads no new row."
    if again:
        yield (
            f"It reads {sum(unit.rows for unit in again):,} earlier rows again: "
            f"{', '.join(_reasons(made))}. Those that were delivered are not delivered again."
        )
    yield from _of_builds(settings, made.pipeline)
    yield from _of_holds(held, len(made.holds))
    if new:
        database = settings.clickhouse.database
        yield (
            f"It pushes to {database}.{configured.destination}, in about {len(new)} batches of at most "
            f"{configured.batch_rows:,} rows."
        )
    if made.more:
        yield (
            f"More is left than one run takes ({configured.max_rows_per_run:,} rows, "
            f"{configured.max_slices_per_run:,} slices): further runs follow."
        )


def _reasons(made: Plan) -> Iterator[str]:
    if made.look_back:
        yield "hours to which rows have come late"
    if made.holds:
        yield "buckets that holds wait for"
    if made.filled_tags:
        yield "late rows of a build"
    yield "the look-back before the watermarks"


def _of_builds(settings: Settings, pipeline: str) -> Iterator[str]:
    if builder := settings.builder(settings.pipeline(pipeline).keyspace):
        yield f"Events that `tagmill views build -p {builder}` has not put into the view yet are not counted."


def _of_holds(held: Mapping[str, int], judged: int | None) -> Iterator[str]:
    rows = sum(held.values())
    if rows or judged:
        looks = "" if judged is None else f" {judged} holds are judged again."
        yield f"{rows:,} rows are held back now, behind missing numbers.{looks}"
    if judged is not None:
        yield "Which new rows are held is known once they are read."


def _reads(made: Plan, held: Mapping[str, int]) -> Iterator[Reading]:
    for tag in sorted(made.tags.keys() | {tag for tag, rows in held.items() if rows}):
        units = [unit for unit in made.units if unit.tag == tag]
        span = made.tags.get(tag)
        yield Reading(
            source=tag,
            begin=f"{to_datetime(max(span.after + 1, 0)):%FT%TZ}" if span else "",
            end=f"{to_datetime(span.until):%FT%TZ}" if span else "",
            new=sum(unit.rows for unit in units if unit.kind == "new"),
            again=sum(unit.rows for unit in units if unit.kind == "again"),
            held=held.get(tag, 0),
        )
