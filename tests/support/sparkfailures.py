"""Texts of failures that Spark passes on (shortened real traces), with the Tagmill error that each has to
become.
"""

from dataclasses import dataclass
from typing import Any

from tagmill import errors

TASK = (
    "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 "
    "times, most recent failure: "
)
WORKER = (
    "\n  An exception was thrown from the Python worker. Please see the stack trace below.\nTraceback "
    "(most recent call last):\n"
    '  File "worker.py", line 1, in write\n    raise guard\n'
)


class SparkFailure(Exception):
    """Stands for a Py4JJavaError, of which only the text is known."""


@dataclass(frozen=True)
class Failure:
    """A text, the error that it means, and words that the error's line contains."""

    text: str
    error: type[errors.TagmillError]
    words: tuple[str, ...]


def java(text: str) -> str:
    """Return the text of a Java failure with this cause below others, and with lines of its stack."""
    return (
        f"An error occurred while calling o97.load.\n: {TASK}\n\tat "
        f"org.apache.spark.A.b(A.scala:1)\nCaused by: {text}\n\t... 4 more\n"
    )


FAILURES = {
    "right to read": Failure(
        java(
            'cassandra.Unauthorized: Error from server: code=2100 [Unauthorized] message="User reader has no SELECT '
            'permission on <table shop.messages> or any of its parents"'
        ),
        errors.ConfigurationError,
        (
            "user reader has no SELECT permission on table shop.messages",
            "Nothing was sealed",
            "GRANT SELECT ON table shop.messages",
        ),
    ),
    "right to write": Failure(
        java(
            'cassandra.Unauthorized: Error from server: code=2100 [Unauthorized] message="User writer has no MODIFY '
            'permission on <table shop.tag_write_progress> or any of its parents"'
        ),
        errors.ConfigurationError,
        ("no MODIFY permission on table shop.tag_write_progress", "then run the same command again"),
    ),
    "memory": Failure(
        java("java.lang.OutOfMemoryError: Java heap space"), errors.SparkEnded, ("raise spark.driver_memory",)
    ),
    "disk": Failure(
        java("java.io.IOException: No space left on device"),
        errors.SparkEnded,
        ("no space left on its disk",),
    ),
    "start": Failure(
        "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.",
        errors.SparkEnded,
        ("needs Java 17",),
    ),
    "worker died": Failure(
        java("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"),
        errors.SparkEnded,
        ("a Python worker of Spark ended",),
    ),
    "storage refused": Failure(
        java(
            "com.amazonaws.services.s3.model.AmazonS3Exception: Forbidden (Service: Amazon S3; Status "
            "Code: 403; Error Code: 403)"
        ),
        errors.ConfigurationError,
        ("may not read or write below storage.root",),
    ),
    "folder refused": Failure(
        java("java.io.FileNotFoundException: /data/p/run-1/part-0.parquet (Permission denied)"),
        errors.ConfigurationError,
        ("may not read or write below storage.root",),
    ),
    "storage silent": Failure(
        java("org.apache.hadoop.fs.s3a.AWSClientIOException: getFileStatus: Unable to execute HTTP request"),
        errors.StoreUnavailable,
        ("the storage of storage.root did not answer Spark",),
    ),
    "no file system": Failure(
        java('org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3a"'),
        errors.ConfigurationError,
        ("Add it to spark.jars",),
    ),
    "guard in a worker": Failure(
        f"{WORKER}tagmill.errors.GuardRefused: records went while they were read. Nothing was sealed; "
        "run tagmill run abandon\n",
        errors.GuardRefused,
        ("records went while they were read. Nothing was sealed; run tagmill run abandon",),
    ),
    "guard in a worker, by the JVM": Failure(
        java(
            f"org.apache.spark.api.python.PythonException: {WORKER}tagmill.errors.PersistenceIdsRefused: "
            "two ids were refused\n"
        ),
        errors.PersistenceIdsRefused,
        ("two ids were refused",),
    ),
    "cassandra of a worker": Failure(
        f"{WORKER}tagmill.errors.StoreUnavailable: Cassandra at h:1 can't be reached. Nothing was done; "
        "is it up?\n",
        errors.StoreUnavailable,
        ("did not answer Spark (StoreUnavailable). Nothing was sealed.",),
    ),
    "file of a worker": Failure(
        f"{WORKER}tagmill.errors.StoreUnavailable: file:///data/x can't be written: disk full. Nothing "
        "was committed\n",
        errors.StoreUnavailable,
        ("file:///data/x can't be written: disk full. Nothing was committed",),
    ),
}


class BrokenSpark:
    """A Spark session of which every use raises this error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error

    def stop(self) -> None:
        """Do nothing, since nothing runs."""
