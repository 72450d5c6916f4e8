"""Limits of a person who may trigger a DAG: the worker's files can't be read."""

import stat
import uuid

from tests.standalone.test_airflow import in_clickhouse
from tests.support.standalone import DAG, PASSWORDS

MAINTENANCE = "maintenance_orders"


def test_delivered_files_are_kept_from_others(delivered):
    """Check plans, sealed batches, Spark's files, pages, reports and task logs: files have 0640, folders
    0750.
    """
    data, logs = delivered.layout.config.parent / "data", delivered.airflow.home / "logs"
    written = [path for folder in (data, logs) for path in (folder, *folder.rglob("*"))]
    assert {".parquet", ".json", ".html", ".log"} <= {path.suffix for path in written if path.is_file()}
    modes = {str(path): stat.filemode(path.lstat().st_mode) for path in written if not path.is_symlink()}
    assert {
        path: mode for path, mode in modes.items() if mode not in ("-rw-r-----", "drwxr-x---", "-rw-------")
    } == {}


def test_task_of_job_links_to_its_report(delivered):
    (run,) = [run for run in delivered.api.runs(DAG) if delivered.tasks(DAG, run)["close"] == "success"][-1:]
    links = delivered.call("GET", f"/dags/{DAG}/dagRuns/{run}/taskInstances/seal/links")["extra_links"]
    status, page = delivered.page("/tagmill" + links["Tagmill report"].partition("/tagmill")[2], login=True)
    assert status == 200 and "run-00000001" in page


def test_params_naming_foreign_files_are_refused(stack, delivered):
    """Name a key file in several ways, and the process environment: neither gets into a log."""
    before = in_clickhouse(stack)
    home, secret = delivered.layout.config.parent, uuid.uuid4().hex
    inputs, key = home / "inputs", home / "key"
    inputs.mkdir()
    key.write_text(secret)
    (inputs / "link").symlink_to(key)
    (inputs / "ids").write_text("nobody\n")
    named = {
        "/proc/self/environ": "is not read",
        str(key): "is not read",
        "../key": "is not read",
        "link": "is not read",
    }
    named["ids"] = "nobody knows any of the 1 persistence ids (the first: 'nobody')"
    runs = {
        delivered.api.trigger(MAINTENANCE, {"operation": "erase", "persistence_ids_file": name}): said
        for name, said in named.items()
    }
    delivered.api.pause(MAINTENANCE, False)
    for run, said in runs.items():
        assert delivered.wait(MAINTENANCE, run) == "failed"
        (error,) = delivered.errors(MAINTENANCE, run)
        assert said in error
    assert delivered.files_with(secret) == [key]
    assert [file for password in PASSWORDS.values() for file in delivered.files_with(password)] == []
    assert in_clickhouse(stack) == before
