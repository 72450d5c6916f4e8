"""Make the Spark session of a job, and its settings, which spark-submit needs before the session.

Imports pyspark only when asked.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any

import psutil

from tagmill.config.settings import Settings
from tagmill.config.sources import SECRET_NAMES
from tagmill.errors import ConfigurationError
from tagmill.runs import trace_log
from tagmill.runs.privacy import UMASK
from tagmill.runs.temporary_folders import of_this_process
from tagmill.spark import errors, job_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


JAVA_OPTIONS, LOCAL_DIR = "spark.driver.extraJavaOptions", "spark.local.dir"
FEW_PROCESSORS = 2
# Thresholds of Java's second compiler, ten times Java's own: in a short job, it pays only for code that runs
# very often.
HOT = {
    "InvocationThreshold": 50_000,
    "MinInvocationThreshold": 6_000,
    "CompileThreshold": 150_000,
    "BackEdgeThreshold": 400_000,
}
# Settings of a session for few rows, where these cost more time than they save: compiling each plan, planning
# again after each stage, describing plans, and more tasks than there are cores.
FEW_ROWS = {
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.ui.explainMode": "simple",
    "spark.sql.debug.maxToStringFields": "1",
}
# Flag of a JVM for few rows, which ends before the second compiler's code pays.
FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
# Seconds that a JVM may take to end in order, before it is killed.
END_SECONDS = 10
# Environment variable by which pyspark tells a JVM that it starts where to write its port.
PORT_FILE = "_PYSPARK_DRIVER_CONN_INFO_PATH"
# The newest Python that a major version of PySpark supports; those after 3.11 lack the module distutils.
NEWEST_PYTHON = {3: (3, 11), 4: (3, 13)}
# Module that executors' Python runs to fork its workers.
PYTHON_DAEMON = "tagmill.spark.python_daemon"
LOGGING = Path(__file__).with_name("log4j2.properties")


def spark_conf(settings: Settings, folder: Path | None = None, *, few_rows: bool = False) -> dict[str, str]:
    """Return the settings of a job's session. Only the session itself, or a private file, may get secret ones:
    a command line gets those of `public`.

    Args:
        settings: the configuration.
        folder: for the temporary files of a driver on this machine.
        few_rows: whether the job has little to read. It works with any number of rows, but slower with many.
    """
    jars = _jars(settings.spark.jars, settings.spark.conf)
    conf = {
        "spark.driver.memory": settings.spark.driver_memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.ansi.enabled": "false",  # checksums wrap modulo 2^64
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.files.maxPartitionBytes": "512m",
        "spark.sql.broadcastTimeout": "3600",  # seconds; what is joined may take long to read on a busy cluster
        "spark.sql.limit.initialNumPartitions": "16",  # instead of 1, then 4, then 16: each is a job
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.hadoop.parquet.compression.codec.zstd.level": "1",
        "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "2",
        "spark.hadoop.fs.permissions.umask-mode": f"{UMASK:03o}",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
        "spark.python.daemon.module": PYTHON_DAEMON,
        "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": os.environ["ARROW_DEFAULT_MEMORY_POOL"],
        "spark.redaction.regex": SECRET_NAMES.pattern,
        "spark.sql.redaction.options.regex": "(?i)url|password|jaas|keystore",
    }
    if few_rows:
        conf |= FEW_ROWS
    conf |= settings.spark.conf | jars
    given = conf.get(JAVA_OPTIONS, "")
    if options := " ".join(
        filter(
            None,
            (_sparing(given, few_rows), _archive(settings.spark.class_archive), _temporary(folder), given),
        )
    ):
        conf[JAVA_OPTIONS] = options
    return conf


def public(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings whose names do not say that their values are secrets."""
    return {key: value for key, value in conf.items() if not SECRET_NAMES.search(key)}


def _jars(folder: Path | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that give a session the jars of a folder; those that `given` settings of Spark name stand
    for them.

    Raises ConfigurationError for a folder without jars.
    """
    if folder is None or "spark.jars" in given:
        return {}
    jars = sorted(folder.glob("*.jar"))
    if not jars:
        raise ConfigurationError(
            f"spark.jars: there are no jars in {folder}. Nothing was started. Leave the key out if storage.root "
            "needs none"
        )
    return {"spark.jars": ",".join(str(jar.resolve()) for jar in jars)}


def _sparing(given: str, few_rows: bool) -> str:
    """Return flags for a driver's JVM on few processors, or for few rows: fewer compilations, and no G1, whose
    threads want a third processor.

    A garbage collector that the given options choose stays.
    """
    if (os.cpu_count() or 1) > FEW_PROCESSORS and not few_rows:
        return ""
    collector = [] if "GC" in given else ["-XX:+UseSerialGC"]
    compiler = [FIRST_COMPILER] if few_rows else [f"-XX:Tier4{name}={value}" for name, value in HOT.items()]
    return " ".join([*collector, *compiler])


def _temporary(folder: Path | None) -> str:
    """Return the flag that makes a JVM keep its temporary files in a folder; none for a path with a space,
    which can't be passed.
    """
    return "" if folder is None or " " in str(folder) else f"-Djava.io.tmpdir={folder}"


def _archive(file: Path | None) -> str:
    """Return the flags that let the driver's JVM use a class data archive; a JVM that can't use the archive
    starts without it.

    There are none if the file is missing, or for a path with a space, which can't be passed.
    """
    if file is None or not file.exists() or " " in str(file):
        return ""
    return f"-XX:SharedArchiveFile={file.resolve()} -Xlog:disable -Xlog:all=error:stderr"


def session(
    settings: Settings, *, name: str = "tagmill", log: Path | None = None, few_rows: bool = False
) -> SparkSession:
    """Start the session of this job: under spark-submit the master is already decided, else it is
    `spark.master`.

    Args:
        settings: the configuration.
        name: of the application.
        log: file to which a JVM that is started here writes what it would print on the terminal.
        few_rows: as spark_conf takes it.
    """
    require_python(sys.version_info[:2], version("pyspark"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(name)
    if not job_environment.is_decided():
        builder = builder.master(settings.spark.master)
        if settings.spark.master.startswith("local"):
            builder = builder.config("spark.driver.host", "127.0.0.1").config(
                "spark.driver.bindAddress", "127.0.0.1"
            )
    folder = _own_folder(settings)
    conf = spark_conf(settings, folder, few_rows=few_rows) | ({LOCAL_DIR: str(folder)} if folder else {})
    for key, value in conf.items():
        builder = builder.config(key, value)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={LOGGING.as_uri()}")
    with _without_leftover():
        spark = _started(builder, log)
    spark.sparkContext.setLogLevel("ERROR")
    _keep_names(spark)
    return spark


def require_python(python: tuple[int, ...], pyspark: str) -> None:
    """Raise ConfigurationError for a Python that this version of PySpark does not support."""
    newest = NEWEST_PYTHON.get(int(pyspark.partition(".")[0]), python)
    if python > newest:
        supported, this = (".".join(map(str, one)) for one in (newest, python))
        cure = f"Install tagmill[spark] into an environment of Python {supported}"
        if pyspark.startswith("3."):
            cure += ", or tagmill[spark4] into this one"
        raise ConfigurationError(
            f"Spark's jobs need Python {supported}, the newest that PySpark {pyspark} supports; this is {this}. "
            f"Nothing was started. {cure}"
        )


def _own_folder(settings: Settings) -> Path | None:
    """Return the folder for temporary files of a JVM that is started here; None if spark-submit or a cluster
    has its own.
    """
    if job_environment.is_decided() or not settings.spark.master.startswith("local") or names_disks(settings):
        return None
    return of_this_process(settings.spark.conf.get(LOCAL_DIR)).path


def names_disks(settings: Settings) -> bool:
    """Return whether folders for Spark's temporary files are configured that a job's own folder can't
    replace.
    """
    return "SPARK_LOCAL_DIRS" in os.environ or "," in settings.spark.conf.get(LOCAL_DIR, "")


def _started(builder: SparkSession.Builder, log: Path | None) -> SparkSession:
    """Start the session without secrets on the JVM's command line, where pyspark writes all settings, and
    without pyspark's handler of Ctrl-C, which would use the connection of the call that it interrupts.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        options = {key: str(value) for key, value in builder._options.items()}
        conf = SparkConf(loadDefaults=False).setAll(list(public(options).items()))
        with nullcontext() if log is None else log.open("ab") as lines:
            shown = {} if lines is None else {"stdout": lines, "stderr": lines}
            gateway = launch_gateway(conf, shown)  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway, conf=conf)
    if threading.current_thread() is not threading.main_thread():
        return builder.getOrCreate()
    before = signal.getsignal(signal.SIGINT)
    try:
        spark = builder.getOrCreate()
    finally:
        signal.signal(signal.SIGINT, before)
    if log is not None:  # the handler would print how the connection of an ended JVM broke
        setattr(spark.sparkContext._accumulatorServer, "handle_error", lambda *_: None)  # noqa: B010
    return spark


@contextmanager
def _without_leftover() -> Iterator[None]:
    """End a JVM whose start is interrupted: pyspark takes away the folder in which the JVM would say its port, so the
    JVM fails and yet waits for connections, for ever.
    """
    from pyspark import SparkContext

    try:
        yield
    except BaseException as error:
        if SparkContext._gateway is None:
            for child in psutil.Process().children():
                with suppress(psutil.Error):
                    if PORT_FILE in child.environ():
                        child.kill()
        elif errors.was_interrupted(error):
            _end_jvm()
        raise


class _Kept:
    """A package of the JVM, or a class of which no objects are made; each name in it is looked up once."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Any:
        from py4j.java_gateway import JavaPackage

        found = getattr(self._of, name)
        kept = _Kept(found) if isinstance(found, JavaPackage) else found
        setattr(self, name, kept)
        return kept


def _keep_names(spark: SparkSession) -> None:
    """Look up and keep the JVM's names that pyspark uses; otherwise, py4j searches all jars for them, and all
    methods of a class, at every column that is made.
    """
    jvm: Any = spark.sparkContext._jvm
    for name in ("functions", "PythonUtils", "PythonSQLUtils", "java", "org"):
        setattr(jvm, name, _Kept(getattr(jvm, name)))
    for name in ("SparkSession", "Column", "Dataset"):
        setattr(jvm, name, getattr(jvm, name))


@contextmanager
def setting(spark: SparkSession, key: str, value: str) -> Iterator[None]:
    """Set one of the session's settings within a context, and restore it at the end."""
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
def spark_session(settings: Settings, name: str, *, few_rows: bool = False) -> Iterator[SparkSession]:
    """Yield a session, and stop it at the end.

    An error of Spark is explained, and its trace is written to a log. `few_rows`: as spark_conf takes it.

    Raises the error that tagmill.spark.errors makes of it; KeyboardInterrupt when a person stopped it. A
    defect passes as it is.
    """
    log = trace_log.new_file(trace_log.folder_of(settings.storage.root), name)
    kept = False
    try:
        shown = log if is_quiet() else None
        with _stopped_at_the_end(session(settings, name=name, log=shown, few_rows=few_rows)) as spark:
            yield spark
    except Exception as error:
        if errors.was_interrupted(error):
            raise KeyboardInterrupt from None
        told = errors.not_fetched(log) or errors.explain(error, _where(settings)) or errors.ended()
        cause = error.__cause__ if told is error else error
        kept = cause is not None
        if told is None:
            error.add_note(f"Spark's own log: {log}")
            raise
        if cause is not None:
            told.trace_file = trace_log.append(log, cause)
        if told is error:
            raise
        raise told from error
    finally:
        if log is not None and not kept:
            log.unlink(missing_ok=True)


@contextmanager
def _stopped_at_the_end(spark: SparkSession) -> Iterator[SparkSession]:
    """Yield a session, and stop it in order unless a person interrupts; the error that came first is the one
    that passes.
    """
    try:
        yield spark
    except BaseException as error:
        if errors.was_interrupted(error):
            _end_jvm()
        else:
            with suppress(Exception), warnings.catch_warnings(action="ignore"):
                spark.stop()
        raise
    else:
        spark.stop()


def _end_jvm() -> None:
    """End the JVM of this process, since an interrupted call leaves its connection in the middle of an
    answer.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:  # the JVM is spark-submit's, and this process is a part of it
        return
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def is_quiet() -> bool:
    """Return whether this process logs less than INFO: then it also hides what Spark prints."""
    return not logging.getLogger().isEnabledFor(logging.INFO)


def _where(settings: Settings) -> str:
    return f"Cassandra at {', '.join(settings.cassandra.hosts)}:{settings.cassandra.port}"


@contextmanager
def session_when_asked(
    settings: Settings,
    name: str,
    *,
    at_once: bool = False,
    has_few_rows: Callable[[], bool] = lambda: False,
) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that makes a session when it is first called, and returns the same one later; the
    session is stopped at the end.

    Args:
        settings: the configuration.
        name: of the application.
        at_once: whether the session is made before the block.
        has_few_rows: returns whether the job has little to read; it is asked before the session is made.
    """
    with ExitStack() as stack:
        made = cache(lambda: stack.enter_context(spark_session(settings, name, few_rows=has_few_rows())))
        if at_once:
            made()
        yield made
