"""Jars that jobs need next to those of PySpark: their Maven coordinates, and the settings that name them.

The coordinates stand here only: for Spark itself, and for the folder of jars that a checkout fetches.
"""

from collections.abc import Mapping
from pathlib import Path

from tagmill.errors import ConfigurationError

# The version of PySpark in the extra `spark`, whose Scala version is 2.12.
PYSPARK = "3.5.7"
PACKAGES = ("com.datastax.spark:spark-cassandra-connector_2.12:3.5.1",)
# Modules (group:artifact) that Spark ships itself: a second copy gives class conflicts or wasted megabytes.
EXCLUDED = (
    "org.scala-lang:scala-library",
    "org.scala-lang:scala-reflect",
    "org.slf4j:*",
    "commons-logging:*",
    "org.apache.commons:commons-lang3",
    "com.thoughtworks.paranamer:*",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.lz4:*",
    "at.yawk.lz4:*",
    "org.xerial.snappy:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "io.dropwizard.metrics:*",
    "org.apache.spark:spark-tags_2.12",
)
FETCHED, NOT_FETCHED = "spark.jars.packages", "spark.jars.excludes"


def jars_conf(folder: Path | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that give a session its jars.

    Args:
        folder: of the jars; None: Spark fetches them from its repositories.
        given: the settings of `spark.conf`: its packages are fetched, too; its jars stand for the folder's.

    Raises ConfigurationError for a folder without jars.
    """
    if folder is None:
        return {
            key: ",".join(filter(None, (*values, given.get(key))))
            for key, values in {FETCHED: PACKAGES, NOT_FETCHED: EXCLUDED}.items()
        }
    if own := given.get("spark.jars"):
        return {"spark.jars": own}
    jars = sorted(folder.glob("*.jar"))
    if not jars:
        raise ConfigurationError(
            f"spark.jars: there are no jars in {folder}. Nothing was started. Leave the key out, so that Spark "
            "fetches them; in a clone, bin/setup puts them into build/jars/spark"
        )
    return {"spark.jars": ",".join(str(jar.resolve()) for jar in jars)}
