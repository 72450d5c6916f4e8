"""The Spark session of a job, and its settings, which spark-submit needs before there is a session. Imports pyspark only when asked."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any

from tagmill.errors import ConfigurationError, SparkEnded, TagmillError
from tagmill.runs.privacy import UMASK
from tagmill.runs.workspace import of_this_process
from tagmill.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_OPTIONS, LOCAL_DIR = "spark.driver.extraJavaOptions", "spark.local.dir"
FEW_PROCESSORS = 2
# ten times Java's own: its second compiler costs a short job more than it gives, but for what runs very often
HOT = {"InvocationThreshold": 50_000, "MinInvocationThreshold": 6_000, "CompileThreshold": 150_000, "BackEdgeThreshold": 400_000}
READS_AT = "spark.cassandra.input.consistency.level"
KILLED = "Where nobody killed it, memory has run out: that of the machine, or spark.driver_memory"
# what its errors say, and what that means
ENDED = {
    r"\[JAVA_GATEWAY_EXITED\]": f"Spark's JVM ended while it started: it needs Java 17, by JAVA_HOME or on PATH. {KILLED}",
    # at its work, or while it waited for more
    r"Python worker exited unexpectedly|java\.net\.SocketException.*\bPythonRunner\b": f"a Python worker of Spark ended. {KILLED}",
    r"java\.lang\.OutOfMemoryError": "Spark's JVM has no memory left: spark.driver_memory",
    r"java\.io\.IOException: No space left on device": "Spark has no space left on its disk: spark.local.dir, which is /tmp if not set",
}
LOGGING = Path(__file__).with_name("log4j2.properties")


def spark_conf(settings: Settings, folder: Path | None = None) -> dict[str, str]:
    """Return the settings of a job's session, without secrets: those come from the environment into the session itself.

    Args:
        settings: the configuration.
        folder: for the temporary files of a driver on this machine.
    """
    jars = sorted(settings.spark.jars.glob("*.jar"))
    if not jars:
        raise ConfigurationError(
            f"spark.jars: there are no jars in {settings.spark.jars}; bin/setup fetches them into build/jars/spark of the clone"
        )
    cassandra = settings.cassandra
    conf = {
        "spark.jars": ",".join(str(jar.resolve()) for jar in jars),
        "spark.driver.memory": settings.spark.driver_memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.ansi.enabled": "false",  # checksums wrap modulo 2^64
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.files.maxPartitionBytes": "512m",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.hadoop.parquet.compression.codec.zstd.level": "1",
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.fs.permissions.umask-mode": f"{UMASK:03o}",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": os.environ["ARROW_DEFAULT_MEMORY_POOL"],
        "spark.sql.redaction.options.regex": "(?i)url|password|jaas",
        "spark.sql.extensions": "com.datastax.spark.connector.CassandraSparkExtensions",
        "spark.cassandra.connection.host": ",".join(cassandra.hosts),
        "spark.cassandra.connection.port": str(cassandra.port),
        "spark.cassandra.connection.localDC": cassandra.local_datacenter,
        "spark.cassandra.connection.reconnectionDelayMS.max": "5000",  # a node that was restarted is asked again before a read gives up
        READS_AT: cassandra.own_consistency,
        "spark.cassandra.output.consistency.level": "LOCAL_QUORUM",
        "spark.cassandra.output.ignoreNulls": "true",
        "spark.cassandra.read.timeoutMS": str(int(cassandra.request_timeout_seconds * 1000)),
        "spark.cassandra.input.fetch.sizeInRows": "5000",
    }
    if cassandra.tls:
        conf["spark.cassandra.connection.ssl.enabled"] = "true"
    conf |= settings.spark.conf
    given = conf.get(JAVA_OPTIONS, "")
    if options := " ".join(filter(None, (_sparing(given), _archive(settings.spark.class_archive), _temporary(folder), given))):
        conf[JAVA_OPTIONS] = options
    return conf


def _sparing(given: str) -> str:
    """Flags for a driver's JVM on few processors. A garbage collector that its options choose stays: G1's threads want a third one."""
    if (os.cpu_count() or 1) > FEW_PROCESSORS:
        return ""
    collector = [] if "GC" in given else ["-XX:+UseSerialGC"]
    return " ".join([*collector, *(f"-XX:Tier4{name}={value}" for name, value in HOT.items())])


def _temporary(folder: Path | None) -> str:
    """Return the flag that has a JVM keep its temporary files in a folder; a path with a space can't be told to it."""
    return "" if folder is None or " " in str(folder) else f"-Djava.io.tmpdir={folder}"


def _archive(file: Path | None) -> str:
    """Flags for the driver's JVM, which starts without the archive where it can't use it; a path with a space can't be told to it."""
    if file is None or not file.exists() or " " in str(file):
        return ""
    return f"-XX:SharedArchiveFile={file.resolve()} -Xlog:disable -Xlog:all=error:stderr"


def session(settings: Settings, *, name: str = "tagmill") -> SparkSession:
    """The session of this job: under spark-submit the master is already decided, else it is `spark.master`."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if "SPARK_ENV_LOADED" not in os.environ:  # set by spark-submit's launcher
        builder = builder.master(settings.spark.master)
        if settings.spark.master.startswith("local"):
            builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    for key, value in spark_conf(settings).items():
        builder = builder.config(key, value)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={LOGGING.as_uri()}")
    spark = builder.getOrCreate()
    for key, value in {**_credentials(settings), **application_reads(settings)}.items():
        spark.conf.set(key, value)  # after the start: settings given before it stand on the JVM's command line
    spark.sparkContext.setLogLevel("ERROR")
    _keep_names(spark)
    return spark


def names_disks(settings: Settings) -> bool:
    """Return True where folders for Spark's temporary files are given that a job's own can't replace."""
    return "SPARK_LOCAL_DIRS" in os.environ or "," in settings.spark.conf.get(LOCAL_DIR, "")


def application_reads(settings: Settings) -> dict[str, str]:
    """The connector's settings for the keyspaces of the application, which are read at `read_consistency`."""
    cassandra, keyspaces = settings.cassandra, {pipeline.keyspace for pipeline in settings.pipelines.values()}
    return {f"default:{one}/{READS_AT}": cassandra.read_consistency for one in keyspaces - {cassandra.ledger_keyspace}}


def _keep_names(spark: SparkSession) -> None:
    """Look the JVM's names that pyspark uses up once: py4j searches all jars for them at every column that is made."""
    jvm: Any = spark.sparkContext._jvm
    for name in ("functions", "PythonUtils", "PythonSQLUtils", "SparkSession", "Column", "Dataset", "java", "org"):
        setattr(jvm, name, getattr(jvm, name))


@contextmanager
def setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """One of the session's settings is another one meanwhile."""
    before = spark.conf.get(key, None)
    spark.conf.set(key, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, before)


@contextmanager
def spark_session(settings: Settings, name: str) -> Iterator[SparkSession]:
    """A session that is stopped at the end; raises SparkEnded where what Spark runs in ended before."""
    try:
        spark = session(settings, name=name)
        try:
            yield spark
        finally:
            spark.stop()
    except Exception as error:
        if isinstance(error, TagmillError) or not (ended := _ended(error)):
            raise
        raise SparkEnded(f"{ended}. Nothing is lost: run the same command again; every step is safe to repeat") from None


def _ended(error: Exception) -> str | None:
    """Why Spark could not go on; under spark-submit the JVM outlives this process. None: it could."""
    from pyspark import SparkContext

    for said, means in ENDED.items():
        if re.search(said, str(error), re.DOTALL):
            return means
    process = getattr(SparkContext._gateway, "proc", None)
    try:
        return f"Spark's JVM ended (exit status {process.wait(1)}). {KILLED}" if process else None
    except TimeoutExpired:
        return None


@contextmanager
def session_when_asked(settings: Settings, name: str) -> Iterator[Callable[[], SparkSession]]:
    """What makes a session when it is called first, and gives the same one afterwards; stopped at the end if there is one."""
    with ExitStack() as stack:
        yield cache(lambda: stack.enter_context(spark_session(settings, name)))


def _credentials(settings: Settings) -> dict[str, str]:
    """The connector's user, password and trusted certificates (Spark redacts keys that say 'password')."""
    cassandra = settings.cassandra
    conf = {}
    if cassandra.username is not None and cassandra.password is not None:
        conf["spark.cassandra.auth.username"] = cassandra.username
        conf["spark.cassandra.auth.password"] = cassandra.password.get_secret_value()
    if cassandra.tls and cassandra.tls_ca_file:
        conf |= trust_store(cassandra.tls_ca_file, of_this_process().path)
    return conf


def trust_store(ca_file: Path, folder: Path) -> dict[str, str]:
    """A PEM file of certificate authorities as the trust store that Java wants, and the settings that name it.

    Executors beyond this machine don't see the folder: there, give `spark.conf` a trust store that they have.
    """
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
    from cryptography.x509 import load_pem_x509_certificates

    password = secrets.token_urlsafe(16)
    try:
        authorities = load_pem_x509_certificates(ca_file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cassandra.tls_ca_file: {ca_file} can't be read as PEM certificates: {error}") from None
    entries = [pkcs12.PKCS12Certificate(authority, f"ca-{i}".encode()) for i, authority in enumerate(authorities)]
    file = folder / "trusted.p12"
    file.touch(mode=0o600)
    file.write_bytes(pkcs12.serialize_java_truststore(entries, BestAvailableEncryption(password.encode())))
    prefix = "spark.cassandra.connection.ssl.trustStore"
    return {f"{prefix}.path": str(file), f"{prefix}.password": password, f"{prefix}.type": "PKCS12"}
