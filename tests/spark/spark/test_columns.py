"""Expressions of columns: a number for each value of a column."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from tagmill.spark.columns import number_by

NUMBERS = {"it's": 1, 'a "b" \\ c': -(2**62), "": 2**62, "tag 🎉\n\t": 0, "TAG": 5, "tag": 6, "Ω": 7}


def test_number_by_gives_each_value_its_own(spark: SparkSession) -> None:
    """Odd tags get their number, whatever is between their quotes; other values and nulls get none."""
    rows = spark.createDataFrame([(tag,) for tag in (*NUMBERS, "other", None)], "tag string")
    found = rows.select("tag", number_by("tag", NUMBERS).alias("number"))
    assert dict(map(tuple, found.collect())) == NUMBERS | {"other": None, None: None}
    assert found.schema["number"].dataType.simpleString() == "bigint"
    assert "from_json" not in found._jdf.queryExecution().optimizedPlan().toString()  # noqa: SLF001
    assert rows.where(number_by("tag", {}).isNotNull()).count() == 0


def test_number_by_takes_numbers_as_values(spark: SparkSession) -> None:
    """Look up the values of a column of numbers."""
    rows = spark.range(3).select(F.col("id").cast("int").alias("unit"))
    found = rows.select("unit", number_by("unit", {0: 10, 2: 12}))
    assert dict(map(tuple, found.collect())) == {0: 10, 1: None, 2: 12}
