"""An archive of the classes that each Spark job loads: mapped instead of read, verified and linked they take half the time.

python -m local.classes makes build/spark-classes.jsa unless it is there and newer than the jars. A JVM that can't use it (another version,
another class path) starts without it, silently; so whatever goes wrong here is told in a line, and costs seconds a job.
"""

import os
import subprocess
import sys
from tempfile import TemporaryDirectory

from local.java import java_home
from local.places import ROOT

FILE = ROOT / "build" / "spark-classes.jsa"
JARS = ROOT / "build" / "jars" / "spark"
SECONDS = 300


def main() -> int:
    """Make it in a process of its own, whose JVM writes it when it ends."""
    newest = max((jar.stat().st_mtime for jar in JARS.glob("*.jar")), default=0.0)
    if FILE.exists() and FILE.stat().st_mtime > newest:
        return 0
    print("setup: archive of the classes of Spark jobs")
    FILE.unlink(missing_ok=True)
    draft = FILE.with_suffix(".draft")
    try:
        environment = {**os.environ, "JAVA_HOME": java_home(), "PYSPARK_PYTHON": sys.executable}
        program = [sys.executable, "-m", "local.classes", str(draft)]
        subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS, check=True)
        draft.replace(FILE)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"setup: the archive could not be made ({error}); jobs start without it, some seconds slower", file=sys.stderr)
    return 0


def record(file: str) -> None:
    """A session that plans, joins, sorts and writes a little."""
    from pyspark.sql import SparkSession, Window
    from pyspark.sql import functions as F

    conf: dict[str, bool | float | int | str | None] = {
        "spark.jars": ",".join(str(jar) for jar in sorted(JARS.glob("*.jar"))),
        "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={file} -Xlog:disable",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.extensions": "com.datastax.spark.connector.CassandraSparkExtensions",
    }
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    with TemporaryDirectory() as folder:
        rows = spark.range(1000).select("id", F.concat(F.lit("p-"), F.col("id") % 7).alias("persistence_id"))
        rows.write.parquet(f"{folder}/rows")
        rows = spark.read.parquet(f"{folder}/rows")
        last = Window.partitionBy("persistence_id").orderBy("id")
        ranked = rows.withColumn("number", F.row_number().over(last)).withColumn("hash", F.xxhash64("persistence_id", "id"))
        counts = ranked.groupBy("persistence_id").agg(F.count("*").alias("rows"), F.max("number"), F.collect_list("id"))
        ranked.join(counts, "persistence_id", "left").orderBy("hash").write.parquet(f"{folder}/joined")
        spark.createDataFrame([("p-1",)], "persistence_id string").join(rows, "persistence_id", "left_anti").collect()
    spark.stop()


if __name__ == "__main__":
    if sys.argv[1:]:
        record(sys.argv[1])
    else:
        sys.exit(main())
