"""A small local Spark session for each module of tests."""

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tagmill.spark.session import JAVA_OPTIONS, PYTHON_DAEMON
from tests.conftest import SHORT_LIVED


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """Yield a Spark session of two threads that has no UI and listens on the loopback only."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Otherwise workers run the python3 of PATH.
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tagmill-tests")
        .config("spark.driver.memory", "1g")
        .config(JAVA_OPTIONS, SHORT_LIVED[JAVA_OPTIONS])
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.ansi.enabled", "false")
        .config("spark.python.daemon.module", PYTHON_DAEMON)
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
