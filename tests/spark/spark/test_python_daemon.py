"""The Python workers of a job start with what they need, and find each module once."""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from zipimport import zipimporter

import pyarrow as pa
import pyspark
import pytest

from tagmill.spark.python_daemon import without_archives

INSTALLED = Path(pyspark.__file__).parent
ZIP, SITE = str(INSTALLED / "python" / "lib" / "pyspark.zip"), str(INSTALLED.parent)


@pytest.mark.parametrize(
    ("path", "left"),
    [
        ([ZIP, "/any/jars/spark-core.jar", "", SITE], ["", SITE]),
        (["/elsewhere/python/lib/pyspark.zip", SITE], ["/elsewhere/python/lib/pyspark.zip", SITE]),
        ([ZIP, "/nothing"], [ZIP, "/nothing"]),
    ],
    ids=["of the installed one", "of another installation", "nothing installed"],
)
def test_copies_of_the_installed_pyspark_leave_the_path(path, left):
    assert without_archives(path) == left


def test_workers_are_forked_from_our_daemon(spark):
    """A worker begins with what reads Cassandra, and knows no archive but another installation's."""
    rows = spark.range(1, numPartitions=1).mapInArrow(told, "text string").collect()
    daemon, loaded, *found = (row.text for row in rows)
    assert "-m tagmill.spark.python_daemon" in daemon and found == [pyspark.__file__]
    assert loaded == "tagmill.spark.cassandra_table is loaded: True"


def told(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the command of this worker's parent, what is loaded, pyspark's file, and the archives that it knows."""
    reader = "tagmill.spark.cassandra_table"
    for _ in batches:
        command = Path(f"/proc/{os.getppid()}/cmdline").read_text().rstrip("\0").replace("\0", " ")
        archives = [
            entry for entry, finder in sys.path_importer_cache.items() if isinstance(finder, zipimporter)
        ]
        yield pa.record_batch(
            {"text": [command, f"{reader} is loaded: {reader in sys.modules}", pyspark.__file__, *archives]}
        )
