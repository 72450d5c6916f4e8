"""Archive the classes that each Spark job loads: mapping the archive takes half the time of reading,
verifying and linking them.

`python -m local.class_archive` writes build/spark-classes.jsa unless the file exists and is newer than PySpark's
jars. A JVM that can't use the archive (another version, another class path) starts without it, silently. A
failure here is therefore reported in one line; it only costs each job some seconds.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from local.java import java_home
from local.layout import ROOT

FILE = ROOT / "build" / "spark-classes.jsa"
SECONDS = 300


def main() -> int:
    """Write the archive in a separate process, whose JVM writes it at its end; return 0 even if that
    fails.
    """
    spec = importlib.util.find_spec("pyspark")
    jars = Path(spec.origin).parent.glob("jars/*.jar") if spec and spec.origin else ()
    newest = max((jar.stat().st_mtime for jar in jars), default=0.0)
    if FILE.exists() and FILE.stat().st_mtime > newest:
        return 0
    print("setup: archive of the classes of Spark jobs")
    FILE.unlink(missing_ok=True)
    draft = FILE.with_suffix(".draft")
    try:
        environment = {**os.environ, "JAVA_HOME": java_home(), "PYSPARK_PYTHON": sys.executable}
        program = [sys.executable, "-m", "local.class_archive", str(draft)]
        subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS, check=True)
        draft.replace(FILE)
    except (OSError, subprocess.SubprocessError) as error:
        print(
            f"setup: the archive could not be made ({error}); jobs start without it, some seconds slower",
            file=sys.stderr,
        )
    return 0


def record(file: str) -> None:
    """Run a Spark session that plans, joins, sorts and writes a little, and archive the classes that it
    loaded in `file`.
    """
    from pyspark.sql import SparkSession, Window
    from pyspark.sql import functions as F

    conf: dict[str, bool | float | int | str | None] = {
        "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={file} -Xlog:disable",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    with TemporaryDirectory() as folder:
        rows = spark.range(1000).select("id", F.concat(F.lit("p-"), F.col("id") % 7).alias("persistence_id"))
        rows.write.parquet(f"{folder}/rows")
        rows = spark.read.parquet(f"{folder}/rows")
        last = Window.partitionBy("persistence_id").orderBy("id")
        ranked = rows.withColumn("number", F.row_number().over(last)).withColumn(
            "hash", F.xxhash64("persistence_id", "id")
        )
        counts = ranked.groupBy("persistence_id").agg(
            F.count("*").alias("rows"), F.max("number"), F.collect_list("id")
        )
        ranked.join(counts, "persistence_id", "left").orderBy("hash").write.parquet(f"{folder}/joined")
        spark.createDataFrame([("p-1",)], "persistence_id string").join(
            rows, "persistence_id", "left_anti"
        ).collect()
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:]:
        record(sys.argv[1])
    else:
        sys.exit(main())
