"""The process that Spark forks its Python workers from: it has what each of them needs before they start.

Spark runs this module by name (PYTHON_DAEMON of session.py) in place of its own daemon, pyspark.daemon.
"""

import gc
import sys
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path


def without_archives(path: Sequence[str]) -> list[str]:
    """Return an import path without the archives that Spark puts in front and no import needs.

    They are its jar, and the zip files in which an installed pyspark on the path has itself once more; those of
    another installation stay. A worker reads the folder of each anew for every task, which takes longer than a
    small task itself.
    """
    installed = PathFinder.find_spec("pyspark", [entry for entry in path if not entry.endswith(".zip")])
    own = Path(installed.origin).resolve().parent if installed and installed.origin else None
    return [
        entry for entry in path if not entry.endswith(".jar") and own not in Path(entry).resolve().parents
    ]


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    sys.path_importer_cache.clear()
    import pandas  # noqa: F401, ICN001
    import pyarrow  # noqa: F401, ICN001
    from pyspark.daemon import manager

    import tagmill.spark.cassandra_table  # noqa: F401

    # A worker collects garbage after every task: what is loaded by now is none.
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]
