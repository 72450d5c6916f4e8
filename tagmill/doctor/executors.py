"""Run a small Spark job: what executors see of Python, the package, the storage root, Cassandra and Kafka."""

import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

from tagmill.cassandra.client import connected
from tagmill.config.kafka import KafkaSettings
from tagmill.config.settings import CassandraSettings, Settings
from tagmill.doctor.machine import own_minor, try_storage
from tagmill.doctor.model import Finding, Findings, fine, not_checked, said_of, wrong
from tagmill.errors import TagmillError
from tagmill.kafka.client import Kafka
from tagmill.spark.session import spark_session

CHECKS = ("executors", "executors: storage root", "executors: servers")
CURE = "give executors this package and its Python (docs/clusters.md, Where Spark runs)"
REACH = (
    "open the way from executors to the hosts of [cassandra] and [kafka], and put their certificates there "
    "(docs/clusters.md, Where Spark runs)"
)
# What Spark says where the minor version of an executor's Python is another one.
OTHER_PYTHON = ("PYTHON_VERSION_MISMATCH", "Python in worker has different version")
# Tasks at most: as many as run at once reach all executors of a small cluster.
MOST_TASKS = 64


def examine(settings: Settings, *, reads_kafka: bool, can_start: bool) -> Findings:
    """Check executors by a job.

    Args:
        settings: the configuration.
        reads_kafka: whether a pipeline that is examined reads topics.
        can_start: whether this machine has what a job needs.
    """
    if not can_start:
        for check in CHECKS:
            yield not_checked(check, "no Spark job can be started here")
        return
    try:
        with spark_session(settings, "doctor") as spark:
            yield from _of_workers(spark, settings, settings.kafka if reads_kafka else None)
    except TagmillError as error:
        yield wrong("executors", said_of(error), "correct [spark]")
        for check in CHECKS[1:]:
            yield not_checked(check, "the Spark job failed")


def _of_workers(spark: Any, settings: Settings, kafka: KafkaSettings | None) -> Findings:
    """Run Python on executors; `kafka`: that they read, if they do."""
    root = settings.storage.root
    look = partial(_look, cassandra=settings.cassandra, kafka=kafka)
    try:
        count = min(spark.sparkContext.defaultParallelism, MOST_TASKS)
        tasks = spark.sparkContext.parallelize([root] * count, count)
        told = sorted(set(tasks.mapPartitions(look).collect()))
    except Exception as error:
        yield _failed(error)
        for check in CHECKS[1:]:
            yield not_checked(check, "Python does not run on executors")
        return
    hosts = ", ".join(sorted({host for host, *_ in told}))
    others = {f"{python} on {host}" for host, python, *_ in told if python != own_minor()}
    if others:
        yield wrong("executors", f"Python {', '.join(sorted(others))}; here it is {own_minor()}", CURE)
    else:
        yield fine("executors", f"Python {own_minor()} on {hosts}")
    if failed := [f"{host}: {said}" for host, _, said, _ in told if said]:
        yield wrong(CHECKS[1], "; ".join(failed), "name a storage.root that all machines can write to")
    else:
        yield fine(CHECKS[1], f"{root}: written, read and removed a file on {hosts}")
    if failed := [f"{host}: {said}" for host, *_, said in told if said]:
        yield wrong(CHECKS[2], "; ".join(failed), REACH)
    else:
        yield fine(CHECKS[2], f"Cassandra{' and Kafka' if kafka else ''} answered {hosts}")


def _look(
    roots: Iterator[str], cassandra: CassandraSettings, kafka: KafkaSettings | None
) -> Iterator[tuple[str, str, str, str]]:
    """Yield host and Python of an executor, and why it can't write to the storage root, or reach a server ("" if it
    can).
    """
    for root in roots:
        said = ""
        try:
            try_storage(root)
        except Exception as error:  # its text is the finding
            said = said_of(error)
        yield socket.gethostname(), own_minor(), said, _reached(cassandra, kafka)


def _reached(cassandra: CassandraSettings, kafka: KafkaSettings | None) -> str:
    """Return why this process can't reach a server; "" if it reaches all."""
    try:
        connected(cassandra).now()
        if kafka is not None:
            with Kafka(kafka) as client:
                client.topics()
    except TagmillError as error:
        return said_of(error)
    return ""


def _failed(error: Exception) -> Finding:
    text = str(error)
    if any(words in text for words in OTHER_PYTHON):
        said = next(line for line in text.splitlines() if any(words in line for words in OTHER_PYTHON))
        cure = f"set PYSPARK_PYTHON to a Python {own_minor()} on all machines. {CURE}"
        return wrong("executors", said.rpartition("Error: ")[2].strip(), cure)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = next((line for line in lines if "No module named" in line), lines[-1] if lines else repr(error))
    return wrong("executors", f"Python does not run on executors: {said[:300]}", CURE)
