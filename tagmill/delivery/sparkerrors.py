"""Spark's errors in Tagmill's words: where Cassandra or the storage did not answer, the same step again may succeed; others are defects."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PythonException

from tagmill.errors import ConfigurationError, StoreUnavailable

# exceptions of the Java driver below the connector, and a Python worker's own; a task's failure reaches the driver program as text only
UNANSWERED = re.compile(
    r"com\.datastax\.oss\.driver\.api\.core\."
    r"(AllNodesFailed|NoNodeAvailable|DriverTimeout|RequestThrottling|connection\.\w+|"
    r"servererrors\.(ReadTimeout|ReadFailure|WriteTimeout|WriteFailure|Unavailable|Overloaded|Bootstrapping))Exception"
    r"|Failed to open native connection to Cassandra"
    r"|tagmill\.errors\.StoreUnavailable(?=: Cassandra)"
)
# a Python worker's own: the line that it says
UNWRITTEN = re.compile(r"tagmill\.errors\.StoreUnavailable: (\S+ can't be (?:written|read): .+)")
REFUSED = re.compile(r"tagmill\.errors\.ConfigurationError: (Cassandra at .+)")


@contextmanager
def explained(where: str, untouched: str = "Nothing was sealed") -> Iterator[None]:
    """Raise StoreUnavailable where a Spark job failed because Cassandra (`where`) did not answer, or files can't be written.

    ConfigurationError: Cassandra refused what a Python worker asked of it.
    """
    try:
        yield
    except (Py4JJavaError, PythonException) as error:
        if said := UNWRITTEN.search(str(error)):
            raise StoreUnavailable(said[1]) from None
        if refused := REFUSED.search(str(error)):
            raise ConfigurationError(refused[1]) from None
        found = UNANSWERED.search(str(error))
        if found is None:
            raise
        raise StoreUnavailable(
            f"{where} did not answer Spark ({found[0].rpartition('.')[2]}). {untouched}. "
            "Run the same command again; every step is safe to repeat"
        ) from None
