"""Java, Python, Spark, jars and folders of this machine, with programs that say what others would."""

import os
import stat
from pathlib import Path

import pytest

import tagmill
from tagmill.config.settings import Settings
from tagmill.doctor import machine
from tagmill.doctor.model import Finding, Level
from tagmill.spark import job_environment


def program(folder: Path, name: str, said: str, status: int = 0) -> Path:
    """Write a program that says something on standard error, as Java does."""
    file = folder / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit {status}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def of(check: str, environment: Path | None = None) -> Finding:
    """Return the finding of a check of programs; `environment`: the configured folder for jobs."""
    return next(finding for finding in machine.programs(environment) if finding.check == check)


@pytest.mark.parametrize(
    ("said", "status", "level", "words"),
    [
        ('openjdk version "17.0.11" 2024-04-16', 0, Level.FINE, "Java 17 (JAVA_HOME"),
        ('java version "1.8.0_392"', 0, Level.FINE, "Java 8"),
        ('java version "1.7.0_80"', 0, Level.WRONG, "too old"),
        ('openjdk version "25" 2025-09-16', 0, Level.WARNING, "Java 25"),
        ("segmentation fault", 1, Level.WRONG, "does not run"),
        ("hello", 0, Level.WRONG, "is no Java"),
    ],
    ids=["17", "8", "7", "25", "broken", "another program"],
)
def test_java_is_judged_by_its_version(tmp_path, monkeypatch, said, status, level, words) -> None:
    program(tmp_path, "java", said, status)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = of("java")
    assert (found.level, words in found.said) == (level, True), found
    assert bool(found.cure) == (level is not Level.FINE)


@pytest.mark.parametrize(
    ("java", "level"), [("11.0.2", Level.WRONG), ("17.0.11", Level.FINE), ("21.0.2", Level.FINE)]
)
def test_java_is_judged_by_spark_of_jobs(tmp_path, monkeypatch, java, level) -> None:
    """Spark 4 needs another Java than 3.5, whether it is in this Python or in the environment for jobs."""
    program(tmp_path, "java", f'openjdk version "{java}" 2024-04-16')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "version", lambda _: "4.3.0")
    assert of("java").level is level
    monkeypatch.setattr(machine, "find_spec", lambda _: None)
    for folder in ("pyspark", "pyspark-4.3.0.dist-info"):
        (tmp_path / "lib" / "python3.11" / "site-packages" / folder).mkdir(parents=True)
    program(tmp_path, "spark-submit", "")
    assert of("java", tmp_path).level is level


def test_missing_java_and_spark_are_wrong(tmp_path, monkeypatch) -> None:
    for name in ("JAVA_HOME", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(machine, "find_spec", lambda _: None)
    assert (of("java").level, of("spark-submit").level) == (Level.WRONG, Level.WRONG)
    program(tmp_path, "spark-submit", "")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert of("spark-submit").level is Level.FINE


def test_environment_for_jobs_is_found(tmp_path, monkeypatch) -> None:
    """Find the environment on its default place or the configured one, and say what is wrong with it."""
    monkeypatch.setattr(machine, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    default = tmp_path / "default"
    monkeypatch.setattr(job_environment, "DEFAULT", default)
    assert str(default) in of("spark-submit").said and str(default) in of("spark-submit").cure
    found = of("spark-submit", tmp_path / "named")
    assert "named has no PySpark" in found.said and found.level is Level.WRONG
    (default / "lib" / "python3.11" / "site-packages" / "pyspark").mkdir(parents=True)
    program(default, "spark-submit", "")
    for said, level, words in (
        (
            f"3.11\n3.5.7 {tagmill.__version__}",
            Level.FINE,
            f"jobs run in {default}: Python 3.11, pyspark 3.5.7",
        ),
        ("3.11\n3.5.7 0.0.1", Level.WRONG, f"{default} has Tagmill 0.0.1, this Python has"),
        ("3.11", Level.WRONG, "has no tagmill[spark] that runs"),
    ):
        program(default, "python", said)
        found = of("spark-submit")
        assert (found.level, words in found.said) == (level, True), found
    program(default, "python", "No module named tagmill", status=1)
    assert of("spark-submit").level is Level.WRONG


@pytest.mark.parametrize(
    ("said", "level"), [(machine.own_minor(), Level.FINE), ("3.99", Level.WRONG)], ids=["same", "other"]
)
def test_python_of_workers_must_be_the_same(tmp_path, monkeypatch, said, level) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(program(tmp_path, "python", said)))
    assert of("python").level is level
    monkeypatch.setenv("PYSPARK_PYTHON", str(tmp_path / "nothing"))
    assert of("python").level is Level.WRONG


def test_jars_and_folders_are_tried(tmp_path, monkeypatch) -> None:
    """An empty folder of jars, a root that can't be made, and one that leaves no trace."""
    jars, root = tmp_path / "jars", tmp_path / "new" / "root"
    jars.mkdir()

    def levels(place: str) -> dict[str, Level]:
        made = Settings.model_validate({"spark": {"jars": jars}, "storage": {"root": place}})
        return {finding.check: finding.level for finding in machine.files(made)}

    monkeypatch.setattr(machine, "ROOM_BYTES", 0)
    assert levels(str(root)) == {
        "jars": Level.WRONG,
        "storage root": Level.FINE,
        "temporary files": Level.FINE,
    }
    assert not root.parent.exists()
    (jars / "hadoop-aws-3.3.4.jar").touch()
    assert levels(os.devnull + "/root") == {
        "jars": Level.FINE,
        "storage root": Level.WRONG,
        "temporary files": Level.FINE,
    }
    monkeypatch.setattr(machine, "ROOM_BYTES", 2**62)
    assert levels(str(root)) == {
        "jars": Level.FINE,
        "storage root": Level.WARNING,
        "temporary files": Level.WARNING,
    }
    assert levels("nosuch://bucket/tagmill")["storage root"] is Level.WRONG
