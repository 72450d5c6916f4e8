"""An archive of the classes that each Spark JVM of the tests loads: mapped instead of read, verified and linked they take half the time.

python -m tests.support.archive FILE makes it. A JVM that can't use it (another version, another class path) starts without it, silently.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "build" / "test-classes.jsa"
# as the tests' sessions have them: the archive holds classes as these flags lay them out
FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def flags() -> str:
    """What a JVM of the tests is started with."""
    return f"{FLAGS} -XX:SharedArchiveFile={FILE} -Xlog:disable" if FILE.exists() and " " not in str(FILE) else FLAGS


def main(arguments: Sequence[str]) -> None:
    """A session that plans, joins, sorts and writes a little; its JVM writes the archive when it ends."""
    from pyspark.sql import SparkSession, Window
    from pyspark.sql import functions as F

    jars = ",".join(str(jar) for jar in sorted((ROOT / "build" / "jars" / "spark").glob("*.jar")))
    conf = {
        "spark.jars": jars,
        "spark.driver.extraJavaOptions": f"{FLAGS} -XX:ArchiveClassesAtExit={arguments[0]} -Xlog:disable",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
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
    main(sys.argv[1:])
