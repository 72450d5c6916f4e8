"""Input files that a param names: they lie in one folder, are read without following links, and appear in no
message.
"""

import os

import pytest

pytest.importorskip("airflow")

from tagmill.airflow import connections, erase, journal_clean
from tagmill.airflow.compat import AirflowFailException
from tagmill.airflow.inputs import ids_of, open_input
from tagmill.airflow.operations import fields
from tagmill.config.settings import AirflowSettings
from tagmill.errors import ConfigurationError
from tagmill.operations.catalogue import BY_NAME

SECRET = "2b7e151628aed2a6abf7158809cf4f3c"
FILE = "persistence_ids_file"


@pytest.fixture
def section(tmp_path) -> AirflowSettings:
    """Write a folder with two lists and return its settings.

    In it and next to it lie files that must not be read.
    """
    folder = tmp_path / "inputs"
    (folder / "deep").mkdir(parents=True)
    (folder / "ids").write_text("p-1\np-2\n")
    (folder / "deep" / "ids").write_text("p-3\n")
    (tmp_path / "key").write_text(SECRET)
    (folder / "link").symlink_to(tmp_path / "key")
    (folder / "out").symlink_to(tmp_path)
    (folder / "long").write_text("p-1\n" * 100)
    os.mkfifo(folder / "pipe")
    return AirflowSettings(input_dir=folder, input_max_bytes=100)


def test_ids_of_files_below_the_folder_are_read(section):
    named = {"persistence_ids": ["p-0"], FILE: "ids"}
    assert list(ids_of(named, section)) == ["p-0", "p-1", "p-2"]
    assert list(ids_of({**named, FILE: str(section.input_dir / "deep" / "ids")}, section)) == ["p-0", "p-3"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/proc/self/environ", "not in the folder of .airflow. input_dir"),
        ("../key", "not in the folder of .airflow. input_dir"),
        ("deep/../../key", "not in the folder of .airflow. input_dir"),
        ("link", "links are not followed"),
        ("out/key", "links are not followed"),
        ("pipe", "not a regular file"),
        ("deep", "not a regular file"),
        ("long", "it has 400 bytes, .airflow. input_max_bytes is 100"),
        ("missing", "no such file"),
        ("a\0b", "not in the folder"),
        ("n" * 5000, "links are not followed"),
    ],
)
def test_open_input_unfit_file_is_refused(section, name, reason):
    """Refuse files outside of the folder, links, irregular, missing and too large files.

    The message is short and shows no content.
    """
    with pytest.raises(ConfigurationError, match=reason) as refused:
        open_input(FILE, name, section)
    message = str(refused.value)
    assert SECRET not in message and len(message) < 300 and message.startswith(f"param {FILE}: ")


def test_no_file_is_read_without_a_configured_folder():
    with pytest.raises(ConfigurationError, match=r"until \[airflow\] input_dir names the folder"):
        open_input(FILE, "/proc/self/environ", AirflowSettings())


@pytest.mark.parametrize("name", ["/proc/self/environ", "../key", "link"])
@pytest.mark.parametrize(
    ("operation", "task"), [("erase", erase.erase), ("journal clean", journal_clean.clean)]
)
def test_dags_that_take_files_read_no_secret(config, section, operation, task, name, monkeypatch, caplog):
    """Keep the content of a refused file out of the task's error and log."""
    config.write_text(f'{config.read_text()}[airflow]\ninput_dir = "{section.input_dir}"\n')
    monkeypatch.setenv("PASSWORD_OF_A_SERVER", SECRET)
    monkeypatch.setattr(connections, "find", lambda _: None)
    params = {field.name: field.default for field in fields(BY_NAME[operation])}
    with pytest.raises(AirflowFailException, match="is not read") as refused:
        task("orders", {**params, FILE: name, "to": 5, "dry_run": True}, {"dag_run": Run()})
    assert SECRET not in f"{refused.value}{caplog.text}"


class Run:
    """Part of a DagRun that a step reads."""

    dag_id, run_id, run_type = "d", "r", "manual"
