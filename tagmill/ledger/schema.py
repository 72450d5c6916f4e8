"""Apply the numbered files of schema/: the ledger in Cassandra and each pipeline's destination in ClickHouse.

Idempotent. The ledger records which files were applied to it, once all of them are.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template

from tagmill.cassandra.client import Cassandra
from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import Settings
from tagmill.config.tag_views import PipelineSettings
from tagmill.domain import identifiers
from tagmill.domain.batches import layout as columns
from tagmill.domain.journal_tables import WRITERS_TABLES, JournalTables
from tagmill.errors import ConfigurationError
from tagmill.ledger.schema_steps import SchemaSteps, Step, known_steps
from tagmill.ledger.two_offsets import TwoOffsets
from tagmill.ledger.view_tables import JournalViews
from tagmill.package_files import package_folder

FOLDER = package_folder("schema")
# A statement of schema/cassandra: a table with one column a line.
CREATED = re.compile(r"CREATE TABLE IF NOT EXISTS [^\s.]+\.(?P<table>\w+) \((?P<columns>.*)\)", re.DOTALL)
COLUMN = re.compile(r'^\s*"?(?!PRIMARY KEY)(\w+)"? (.+?)(?: PRIMARY KEY)?,?$', re.MULTILINE)


def apply(settings: Settings) -> list[str]:
    """Create what is missing in Cassandra and ClickHouse; return the names of what exists now, the steps of the
    ledger's schema that are new, and warnings about TTLs.

    Raises ConfigurationError if the ledger is newer than this program.
    """
    done = []
    with Cassandra(settings.cassandra) as cassandra:
        done.append(f"cassandra keyspace {settings.cassandra.ledger_keyspace}")
        done.extend(_ledger(cassandra, settings))
        done.extend(_views(cassandra, settings))
    with ClickHouse(settings.clickhouse) as clickhouse:
        for pipeline in settings.pipelines.values():
            clickhouse.check_destination(pipeline.destination, may_be_missing=True)
        for pipeline in settings.pipelines.values():
            for statement in statements("clickhouse", destination_values(settings, pipeline)):
                clickhouse.command(statement)
            _apply_view(clickhouse, settings, pipeline)
            clickhouse.ensure_window(pipeline.destination)
            clickhouse.check_destination(pipeline.destination)
            done.append(f"clickhouse table {settings.clickhouse.database}.{pipeline.destination}")
            done.extend(clickhouse.ttl_warnings(pipeline.destination, pipeline.destination_retention_days))
    return done


def _ledger(cassandra: Cassandra, settings: Settings) -> Iterator[str]:
    """Apply all steps to the ledger, record those that were not recorded, and yield a line for each of them that
    created tables, and one for those that had theirs.
    """
    keyspace = settings.cassandra.ledger_keyspace
    steps = SchemaSteps(cassandra, keyspace)
    steps.require_known()
    applied = steps.applied()
    values = {
        "ledger": identifiers.cql(keyspace),
        "replication": json.dumps(settings.cassandra.replication.options()).replace('"', "'"),
    }
    found, recorded = list[int](), list[int]()
    for step in known_steps():
        created = _apply_step(cassandra, keyspace, step, values)
        if step.number in applied:
            continue
        recorded.append(step.number)
        if created:
            yield f"step {step.number} of ledger {keyspace}, with the new table {', '.join(created)}"
        else:
            found.append(step.number)
    for number in recorded:  # the table is there by now
        steps.record(number)
    if found:
        yield f"steps {found[0]} to {found[-1]} of ledger {keyspace}, which had their tables"


def _apply_step(cassandra: Cassandra, keyspace: str, step: Step, values: Mapping[str, str]) -> list[str]:
    """Run a step's statements, but for tables that exist, and return the tables that it created."""
    there, created = set(cassandra.tables(keyspace) or ()), list[str]()
    for statement in statements_of(step.file, values):
        table = CREATED.match(statement)
        if table is None:
            cassandra.execute(statement)
        elif table["table"] not in there:
            cassandra.execute(statement)
            created.append(table["table"])
    return created


def ledger_tables(ledger_keyspace: str) -> dict[str, dict[str, str]]:
    """Return the columns, with their types, of each table that `apply` creates in the ledger's keyspace."""
    values = {"ledger": identifiers.cql(ledger_keyspace), "replication": "{}"}
    created = filter(None, map(CREATED.search, statements("cassandra", values)))
    return {made["table"]: dict(COLUMN.findall(made["columns"])) for made in created}


def _apply_view(clickhouse: ClickHouse, settings: Settings, pipeline: PipelineSettings) -> None:
    """Create or replace the view that shows each event once.

    If no view groups by time yet, first note the events that are under two offsets.
    """
    values, two_offsets = (
        destination_values(settings, pipeline),
        TwoOffsets(clickhouse, pipeline.destination),
    )
    query = (
        "SELECT create_table_query FROM system.tables WHERE database = {database:String} AND name = "
        "{view:String}"
    )
    of_view = {"database": settings.clickhouse.database, "view": f"{pipeline.destination}_events"}
    if not any(two_offsets.name in text for (text,) in clickhouse.rows(query, of_view)):
        two_offsets.find_all()
    for statement in statements("clickhouse_view", values):
        clickhouse.command(statement)


def _views(cassandra: Cassandra, settings: Settings) -> Iterator[str]:
    """Create the tag view tables of journals that Tagmill builds, and yield a line for each journal.

    The plugin does not create these tables while its events-by-tag is off.
    """
    for name, pipeline in settings.pipelines.items():
        if pipeline.views == "tagmill" and cassandra.keyspace(pipeline.keyspace):
            JournalViews(cassandra, settings.cassandra.ledger_keyspace, pipeline.keyspace).check(
                name, pipeline.view
            )
            made = journal_tables(pipeline.journal)
            for table in (pipeline.view_table, *WRITERS_TABLES):
                cassandra.execute(made[table])
            yield (
                f"cassandra tables {', '.join((pipeline.view_table, *WRITERS_TABLES))} in {pipeline.keyspace}"
            )


def create_journal(cassandra: Cassandra, keyspace: str, replication: Mapping[str, str] | None = None) -> None:
    """Create the tables of a Pekko journal as the plugin (1.1) does, for a demo or a test; an application
    creates its own.
    """
    tables = JournalTables(keyspace)
    options = json.dumps(dict(replication or {"class": "SimpleStrategy", "replication_factor": "1"})).replace(
        '"', "'"
    )
    for statement in statements("journal", _journal_values(tables) | {"replication": options}):
        cassandra.execute(statement)


def journal_tables(journal: JournalTables) -> dict[str, str]:
    """Return the statement that creates each of a journal's tables, by the table's name in that journal."""
    created = dict.fromkeys(
        (journal.view, journal.messages, journal.metadata, journal.all_persistence_ids, *WRITERS_TABLES), ""
    )
    for statement in statements("journal", _journal_values(journal) | {"replication": "{}"}):
        created |= {table: statement for table in created if f" {journal.cql(table)} (" in statement}
    return created


def _journal_values(journal: JournalTables) -> dict[str, str]:
    chosen = {
        name: identifiers.cql(getattr(journal, name))
        for name in ("view", "messages", "metadata", "all_persistence_ids")
    }
    return {"keyspace": identifiers.cql(journal.keyspace), **chosen}


def statements(folder: str, values: Mapping[str, str]) -> Iterator[str]:
    """Yield the statements of a folder's files in the order of their numbers, with values filled in and
    comments left out.

    Raises ConfigurationError: the files are missing.
    """
    files = sorted((FOLDER / folder).glob("[0-9]*.*ql"))
    if not files:
        raise ConfigurationError(f"{FOLDER / folder}: the schema files are missing; install Tagmill again")
    for file in files:
        yield from statements_of(file, values)


def statements_of(file: Path, values: Mapping[str, str]) -> Iterator[str]:
    """Yield the statements of one file, with values filled in and comments left out."""
    text = re.sub(r"^\s*--.*$", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    yield from (
        Template(part).substitute(values).strip() for part in re.split(r";\s*\n", text + "\n") if part.strip()
    )


def destination_values(settings: Settings, pipeline: PipelineSettings) -> dict[str, str]:
    """Return what the statements for a pipeline's destination have to be filled with."""
    return {
        **table_values(settings, pipeline.destination, columns.TAG_VIEWS),
        "view": identifiers.sql(pipeline.destination + "_events"),
        "twice": identifiers.sql(pipeline.destination + "_twice"),
        "event_text": columns.event_text_sql(pipeline.text_serializers),
    }


def table_values(settings: Settings, destination: str, layout: columns.Layout) -> dict[str, str]:
    """Return the values that are filled into the statements of a destination with these columns."""
    cluster = settings.clickhouse.cluster
    return {
        "table": identifiers.sql(destination),
        "voided": identifiers.sql(destination + "_voided"),
        "batches": identifiers.sql(destination + "_batches"),
        "on_cluster": f"ON CLUSTER {identifiers.sql(cluster)}" if cluster else "",
        "engine": "ReplicatedMergeTree" if cluster else "MergeTree",
        "columns": layout.table_columns(),
        "order": ", ".join(identifiers.sql(name) for name in layout.order),
        "row_checksum": layout.row_checksum_sql(),
    }
