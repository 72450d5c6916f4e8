"""Create the destination tables of topics and Kafka Journals, and add columns that were configured later."""

from typing import Any

from tagmill.clickhouse.client import ClickHouse
from tagmill.config.kafka import TopicSettings
from tagmill.config.settings import Settings
from tagmill.delivery.topics.formats import schema_contents
from tagmill.delivery.topics.schema_evolution import ADDED, changes, fits, must_fit, unmapped
from tagmill.delivery.topics.table_columns import layout
from tagmill.domain import identifiers
from tagmill.domain.batches.layout import optional_sql
from tagmill.errors import about_pipeline
from tagmill.ledger.schema import statements, table_values


def apply(settings: Settings) -> list[str]:
    """Create missing tables and columns; return a line for each table that exists now, and warnings about its
    TTL.

    Raises ConfigurationError: a column can't become what is configured, or a schema file doesn't fit; nothing
    of that table was changed.
    """
    done = []
    for name, chosen in settings.streams.items():
        if isinstance(chosen, TopicSettings):
            fits(chosen, schema_contents(chosen.schema_files))
        of_batch, table = layout(chosen), chosen.destination
        with ClickHouse(settings.clickhouse, of_batch) as clickhouse:
            clickhouse.check_engine(table)
            found = changes(of_batch, clickhouse.columns_of(table))
            must_fit(name, found)
            values = table_values(settings, table, of_batch)
            for statement in statements("topic", values):
                clickhouse.command(statement)
            alter = f"ALTER TABLE {values['table']} {values['on_cluster']}"
            for one in found:
                if one.what == ADDED:
                    clickhouse.command(
                        f"{alter} ADD COLUMN IF NOT EXISTS {identifiers.sql(one.column)} {one.wanted}"
                    )
            if not _counts_all(clickhouse, settings, table):
                for statement in statements("topic_columns", values):
                    clickhouse.command(statement)
            clickhouse.ensure_window(table)
            clickhouse.check_destination(table)
            done.append(f"clickhouse table {settings.clickhouse.database}.{table}")
            done.extend(clickhouse.ttl_warnings(table, chosen.destination_retention_days))
    return done


def _counts_all(clickhouse: ClickHouse, settings: Settings, table: str) -> bool:
    """Return whether the projection of batch totals sums all optional columns by today's checksum; otherwise,
    totals read the rows.
    """
    query = (
        "SELECT position(create_table_query, substring(formatQuerySingleLine(concat('SELECT ', "
        "{term:String})), 8)) > 0 "
        "FROM system.tables WHERE database = {database:String} AND name = {table:String}"
    )
    return all(
        clickhouse.rows(
            query, {"database": settings.clickhouse.database, "table": table, "term": optional_sql(column)}
        )
        == [(1,)]
        for column in clickhouse.layout.columns
        if column.optional
    )


@about_pipeline
def diff(settings: Settings, pipeline: str) -> dict[str, Any]:
    """Return what `tagmill schema apply` would change in a topic's table; nothing is changed.

    The keys are pipeline, exists (whether there is a table), columns (the differences) and unmapped (fields
    without a column).
    Raises ConfigurationError: a schema file doesn't fit.
    """
    chosen = settings.topic(pipeline)
    contents = schema_contents(chosen.schema_files)
    fits(chosen, contents)
    with ClickHouse(settings.clickhouse, layout(chosen)) as clickhouse:
        there = clickhouse.columns_of(chosen.destination)
    found = changes(layout(chosen), there)
    lines = [
        {"column": one.column, "there": one.there, "configured": one.wanted, "what": one.what}
        for one in found
    ]
    return {
        "pipeline": pipeline,
        "exists": bool(there),
        "columns": lines,
        "unmapped": unmapped(chosen, contents),
    }
