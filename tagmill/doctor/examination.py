"""Make all checks in their order: a check whose condition failed says so, and is never fine."""

import os
from contextlib import ExitStack
from pathlib import Path

from tagmill.cassandra.client import Cassandra
from tagmill.clickhouse.client import ClickHouse
from tagmill.config.settings import CONFIG_VARIABLE, Settings
from tagmill.doctor import airflow, cassandra, clickhouse, clocks, executors, kafka, machine
from tagmill.doctor.model import Checked, Findings, Scope, T, fine, not_checked, said_of, warning, wrong
from tagmill.errors import ConfigurationError, TagmillError
from tagmill.ledger.runs import Ledger
from tagmill.runs.ledger_comparison import destination_ahead
from tagmill.runs.workspace import Workspace

# What can't be examined without a configuration.
OF_CONFIGURATION = ("cassandra", "clickhouse", "kafka", "clocks", "jars", "storage root", "temporary files")


def examine(file: Path | None, pipeline: str | None, *, spark: bool) -> Findings:
    """Yield the finding of each check as it is made.

    Args:
        file: the configuration; left out: $TAGMILL_CONFIG, else ./tagmill.toml.
        pipeline: only what this pipeline needs; left out: all of them.
        spark: whether to run a small Spark job on the executors.

    Raises:
        ConfigurationError: the pipeline is not configured.
    """
    path = Path(file or os.environ.get(CONFIG_VARIABLE) or "tagmill.toml")
    settings = yield from _configuration(path)
    if settings is None:
        for check in OF_CONFIGURATION:
            yield not_checked(check, "the configuration is wrong")
        yield from machine.programs()
        return
    scope = Scope.of(settings, pipeline)
    if not scope.names:
        yield warning("pipelines", "there are none", "add a section [pipelines.NAME] (docs/configuration.md)")
    with ExitStack() as opened:
        yield from _stores(scope, opened)
    runs = yield from machine.programs(settings.spark.environment)
    has_jars = yield from machine.files(settings)
    if spark:
        yield from executors.examine(
            settings, reads_kafka=bool(scope.reading_kafka), can_start=runs and has_jars
        )
    else:
        for check in executors.CHECKS:
            yield not_checked(check, "only with --spark, which starts a small job")
    yield from airflow.examine(path)


def guarded(section: str, checks: Checked[T], otherwise: T) -> Checked[T]:
    """Make checks; an error between them is a finding of the section, and `otherwise` is returned."""
    try:
        return (yield from checks)
    except TagmillError as error:
        yield wrong(section, said_of(error), f"correct [{section}], then run tagmill doctor again")
        return otherwise


def _configuration(file: Path) -> Checked[Settings | None]:
    try:
        settings = Settings.load(file)
    except ConfigurationError as error:
        yield wrong(
            "configuration", said_of(error), "correct the file (docs/configuration.md), or name another"
        )
        return None
    pipelines = [*settings.pipelines, *settings.streams, *settings.kafka_journals]
    yield fine("configuration", f"{file}: {len(pipelines)} pipelines, all keys are known")
    return settings


def _histories(scope: Scope, store: Cassandra | None, destination: ClickHouse | None) -> Findings:
    """Check that ClickHouse has no batches of which the ledger does not know; `store`: with a ledger."""
    for name in scope.delivering:
        check = f"pipeline {name}: history"
        if store is None or destination is None:
            yield not_checked(check, "the ledger or ClickHouse can't be read")
            continue
        try:
            ahead = destination_ahead(
                Workspace(scope.settings, name, Ledger(scope.settings.cassandra, store)), destination
            )
        except TagmillError as error:
            yield not_checked(check, said_of(error))
            continue
        if ahead:
            yield wrong(check, ahead, f"tagmill ledger restore -p {name} --dry-run")
        else:
            yield fine(check, "ClickHouse has no batch that the ledger does not know")


def _stores(scope: Scope, opened: ExitStack) -> Findings:
    """Check the servers that the pipelines use."""
    store = yield from cassandra.connect(scope)
    if store is not None:
        opened.enter_context(store)
    has_ledger = yield from guarded("cassandra", cassandra.examine(scope, store), False)
    destination = None
    if scope.delivering:
        destination = yield from clickhouse.connect(scope)
        if destination is not None:
            opened.enter_context(destination)
        yield from guarded("clickhouse", clickhouse.examine(scope, destination), None)
        yield from _histories(scope, store if has_ledger else None, destination)
    yield clocks.examine(scope, store, destination)
    if scope.reading_kafka:
        yield from guarded("kafka", kafka.examine(scope), None)
