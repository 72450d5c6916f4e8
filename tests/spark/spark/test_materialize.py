"""Rows that are written once: read back as they were, and known to be none."""

from pathlib import Path

from pyspark.sql import SparkSession

from tagmill.runs.storage import RunFiles
from tagmill.spark.materialize import count_rows, materialize


def test_materialize_no_rows_are_left_out(spark: SparkSession, tmp_path: Path) -> None:
    """Read rows back with their columns; a join with rows that are none is planned without them."""
    rows = spark.createDataFrame([(1, ["a"]), (2, None)], "id long, tags array<string>").repartition(2)
    files = RunFiles(str(tmp_path / "a 100 % place"))
    some = materialize(rows, files.url("x/some"))
    none = materialize(rows.where("id > 2"), files.url("x/none"))
    assert (count_rows(files.url("x/some")), files.count_rows("x/none")) == (2, 0)
    assert sorted(some.collect()) == sorted(rows.collect())
    assert none.schema == some.schema == rows.schema
    joined = some.join(none.withColumnRenamed("tags", "others"), "id", "left")
    assert sorted(joined.collect()) == [(1, ["a"], None), (2, None, None)]
    assert "Join" not in joined._jdf.queryExecution().optimizedPlan().toString()  # noqa: SLF001
