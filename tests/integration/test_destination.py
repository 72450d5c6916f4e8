"""Requirements of the destination's table: one that does not meet them is named before anything is read or
sent.
"""

import re
from datetime import timedelta
from uuid import uuid4

import pytest

from tagmill.clickhouse.client import ClickHouse
from tagmill.delivery.tag_views import steps
from tagmill.domain.batches.layout import TAG_VIEWS
from tagmill.errors import DestinationDiffers
from tagmill.ledger import schema
from tagmill.ledger.runs import Ledger
from tagmill.ledger.sent_batches import DestinationBatches
from tests.support.delivery import OWNER, as_row, clickhouse_rows, deliver, only, tagmill, verdicts
from tests.support.errors import raises
from tests.support.events import event, events, this_hour

BEGIN = this_hour() - timedelta(hours=2)
HOUR = {"tags": ["t"], "bucket_size": "Hour", "first_time_bucket": BEGIN.isoformat()}
COLUMNS = f"{TAG_VIEWS.table_columns()}, `batch_id` UUID, `generation` UInt32"
SORTED = "ORDER BY (tag, persistence_id, sequence_nr)"
ENGINES = {
    "ReplacingMergeTree": f"TABLE {{name}} ({COLUMNS}) ENGINE = ReplacingMergeTree {SORTED}",
    "SummingMergeTree": f"TABLE {{name}} ({COLUMNS}) ENGINE = SummingMergeTree {SORTED}",
    "AggregatingMergeTree": f"TABLE {{name}} ({COLUMNS}) ENGINE = AggregatingMergeTree {SORTED}",
    "CollapsingMergeTree": f"TABLE {{name}} ({COLUMNS}, sign Int8 DEFAULT 1) ENGINE = "
    f"CollapsingMergeTree(sign) {SORTED}",
    "VersionedCollapsingMergeTree": (
        f"TABLE {{name}} ({COLUMNS}, sign Int8 DEFAULT 1, version UInt8) ENGINE = "
        f"VersionedCollapsingMergeTree(sign, version) {SORTED}"
    ),
    "Null": f"TABLE {{name}} ({COLUMNS}) ENGINE = Null",
    "Memory": f"TABLE {{name}} ({COLUMNS}) ENGINE = Memory",
    "Log": f"TABLE {{name}} ({COLUMNS}) ENGINE = Log",
    "Buffer": "TABLE {name} AS {name}_real ENGINE = Buffer(currentDatabase(), '{name}_real', 1, 1, 1, 1, "
    "1, 1, 1)",
    "View": "VIEW {name} AS SELECT * FROM {name}_real",
    "MaterializedView": f"MATERIALIZED VIEW {{name}} ENGINE = MergeTree {SORTED} AS SELECT * FROM "
    f"{{name}}_real",
}
# One engine of each kind is tested in every run, the others in long runs only.
EACH_RUN = (
    "ReplacingMergeTree",
    "CollapsingMergeTree",
    "Null",
    "Memory",
    "Buffer",
    "View",
    "MaterializedView",
)


@pytest.fixture(scope="module")
def configured(module_journal, module_settings, stack):
    """Return a pipeline with three events in its view and its settings file; its destination is renamed to
    <name>_real.
    """
    written = module_journal()
    records = events("a", range(1, 4), BEGIN)
    written.both(records)
    made = module_settings(written.keyspace, **HOUR)
    schema.apply(made)
    stack.client().command(f"RENAME TABLE {only(made)} TO {only(made)}_real")
    return made, module_settings.file(only(made))


@pytest.mark.parametrize(
    "engine",
    [engine if engine in EACH_RUN else pytest.param(engine, marks=pytest.mark.long) for engine in ENGINES],
)
def test_destination_of_another_engine_is_refused(configured, stack, engine):
    """Name table, engine and the right engines in `schema apply`, `status`, `check` and the plan, and plan no
    run.
    """
    made, file = configured
    name = only(made)
    stack.client().command("CREATE " + ENGINES[engine].format(name=name))
    try:
        for command in (("schema", "apply"), ("status", "--pipeline", name), ("check", "--pipeline", name)):
            code, _, error = tagmill(file, *command)
            text = " ".join(error.split())
            assert code == 2 and f"{name} has the engine {engine}, which" in text, (command, text)
            assert (
                "MergeTree, ReplicatedMergeTree or SharedMergeTree" in text
                and "Nothing was read or sent" in text
            )
        with raises(DestinationDiffers, pipeline=name):
            steps.plan(made, name, owner=OWNER)
        with Ledger(made.cassandra) as ledger:
            assert ledger.last_run(name) == 0
    finally:
        stack.client().command(f"DROP {'VIEW' if 'View' in engine else 'TABLE'} {name} SYNC")


def test_apply_gives_back_the_deduplication_window(journal, settings, spark, stack):
    """Refuse to plan while the table's deduplication window is 0; `schema apply` sets it, and everything is
    delivered.
    """
    written = journal()
    records = events("a", range(1, 4), BEGIN)
    written.both(records)
    made = settings(written.keyspace, **HOUR)
    name = only(made)
    schema.apply(made)
    stack.client().command(f"ALTER TABLE {name} MODIFY SETTING non_replicated_deduplication_window = 0")
    with raises(
        DestinationDiffers,
        match=r"non_replicated_deduplication_window = 0.*tagmill schema apply",
        pipeline=name,
    ):
        steps.plan(made, name, owner=OWNER)
    schema.apply(made)
    deliver(made, name, spark)
    assert clickhouse_rows(made, name) == sorted(map(as_row, records))
    assert verdicts(made, name) == {"t": "exactly once"}


def test_time_filters_prune_view_of_events(journal, settings, spark, stack):
    """Read only the requested months through the view of events; an event that damage gave two offsets is
    shown once, the earlier.
    """
    month, day = timedelta(days=31), timedelta(days=1)
    starts = [BEGIN - 3 * month, BEGIN - 2 * month, BEGIN - month, BEGIN]
    both = {"t": [e for at, start in enumerate(starts) for e in events(f"e{at}", range(1, 51), start)]}
    both["u"] = [{**e, "tag_name": "u"} for e in both["t"]]
    damaged = [event("damaged", 1, starts[1], tag="t"), event("damaged", 1, starts[1] + day, tag="u")]
    written = journal()
    written.view([*both["t"], *both["u"], *damaged])
    made = settings(
        written.keyspace, **{**HOUR, "tags": ["t", "u"], "first_time_bucket": starts[0].isoformat()}
    )
    name = only(made)
    schema.apply(made)
    deliver(made, name, spark)
    assert stack.rows(f"SELECT DISTINCT persistence_id, sequence_nr FROM {name}_twice") == [("damaged", 1)]

    def once(where="1"):
        return stack.rows(
            f"SELECT persistence_id, count(), groupUniqArrayArray(tags) FROM {name}_events WHERE {where} "
            "GROUP BY 1 ORDER BY 1"
        )

    def shown(found):
        return [(persistence_id, count, sorted(tags)) for persistence_id, count, tags in found]

    whole = [("damaged", 1, ["t", "u"]), *((f"e{at}", 50, ["t", "u"]) for at in range(4))]
    assert shown(once()) == whole
    second = f"event_time >= '{starts[1]:%F %T}' AND event_time < '{starts[1] + 2 * day:%F %T}'"
    assert shown(once(second)) == [whole[0], whole[2]]
    assert once(f"persistence_id = 'damaged' AND event_time > '{starts[1] + timedelta(hours=2):%F %T}'") == []
    # Damaged events are looked up by their key; the rest is pruned to one month.
    plan = stack.rows(f"EXPLAIN indexes = 1 SELECT count() FROM {name}_events WHERE {second}")
    explained = " ".join(line.strip("│ ") for (line,) in plan)
    assert re.search(r"Min-Max Keys: event_time Condition: .{1,200}? Parts: 2/8 ", explained), explained
    # In an earlier installation, the view groups by the key alone and no damaged events are noted.
    stack.client().command(f"TRUNCATE TABLE {name}_twice")
    stack.client().command(
        f"CREATE OR REPLACE VIEW {name}_events AS SELECT persistence_id, sequence_nr FROM {name} GROUP BY ALL"
    )
    schema.apply(made)
    assert shown(once()) == whole


def test_many_values_are_bound(configured, stack):
    """Values that have no room in a request's address are sent in its body, and many batches are looked up at once."""
    with stack.client() as client:
        query = "SELECT arraySum({numbers:Array(Int64)}), {text:String}"
        bound = {"numbers": list(range(5000)), "text": "ü'\\n" * 2000}
        assert client.query(query, bound).result_rows == [(sum(range(5000)), bound["text"])]
    made, _ = configured
    with ClickHouse(made.clickhouse) as clickhouse:
        sent = DestinationBatches(clickhouse, f"{only(made)}_real")
        assert sent.with_rows({uuid4() for _ in range(2500)}) == set()
