"""JVM flags of a job, which give way to the configuration, and its jars."""

import os
from pathlib import Path

import pytest

from tagmill.config.settings import Settings
from tagmill.errors import ConfigurationError
from tagmill.spark.session import (
    FEW_ROWS,
    FIRST_COMPILER,
    HOT,
    JAVA_OPTIONS,
    require_python,
    spark_conf,
)


def options(folder: Path, *, conf: str = "", archive: str = "") -> str:
    (folder / "one.jar").touch()
    file = folder / "tagmill.toml"
    file.write_text(f'[spark]\njars = "{folder}"\n{archive}\n[spark.conf]\n{conf}\n', encoding="utf-8")
    return spark_conf(Settings.load(file)).get(JAVA_OPTIONS, "")


@pytest.fixture(params=[1, 2, 4])
def processors(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(os, "cpu_count", lambda: request.param)
    return int(request.param)


COLLECTOR, COMPILER = "-XX:+UseSerialGC", [f"-XX:Tier4{name}={value}" for name, value in HOT.items()]


def test_options_few_processors_use_serial_collector(processors: int, tmp_path: Path) -> None:
    """Jobs with one or two processors use the serial collector and compile less."""
    assert options(tmp_path).split() == ([COLLECTOR, *COMPILER] if processors <= 2 else [])


def test_few_rows_get_a_session_that_starts_fast(processors: int, tmp_path: Path) -> None:
    """Few rows are worth one compiler and no planning at run time, on any machine; the heap stays."""
    options(tmp_path)
    configured = Settings.load(tmp_path / "tagmill.toml")
    few, many = spark_conf(configured, few_rows=True), spark_conf(configured)
    assert few[JAVA_OPTIONS].split() == [COLLECTOR, FIRST_COMPILER]
    assert FEW_ROWS.items() <= few.items() and not FEW_ROWS.items() <= many.items()
    assert few["spark.driver.memory"] == many["spark.driver.memory"]


def test_own_conf_outranks_that_for_few_rows(tmp_path: Path) -> None:
    options(
        tmp_path,
        conf=f'"spark.sql.shuffle.partitions" = "7"\n"{JAVA_OPTIONS}" = "-XX:+UseG1GC -XX:TieredStopAtLevel=4"',
    )
    conf = spark_conf(Settings.load(tmp_path / "tagmill.toml"), few_rows=True)
    assert conf["spark.sql.shuffle.partitions"] == "7"
    assert conf[JAVA_OPTIONS].split() == [FIRST_COMPILER, "-XX:+UseG1GC", "-XX:TieredStopAtLevel=4"]


def test_job_has_its_own_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "one.jar").touch()
    (tmp_path / "tagmill.toml").write_text(f'[spark]\njars = "{tmp_path}"\n')
    conf = spark_conf(Settings.load(tmp_path / "tagmill.toml"), tmp_path / "job-1")
    assert f"-Djava.io.tmpdir={tmp_path}/job-1" in conf[JAVA_OPTIONS].split()
    assert conf["spark.hadoop.fs.permissions.umask-mode"] == "027"


def test_a_chosen_collector_is_the_only_one(processors: int, tmp_path: Path) -> None:
    found = options(tmp_path, conf=f'"{JAVA_OPTIONS}" = "-XX:+UseG1GC -Da=b"').split()
    assert found == (COMPILER if processors <= 2 else []) + ["-XX:+UseG1GC", "-Da=b"]


def test_other_options_stay_and_come_last(processors: int, tmp_path: Path) -> None:
    assert options(tmp_path, conf=f'"{JAVA_OPTIONS}" = "-Da=b"').split() == (
        [COLLECTOR, *COMPILER] if processors <= 2 else []
    ) + ["-Da=b"]


def test_an_archive_that_is_there_is_used(tmp_path: Path) -> None:
    """Use a class archive if its file exists and its path has no blank."""
    assert "SharedArchiveFile" not in options(tmp_path, archive='class_archive = "classes.jsa"')
    (tmp_path / "classes.jsa").touch()
    assert f"-XX:SharedArchiveFile={tmp_path}/classes.jsa" in options(
        tmp_path, archive='class_archive = "classes.jsa"'
    )
    apart = tmp_path / "a b"
    apart.mkdir()
    (apart / "classes.jsa").touch()
    assert "SharedArchiveFile" not in options(apart, archive='class_archive = "classes.jsa"')


def test_no_jars_are_needed() -> None:
    conf = spark_conf(Settings())
    assert not [key for key in conf if key.startswith("spark.jars")]


@pytest.mark.parametrize("given", [None, "/a.jar"])
def test_jars_of_folder_are_used_unless_named(given: str | None, tmp_path: Path) -> None:
    (tmp_path / "one.jar").touch()
    settings = Settings.model_validate(
        {"spark": {"jars": tmp_path, "conf": {"spark.jars": given} if given else {}}}
    )
    assert spark_conf(settings)["spark.jars"] == (given or f"{tmp_path}/one.jar")


def test_folder_without_jars_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"there are no jars in {tmp_path}. Nothing was started"):
        spark_conf(Settings.model_validate({"spark": {"jars": tmp_path}}))


@pytest.mark.parametrize(
    ("pyspark", "newest", "cure"),
    [("3.5.7", (3, 11), r"\[spark4\] into this one"), ("4.3.0", (3, 13), "an environment of Python 3.13")],
)
def test_newer_python_is_refused_with_one_line(pyspark: str, newest: tuple[int, int], cure: str) -> None:
    require_python(newest, pyspark)
    with pytest.raises(ConfigurationError, match=f"this is 3.14. Nothing was started. .*{cure}"):
        require_python((3, 14), pyspark)
