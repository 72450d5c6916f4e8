"""Turn whatever comes out of a Spark call or a driver into one error with one line and the right exit status
(docs/decisions/0032).

A task's failure reaches the driver program as text only, so causes are told apart by what the text says.
"""

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from subprocess import TimeoutExpired

from tagmill.cassandra.permissions import missing_right
from tagmill.errors import (
    AGAIN,
    ConfigurationError,
    SparkEnded,
    StoreUnavailable,
    TagmillError,
    TransientError,
    UnexpectedError,
)
from tagmill.runs import trace_log

KEPT = "What was committed stays"
KILLED = "Where nobody killed it, memory has run out: that of the machine, or spark.driver_memory"

# modules of errors, and whose they are
OTHER_DRIVERS = {
    "clickhouse_connect": "ClickHouse",
    "urllib3": "ClickHouse",
    "cimpl": "Kafka",
    "confluent_kafka": "Kafka",
}
# what Spark logs of a package that none of its repositories gave
UNRESOLVED = r"unresolved dependency: (?P<package>[^:\s]+#[^:\s]+;[^:\s]+): not found"
REFUSED = re.compile(r"(?i)auth|certificate|ssl|privileges|denied")
# a guard's error in a Python worker: its module, its class and the line that it says
RAISED = re.compile(r"^(?:[\w.]+: )?(tagmill(?:\.\w+)*)\.(\w+): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a Spark call failed: what the text says, the error it means, and the line, which may use `where`
    and the pattern's groups.
    """

    says: str
    error: type[TagmillError]
    line: str

    def error_of(self, text: str, where: str, untouched: str) -> TagmillError | None:
        """Return the error if the text says so."""
        said = re.search(self.says, text, re.DOTALL)
        if said is None:
            return None
        return self.error(self.line.format(where=where, untouched=untouched, **said.groupdict()))


# in this order: the first that the text names
CAUSES = (
    Cause(
        r"java\.lang\.OutOfMemoryError",
        SparkEnded,
        f"Spark's JVM has no memory left: raise spark.driver_memory. {{untouched}}. {AGAIN}",
    ),
    Cause(
        r"No space left on device",
        SparkEnded,
        "Spark has no space left on its disk: spark.local.dir, which is /tmp if not set, or "
        f"storage.root. {{untouched}}. {AGAIN}",
    ),
    Cause(
        r"\[JAVA_GATEWAY_EXITED\]",
        SparkEnded,
        f"Spark's JVM ended while it started: it needs Java 17, by JAVA_HOME or on PATH. {KILLED}. {AGAIN}",
    ),
    # at its work, or while it waited for more
    Cause(
        r"Python worker exited unexpectedly|java\.net\.SocketException.*\bPythonRunner\b|\nMemoryError\b",
        SparkEnded,
        f"a Python worker of Spark ended. {KILLED}. {{untouched}}. {AGAIN}",
    ),
    Cause(
        r"AccessControlException|AccessDeniedException|Status Code: 40[13]|\(Permission denied\)",
        ConfigurationError,
        "Spark may not read or write below storage.root. {untouched}. Correct the rights there, then run "
        "the same command again",
    ),
    Cause(
        r"No FileSystem for scheme|ClassNotFoundException: Class org\.apache\.hadoop\.fs\.",
        ConfigurationError,
        "Spark has no jar for the file system of storage.root. {untouched}. Add it to spark.jars",
    ),
    Cause(
        r"org\.apache\.hadoop\.net\.ConnectTimeoutException|AWSClientIOException|SdkClientException|Status Code: 50[0-9]"
        r"|java\.net\.(?:UnknownHost|NoRouteToHost)Exception",
        StoreUnavailable,
        f"the storage of storage.root did not answer Spark. {{untouched}}. {AGAIN}",
    ),
)


def chain(error: BaseException, *, suppressed: bool = True) -> Iterator[BaseException]:
    """Yield an error and those behind it, with those that a trace leaves out unless told otherwise."""
    seen, one = set[int](), error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        context = one.__context__ if suppressed or not one.__suppress_context__ else None
        one = one.__cause__ or context  # type: ignore[assignment]


def text_of(error: BaseException) -> str:
    """Return what an error and those behind it say, but for words that died with the JVM."""
    texts = list[str]()
    for one in chain(error, suppressed=False):
        said = ""
        with suppress(Exception):  # Py4J asks the JVM for the words of its error
            said = str(one)
        texts.append(f"{type(one).__name__}: {said}")
    return "\n".join(texts)


def was_interrupted(error: BaseException) -> bool:
    """Return True where an error only came up because a person or a signal stopped the process."""
    return any(isinstance(one, KeyboardInterrupt) for one in chain(error))


def explain(error: BaseException, where: str, untouched: str = KEPT) -> TagmillError | None:
    """Return what an error means, None for a defect.

    Args:
        error: what came out of a Spark call.
        where: the Cassandra that Spark works on, for the message.
        untouched: what is true whatever has happened, for the message.
    """
    if isinstance(error, StoreUnavailable):
        return error.leaving(untouched)
    if isinstance(error, TagmillError):
        return error
    text = text_of(error)
    if raised := _raised_in_worker(text, where, untouched):
        return raised
    if right := missing_right(text):
        return ConfigurationError(
            f"{where} refused Spark: {right.said}. {untouched}. {right.way_out}, then run the same "
            "command again"
        )
    causes = (cause.error_of(text, where, untouched) for cause in CAUSES)
    return next(filter(None, causes), None) or _of_driver(error, where) or _of_system(error, untouched)


def tell(error: Exception, folder: Path, name: str) -> TagmillError:
    """Return any error as one line, a defect too, and log its trace in a folder, under a name."""
    told = explain(error, "Cassandra")
    if told is None:
        said = " ".join(text_of(error).splitlines()[0].split())[:300]
        told = UnexpectedError(f"unexpected {said.rstrip(':')}. {KEPT}")
    if told is not error:
        told.trace_file = trace_log.append(trace_log.new_file(folder, name), error)
    return told


def _of_driver(error: BaseException, where: str) -> TagmillError | None:
    """Return what an error of a Python driver means that passed its store."""
    driver = type(error).__module__.partition(".")[0]
    if driver == "cassandra":
        from tagmill.cassandra import client

        try:
            with client.explained(where):
                raise error
        except TagmillError as told:
            return told
        except Exception:
            return None
    if server := OTHER_DRIVERS.get(driver):
        said = " ".join(str(error).split())[:300]
        if REFUSED.search(said):
            return ConfigurationError(
                f"{server} refused: {said}. {KEPT}. Correct [{server.lower()}], or the user's rights"
            )
        return StoreUnavailable(f"{server} did not answer: {said}. {AGAIN}")
    return None


def _of_system(error: BaseException, untouched: str) -> TagmillError | None:
    """Return what an error of the operating system means, if it names a file; no memory left is one, too."""
    if isinstance(error, MemoryError):
        return TransientError(f"this process has no memory left. {untouched}. {AGAIN}")
    if not isinstance(error, OSError) or error.filename is None:
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return TransientError(
            f"no space left on the disk of {error.filename}. {untouched}. Make room. {AGAIN}"
        )
    return ConfigurationError(f"{error.filename}: {error.strerror}. {untouched}")


def _raised_in_worker(text: str, where: str, untouched: str) -> TagmillError | None:
    """Return the error that a guard raised in a Python worker, with its own words and exit status."""
    found = [(_class(module, name), said) for module, name, said in RAISED.findall(text)]
    raised = [(kind, said) for kind, said in found if kind is not None]
    if not raised:
        return None
    kind, said = raised[-1]
    if issubclass(kind, StoreUnavailable) and said.startswith(
        "Cassandra"
    ):  # what it left untouched is what the operation knows
        return kind(f"{where} did not answer Spark ({kind.__name__}). {untouched}. {AGAIN}")
    return kind(said)


def _class(module: str, name: str) -> type[TagmillError] | None:
    try:
        kind = getattr(import_module(module), name, None)
    except ImportError:
        return None
    return kind if isinstance(kind, type) and issubclass(kind, TagmillError) else None


def not_fetched(log: Path | None) -> StoreUnavailable | None:
    """Return an error where a starting JVM could not fetch the packages that it was told to, as its log says."""
    if log is None or (said := re.search(UNRESOLVED, log.read_text(errors="replace"))) is None:
        return None
    return StoreUnavailable(
        f"Spark could not fetch {said['package']} from its repositories. Nothing was started. Give this machine "
        'a network or spark.conf."spark.jars.repositories", or name a folder of the jars in spark.jars. Then run '
        "the same command again"
    )


def ended() -> SparkEnded | None:
    """Return an error where Spark's JVM has ended; under spark-submit it outlives this process."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    try:
        return (
            SparkEnded(f"Spark's JVM ended (exit status {process.wait(1)}). {KILLED}. {KEPT}. {AGAIN}")
            if process
            else None
        )
    except TimeoutExpired:
        return None


@contextmanager
def explained(where: str, untouched: str | Callable[[], str] = "Nothing was sealed") -> Iterator[None]:
    """Raise what an error of Spark means; a defect passes as it is.

    Args:
        where: the Cassandra that Spark works on, for the message.
        untouched: what the operation knows to be true at any moment, or what tells it by then.
    """
    try:
        yield
    except Exception as error:
        if was_interrupted(error):
            raise KeyboardInterrupt from None
        told = explain(error, where, untouched if isinstance(untouched, str) else untouched())
        if told is None or told is error:
            raise
        raise told from error
