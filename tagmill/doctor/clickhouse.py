"""Check ClickHouse: login, destinations and the rights on them."""

import re
from collections.abc import Iterator
from copy import copy

from tagmill.clickhouse.client import ClickHouse
from tagmill.config.kafka import KafkaJournalEventsSettings, TopicSettings
from tagmill.config.tag_views import PipelineSettings
from tagmill.delivery.topics.formats import schema_contents
from tagmill.delivery.topics.schema_evolution import fits
from tagmill.delivery.topics.table_columns import layout
from tagmill.doctor import network
from tagmill.doctor.model import Checked, Finding, Scope, fine, not_checked, said_of, warning, wrong
from tagmill.domain import identifiers
from tagmill.domain.batches.layout import TAG_VIEWS
from tagmill.errors import ConfigurationError, DestinationDiffers, LoginRefused, TagmillError

APPLY = "tagmill schema apply"
LOGIN_CURE = "correct TAGMILL_CLICKHOUSE__USERNAME and TAGMILL_CLICKHOUSE__PASSWORD in the environment"


def connect(scope: Scope) -> Checked[ClickHouse | None]:
    """Check the way to ClickHouse, the login and the database; return the connection, which the caller
    closes.
    """
    configured = scope.settings.clickhouse
    way = network.way_to_clickhouse(configured)
    if not (yield from network.reach(way)):
        yield not_checked("clickhouse login", "no connection to ClickHouse")
        return None
    # A client certificate is a login, too.
    by_certificate = configured.tls and configured.tls_certificate_file is not None
    password = configured.password or (configured.username if by_certificate else None)
    if half := list(network.half_login(way, configured.username, password)):
        yield from half
        return None
    try:
        clickhouse = ClickHouse(configured)
    except TagmillError as error:
        cure = LOGIN_CURE if isinstance(error, LoginRefused) else "correct [clickhouse]"
        if "UNKNOWN_DATABASE" in str(error):
            cure = f"CREATE DATABASE {identifiers.sql(configured.database)}, or correct clickhouse.database"
        yield from network.refused_login(way, error, cure)
        return None
    try:
        ((version, user),) = clickhouse.rows("SELECT version(), currentUser()")
    except TagmillError as error:
        yield wrong("clickhouse login", said_of(error), "correct [clickhouse]")
        return None
    yield fine("clickhouse login", f"as {user}, ClickHouse {version}")
    return clickhouse


def examine(scope: Scope, clickhouse: ClickHouse | None) -> Checked[None]:
    """Check the destinations; without a connection, yield a line for each check."""
    if clickhouse is not None and scope.settings.clickhouse.cluster:
        yield _cluster(clickhouse, scope.settings.clickhouse.cluster)
    for name, configured in scope.delivering.items():
        if clickhouse is None:
            for check in ("destination", "destination rights"):
                yield not_checked(f"pipeline {name}: {check}", "no connection to ClickHouse")
            continue
        if isinstance(configured, TopicSettings) and configured.schema_files:
            yield _schema_files(name, configured)
        existing = {table for table in _tables(configured) if clickhouse.columns_of(table)}
        yield _destination(clickhouse, name, configured, existing)
        yield _rights(clickhouse, name, configured, existing)


Delivering = PipelineSettings | TopicSettings | KafkaJournalEventsSettings


def _tables(configured: Delivering) -> Iterator[str]:
    """Yield the destination, and what stands next to it."""
    yield configured.destination
    yield from configured.beside_destination


def _cluster(clickhouse: ClickHouse, cluster: str) -> Finding:
    check = "clickhouse cluster"
    query = "SELECT count() FROM system.clusters WHERE cluster = {cluster:String}"
    if clickhouse.rows(query, {"cluster": cluster}) == [(0,)]:
        return wrong(check, f"{clickhouse.where} knows no cluster {cluster}", "correct clickhouse.cluster")
    return fine(check, cluster)


def _schema_files(name: str, configured: TopicSettings) -> Finding:
    check = f"pipeline {name}: schema files"
    try:
        fits(configured, schema_contents(configured.schema_files))
    except ConfigurationError as error:
        return wrong(check, said_of(error), f"correct pipelines.{name}.schema_files, or the columns")
    return fine(check, ", ".join(str(file) for file in configured.schema_files.values()))


def _destination(clickhouse: ClickHouse, name: str, configured: Delivering, existing: set[str]) -> Finding:
    """Return the finding for a pipeline's tables; `existing`: those that exist."""
    check = f"pipeline {name}: destination"
    if missing := [table for table in _tables(configured) if table not in existing]:
        return wrong(
            check, f"database {clickhouse.settings.database} has no table {', '.join(missing)}", APPLY
        )
    of_batch = TAG_VIEWS if isinstance(configured, PipelineSettings) else layout(configured)
    client = copy(clickhouse)
    client.layout = of_batch
    try:
        client.check_destination(configured.destination)
        client.check_for_plan(configured.destination, configured.destination_retention_days)
    except DestinationDiffers as error:
        return wrong(check, said_of(error), f"correct the table, or pipelines.{name}.destination")
    except TagmillError as error:
        return wrong(check, said_of(error), "correct [clickhouse]")
    return fine(check, f"table {clickhouse.settings.database}.{configured.destination}")


def _rights(clickhouse: ClickHouse, name: str, configured: Delivering, existing: set[str]) -> Finding:
    """Ask for the rights on a pipeline's tables, of which `existing` exist."""
    check, database = f"pipeline {name}: destination rights", clickhouse.settings.database
    user = clickhouse.settings.username or "default"
    views = {f"{configured.destination}_events"}
    stored = [identifiers.sql(table) for table in _tables(configured) if table not in views]
    name = identifiers.sql(database)
    needed = [(right, f"{name}.{table}") for table in stored for right in ("SELECT", "INSERT")]
    if not existing.issuperset(_tables(configured)):
        needed += [(right, f"{name}.*") for right in ("CREATE TABLE", "CREATE VIEW")]
    changed = (configured.destination, f"{configured.destination}_voided")
    seldom = [("ALTER DELETE", f"{name}.{identifiers.sql(table)}") for table in changed]
    try:
        missing = _missing(clickhouse, needed)
        later = _missing(clickhouse, seldom)
    except TagmillError as error:
        cure = f"SHOW GRANTS; docs/clusters.md lists the rights of {user}"
        return not_checked(check, f"this server has no CHECK GRANT: {said_of(error)[:120]}", cure)
    to = "`{}`".format(re.sub(r"[\\`]", r"\\\g<0>", user))
    grants = "; ".join(f"GRANT {right} ON {table} TO {to}" for right, table in missing or later)
    said = ", ".join(f"no {right} on {table}" for right, table in missing or later)
    if missing:
        return wrong(check, f"user {user} has {said}", grants)
    if later:
        return warning(
            check, f"user {user} has {said}: for `batches`, `run give-up`, `run void` and `erase`", grants
        )
    return fine(check, "SELECT, INSERT, ALTER DELETE")


def _missing(clickhouse: ClickHouse, needed: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return those rights that the user does not have."""
    return [one for one in needed if clickhouse.rows("CHECK GRANT {} ON {}".format(*one)) != [(1,)]]
