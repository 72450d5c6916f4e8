"""Check Cassandra: login, nodes, replication, the ledger, the journals and the rights on them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cassandra import ConsistencyLevel, DriverException
from cassandra.query import SimpleStatement

from tagmill.cassandra.client import Cassandra
from tagmill.cassandra.schema import Keyspace
from tagmill.config.tag_views import PipelineSettings
from tagmill.doctor import network, replication
from tagmill.doctor.model import (
    Checked,
    Finding,
    Findings,
    Level,
    Scope,
    fine,
    not_checked,
    said_of,
    warning,
    wrong,
)
from tagmill.doctor.replication import Nodes
from tagmill.doctor.rights import Wanted, ask, may_create_keyspaces, may_create_tables
from tagmill.domain import identifiers
from tagmill.domain.journal_tables import WRITERS_TABLES
from tagmill.domain.time_buckets import BucketSize
from tagmill.errors import DatacenterUnknown, LoginRefused, TagmillError
from tagmill.journal.tag_view_reader import view_columns
from tagmill.kafka_journal.tables import TABLES as KAFKA_JOURNAL_TABLES
from tagmill.kafka_journal.tables import KafkaJournalTables
from tagmill.ledger.preconditions import check_journal
from tagmill.ledger.same_tables import require_same_tables
from tagmill.ledger.schema import ledger_tables

# Partitions of a view that are looked at, and buckets that tell a coarser size.
BUCKETS_SEEN, BUCKETS_TOLD = 100, 10
# The first release with all that Tagmill asks for (system_views).
OLDEST_MAJOR = 4
APPLY = "tagmill schema apply"
LOGIN_CURE = "correct TAGMILL_CASSANDRA__USERNAME and TAGMILL_CASSANDRA__PASSWORD in the environment"


@dataclass(frozen=True, slots=True)
class _Seen:
    """The connection, and the nodes and keyspaces that were there when the checks began."""

    cassandra: Cassandra
    nodes: Nodes
    keyspaces: Mapping[str, Keyspace]


def connect(scope: Scope) -> Checked[Cassandra | None]:
    """Check the way to Cassandra and the login; return the connection, which the caller closes."""
    configured = scope.settings.cassandra
    way = network.way_to_cassandra(configured)
    if not (yield from network.reach(way)):
        yield not_checked("cassandra login", "no connection to Cassandra")
        return None
    if half := list(network.half_login(way, configured.username, configured.password)):
        yield from half
        return None
    try:
        cassandra = Cassandra(configured)
    except TagmillError as error:
        cure = LOGIN_CURE if isinstance(error, LoginRefused) else "correct [cassandra]"
        if isinstance(error, DatacenterUnknown):
            cure = "correct cassandra.local_datacenter"
        yield from network.refused_login(way, error, cure)
        return None
    yield fine("cassandra login", f"as {configured.username}" if configured.username else "without user name")
    return cassandra


def examine(scope: Scope, cassandra: Cassandra | None) -> Checked[bool]:
    """Check everything that needs a connection; return whether the ledger is complete and can be read.

    Without a connection, yield a line for each check.
    """
    if cassandra is None:
        for check in ("cassandra nodes", *_names(scope)):
            yield not_checked(check, "no connection to Cassandra")
        return False
    seen = _Seen(cassandra, _nodes(cassandra), cassandra.all_keyspaces())
    yield _versions(cassandra, seen.nodes)
    complete = yield from _ledger(scope, seen)
    for name, configured in scope.views.items():
        yield from _journal(scope, seen, name, configured, ledger=complete)
    for keyspace, written in scope.journal_keyspaces.items():
        yield from _kafka_journal(scope, seen, keyspace, written=written)
    return complete


def _names(scope: Scope) -> Iterator[str]:
    ledger = scope.settings.cassandra.ledger_keyspace
    yield from (f"keyspace {ledger}: replication", "ledger schema", f"keyspace {ledger}: rights")
    for name in scope.views:
        yield from (
            f"pipeline {name}: {check}" for check in ("replication", "journal", "bucket size", "rights")
        )
    for keyspace in scope.journal_keyspaces:
        yield from (f"keyspace {keyspace}: {check}" for check in ("replication", "tables", "rights"))


def _nodes(cassandra: Cassandra) -> Nodes:
    hosts = cassandra.cluster.metadata.all_hosts()
    return Nodes(
        cassandra.settings.local_datacenter,
        Counter(str(host.datacenter) for host in hosts),
        Counter(str(host.datacenter) for host in hosts if host.is_up is not False),
    )


def _versions(cassandra: Cassandra, nodes: Nodes) -> Finding:
    check = "cassandra nodes"
    versions = sorted({host.release_version or "?" for host in cassandra.cluster.metadata.all_hosts()})
    up = ", ".join(f"{nodes.up.get(name, 0)} of {count} up in {name}" for name, count in nodes.all.items())
    said = f"Cassandra {' and '.join(versions)}; {up}"
    if any(int(found[0]) < OLDEST_MAJOR for text in versions if (found := re.match(r"\d+", text))):
        return warning(check, said, f"Tagmill is tested on Cassandra {OLDEST_MAJOR}.1 and later")
    if nodes.up != nodes.all:
        return warning(check, said, "start the nodes that are down")
    return fine(check, said)


def _ledger(scope: Scope, seen: _Seen) -> Checked[bool]:
    """Check the ledger's keyspace; return whether it is complete and can be read."""
    configured, cassandra, nodes = scope.settings.cassandra, seen.cassandra, seen.nodes
    keyspace = configured.ledger_keyspace
    rights = f"keyspace {keyspace}: rights"
    metadata = seen.keyspaces.get(keyspace)
    if metadata is None:
        planned = replication.judge_planned(configured.replication.options(), keyspace, nodes)
        yield planned or not_checked(f"keyspace {keyspace}: replication", "the keyspace does not exist yet")
        yield wrong("ledger schema", f"keyspace {keyspace} does not exist", APPLY)
        if grant := may_create_keyspaces(cassandra):
            yield wrong(rights, "the user may not create keyspaces", f"{grant}, or {APPLY} as another user")
        else:
            yield not_checked(rights, f"keyspace {keyspace} does not exist yet")
        return False
    options = metadata.replication
    check = f"keyspace {keyspace}: replication"
    yield replication.judge_ledger(keyspace, options, nodes) or replication.judge(
        check, keyspace, options, configured.own_consistency, "cassandra.read_consistency", nodes
    )
    wanted = ledger_tables(keyspace)
    tables = [table for table in wanted if table not in metadata.tables]
    columns = {
        f"{table}.{column}": f"ALTER TABLE {identifiers.cql_table(keyspace, table)} ADD {column} {kind}"
        for table, kinds in wanted.items()
        if table in metadata.tables
        for column, kind in kinds.items()
        if column not in metadata.tables[table].columns
    }
    if tables or columns:
        lacking = [
            f"no {kind} {', '.join(names)}"
            for kind, names in (("table", tables), ("column", columns))
            if names
        ]
        first = next((table for table in wanted if table not in tables), None)
        grant = may_create_tables(cassandra, keyspace, first) if tables and first else ""
        cures = [*([grant] if grant else []), *([APPLY] if tables else []), *columns.values()]
        yield wrong("ledger schema", f"keyspace {keyspace} has {' and '.join(lacking)}", "; ".join(cures))
    else:
        yield fine("ledger schema", f"{len(wanted)} tables in keyspace {keyspace}")
    existing = [table for table in wanted if table in metadata.tables]
    allowed = ask(
        cassandra,
        seen.keyspaces,
        rights,
        [Wanted(right, keyspace, one) for right in ("SELECT", "MODIFY") for one in existing],
    )
    yield allowed
    return not tables and not columns and allowed.level is Level.FINE


def _journal(scope: Scope, seen: _Seen, name: str, configured: PipelineSettings, *, ledger: bool) -> Findings:
    keyspace, cassandra = configured.keyspace, seen.cassandra
    check, rights, of_replicas = (f"pipeline {name}: {one}" for one in ("journal", "rights", "replication"))
    metadata = seen.keyspaces.get(keyspace)
    if metadata is None:
        yield not_checked(of_replicas, f"keyspace {keyspace} does not exist")
        yield wrong(check, f"keyspace {keyspace} does not exist", f"correct pipelines.{name}.keyspace")
        for other in (f"pipeline {name}: bucket size", rights):
            yield not_checked(other, f"keyspace {keyspace} does not exist")
        return
    consistency = scope.settings.cassandra.read_consistency
    options = metadata.replication
    key = "cassandra.read_consistency"
    yield replication.judge(of_replicas, keyspace, options, consistency, key, seen.nodes)
    tables = _journal_tables(scope, seen, name, configured, ledger=ledger)
    yield tables
    if tables.level is Level.WRONG:
        yield not_checked(f"pipeline {name}: bucket size", "the journal is not as it should be")
    else:
        yield _buckets(cassandra, name, configured)
    known = metadata.tables
    journal = configured.journal
    read = (journal.view, journal.messages, journal.metadata, journal.all_persistence_ids, *WRITERS_TABLES)
    written = {journal.view} if configured.repair_view or configured.cleanup.enabled else set()
    if configured.views == "tagmill":
        written |= {journal.view, *WRITERS_TABLES}
    wanted = [Wanted("SELECT", keyspace, table) for table in read if table in known]
    wanted += [Wanted("MODIFY", keyspace, table) for table in sorted(written) if table in known]
    yield (
        ask(cassandra, seen.keyspaces, rights, wanted)
        if wanted
        else not_checked(rights, "there are no tables")
    )


def _journal_tables(
    scope: Scope, seen: _Seen, name: str, configured: PipelineSettings, *, ledger: bool
) -> Finding:
    check, journal = f"pipeline {name}: journal", configured.journal
    known = seen.keyspaces[configured.keyspace].tables
    by_key = {"messages_table": journal.messages, "metadata_table": journal.metadata}
    if missing := {key: table for key, table in by_key.items() if table not in known}:
        return wrong(
            check,
            f"keyspace {configured.keyspace} has no table {', '.join(missing.values())}",
            f"correct {', '.join(f'pipelines.{name}.{key}' for key in missing)}, or pipelines.{name}.keyspace",
        )
    if journal.view not in known:
        cure = (
            APPLY
            if configured.views == "tagmill"
            else (
                f"correct pipelines.{name}.view_table; an application without events-by-tag needs "
                f'pipelines.{name}.views = "tagmill"'
            )
        )
        return wrong(check, f"keyspace {configured.keyspace} has no table {journal.view}", cure)
    lacking = [column for column in view_columns(meta=False) if column not in known[journal.view].columns]
    if lacking:
        said = f"table {journal.view} has no column {', '.join(lacking)}"
        return wrong(check, said, f"tagmill views migrate -p {name} --dry-run")
    if not ledger:
        return not_checked(check, "the ledger is not complete, or can't be read")
    try:
        check_journal(seen.cassandra, scope.settings, name)
        require_same_tables(scope.settings, seen.cassandra, name)
    except TagmillError as error:
        return wrong(check, said_of(error), f"correct pipelines.{name}, or finish what is under way")
    return fine(check, f"view {configured.keyspace}.{configured.view}")


def _buckets(cassandra: Cassandra, name: str, configured: PipelineSettings) -> Finding:
    """Compare the configured bucket size with some buckets of the view."""
    check, size = f"pipeline {name}: bucket size", configured.bucket_size
    table = configured.journal.cql(configured.view_table)
    query = SimpleStatement(
        f"SELECT DISTINCT tag_name, timebucket FROM {table} LIMIT {BUCKETS_SEEN}",
        consistency_level=ConsistencyLevel.ONE,
    )
    try:
        rows = cassandra.session.execute(query, timeout=cassandra.settings.connect_timeout_seconds)
    except DriverException as error:
        return not_checked(check, said_of(error))
    buckets = {row.timebucket for row in rows}
    fitting = [one for one in BucketSize if all(bucket % one.milliseconds == 0 for bucket in buckets)]
    cure = f"set pipelines.{name}.bucket_size to the application's events-by-tag.bucket-size"
    if not buckets:
        return not_checked(check, "the view is empty", cure)
    if size not in fitting:
        return wrong(check, f"the view has buckets that don't begin with a {size.value}", cure)
    coarsest = fitting[0]
    if coarsest is not size and len(buckets) >= BUCKETS_TOLD:
        said = (
            f"{len(buckets)} buckets all begin with a {coarsest.value}, the configuration says {size.value}"
        )
        return warning(check, said, cure)
    return fine(check, f"{size.value} fits {len(buckets)} buckets")


def _kafka_journal(scope: Scope, seen: _Seen, keyspace: str, *, written: bool) -> Findings:
    """Check the keyspace of a Kafka Journal; `written`: a pipeline replicates to it."""
    tables, rights = f"keyspace {keyspace}: tables", f"keyspace {keyspace}: rights"
    cassandra, nodes, metadata = seen.cassandra, seen.nodes, seen.keyspaces.get(keyspace)
    if metadata is None:
        grant = may_create_keyspaces(cassandra) if written else ""
        planned = (
            replication.judge_planned(scope.settings.cassandra.replication.options(), keyspace, nodes)
            if written
            else None
        )
        yield planned or not_checked(f"keyspace {keyspace}: replication", "the keyspace does not exist yet")
        if not written:
            yield wrong(tables, f"keyspace {keyspace} does not exist", "replicate first, or correct keyspace")
        else:
            yield warning(tables, f"keyspace {keyspace} does not exist", "the first replication creates it")
        if grant:
            yield wrong(rights, "the user may not create keyspaces", grant)
        else:
            yield not_checked(rights, f"keyspace {keyspace} does not exist yet")
        return
    options, own = metadata.replication, scope.settings.cassandra.own_consistency
    check = f"keyspace {keyspace}: replication"
    yield replication.judge(check, keyspace, options, own, "cassandra.read_consistency", nodes)
    try:
        if KafkaJournalTables(cassandra, keyspace).there():
            yield fine(tables, ", ".join(KAFKA_JOURNAL_TABLES))
        elif written:
            yield warning(tables, "tables are missing", "the next replication creates them")
        else:
            yield wrong(tables, "tables are missing", "replicate first, or correct keyspace")
    except TagmillError as error:
        yield wrong(tables, said_of(error), "correct keyspace")
    existing = [table for table in KAFKA_JOURNAL_TABLES if table in metadata.tables]
    wanted = [
        Wanted(right, keyspace, table)
        for right in (("SELECT", "MODIFY") if written else ("SELECT",))
        for table in existing
    ]
    yield (
        ask(cassandra, seen.keyspaces, rights, wanted)
        if wanted
        else not_checked(rights, "there are no tables")
    )
