"""Run an Airflow standalone on the test stack, with passwords in its connections, and watch for the JVMs of
its tasks.
"""

import json
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from local.airflow import Airflow
from local.airflow_api import FINAL, AirflowApi
from local.layout import StackLayout
from local.processes import MARKER, marked
from tagmill.errors import StoreUnavailable

DAG = "deliver_orders"
# Seconds of its life in which a process may become another program.
YOUNG_SECONDS = 60
PASSWORDS = {"cassandra": "Cassandra's-s3cr3t", "clickhouse": "ClickHouse's-s3cr3t"}


class AirflowWithPasswords(Airflow):
    """The local stack's Airflow with passwords, so a test can search where these turn up.

    Only its connections have them. Cassandra accepts any, ClickHouse's port for Airflow only this one.
    """

    def environment(self) -> dict[str, str]:
        """Return Airflow's variables, with login and password in the connections."""
        made = super().environment()
        for store, password in PASSWORDS.items():
            connection = {
                "conn_type": "generic",
                "host": "127.0.0.1",
                "login": "default" if store == "clickhouse" else "tagmill",
                "password": password,
            }
            made[f"AIRFLOW_CONN_TAGMILL_{store.upper()}"] = json.dumps(connection)
        # The files do not change, and each time that Airflow reads them again takes seconds of a processor.
        return made | {"AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "900"}


@dataclass
class Lookout:
    """Watches every process below an Airflow: `jvms` has the pids of Spark's JVMs, `commands` all command
    lines.
    """

    mark: str
    jvms: set[int] = field(default_factory=set)
    commands: set[str] = field(default_factory=set)
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Lookout":
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        old: set[psutil.Process] = set()
        while not self._done.wait(0.2):
            for process in psutil.process_iter():
                if process not in old and self._look(process):
                    old.add(process)

    def _look(self, process: psutil.Process) -> bool:
        """Note a process of this Airflow; return whether it is too old to become another program."""
        try:
            command = " ".join(process.cmdline())
            mine = process.environ().get(MARKER) == self.mark
            old = time.time() - process.create_time() > YOUNG_SECONDS
        except (psutil.Error, OSError):
            return False
        if mine:
            self.commands.add(command)
            if "org.apache.spark.deploy.SparkSubmit" in command:
                self.jvms.add(process.pid)
        return old


@dataclass
class Standalone:
    """A running Airflow and its client."""

    layout: StackLayout
    airflow: AirflowWithPasswords
    api: AirflowApi

    def lookout(self) -> Lookout:
        """Return a Lookout on this Airflow, to be used in `with`."""
        return Lookout(self.airflow.mark)

    def wait(self, dag: str, run: str, seconds: float = 420) -> str:
        """Wait for a run's end and return its state; if it takes too long, fail with the states of its
        tasks.
        """
        end = time.monotonic() + seconds
        while (state := self.api.run_state(dag, run)) not in FINAL:
            assert time.monotonic() < end, f"{run} is {state} after {seconds} s: {self.tasks(dag, run)}"
            time.sleep(1)
        return state

    def succeed(self, dag: str, run: str) -> None:
        """Wait for a run that has to succeed; if it doesn't, fail with the failed tasks' errors."""
        assert self.wait(dag, run) == "success", f"{self.tasks(dag, run)}: {self.errors(dag, run)}"

    def errors(self, dag: str, run: str) -> list[str]:
        """Return the error that each failed task of a run ended with."""
        found = []
        for task in self.api.tasks(dag, run):
            if task["state"] == "failed":
                log = self.call(
                    "GET",
                    f"/dags/{dag}/dagRuns/{run}/taskInstances/{task['task_id']}/logs/{task['try_number']}",
                )
                details = [entry.get("error_detail") for entry in log["content"] if entry.get("error_detail")]
                found += [f"{task['task_id']}: {detail[0]['exc_value']}" for detail in details]
        return found

    def answer(self, dag: str, run: str, option: str) -> dict[str, Any]:
        """Wait until a run asks a person for an approval, answer, and return the question."""
        end = time.monotonic() + 240
        while (states := self.tasks(dag, run)).get("approve") != "awaiting_input":
            assert time.monotonic() < end and states["dry_run"] != "failed", (states, self.errors(dag, run))
            time.sleep(0.5)
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/approve/-1/hitlDetails"
        asked: dict[str, Any] = self.call("GET", path)
        # Until the scheduler has noted that the asking process ended, it takes a resumed task for a failed one.
        asking_ended = f"TaskInstance Finished: dag_id={dag}, task_id=approve, run_id={run},"
        while asking_ended not in self.airflow.log.read_text(errors="replace"):
            assert time.monotonic() < end, "the scheduler did not note that the question was asked"
            time.sleep(0.5)
        self.call("PATCH", path, {"chosen_options": [option], "params_input": {}})
        return asked

    def first_run(self, dag: str, conf: dict[str, Any] | None = None) -> dict[str, str]:
        """Trigger a paused DAG, unpause it as the form does, and wait; return the state of each run."""
        run = self.api.trigger(dag, conf)
        self.api.pause(dag, False)
        assert self.wait(dag, run) == "success", f"{self.tasks(dag, run)}: {self.errors(dag, run)}"
        return self.settle(dag)

    def settle(self, dag: str, seconds: float = 420) -> dict[str, str]:
        """Wait until a DAG has no unfinished run; return the state of each run."""
        end = time.monotonic() + seconds
        while unfinished := {run: state for run, state in self.api.runs(dag).items() if state not in FINAL}:
            assert time.monotonic() < end, f"unfinished after {seconds} s: {unfinished}"
            time.sleep(1)
        return self.api.runs(dag)

    def backfill(self, dag: str, moment: str) -> list[str]:
        """Backfill the runs of one moment and return their ids.

        On SQLite, Airflow refuses (503) while something else is written, so the request is repeated up to 20
        times.
        """
        order = {
            "dag_id": dag,
            "from_date": moment,
            "to_date": moment,
            "dag_run_conf": {},
            "max_active_runs": 1,
        }
        order |= {"reprocess_behavior": "completed", "run_backwards": False}
        for attempt in range(20):
            try:
                self.call("POST", "/backfills", order)
                break
            except StoreUnavailable as error:
                if "503" not in str(error) or attempt == 19:
                    raise
                time.sleep(1)
        end = time.monotonic() + 60
        while not (runs := [run for run in self.api.runs(dag) if run.startswith("backfill__")]):
            assert time.monotonic() < end, "no backfill run was made"
            time.sleep(0.5)
        return runs

    def tasks(self, dag: str, run: str) -> dict[str, str | None]:
        """Return the state of each task of a run."""
        return {task["task_id"]: task["state"] for task in self.api.tasks(dag, run)}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Make a REST call for which the stack's own client has no method, and return the answer."""
        return self.api.call(method, path, body)

    def page(self, path: str, *, login: bool) -> tuple[int, str]:
        """Return status and text of a page of the UI, requested with or without the login."""
        headers = {"Authorization": f"Bearer {self.api._token}"} if login else {}
        request = urllib.request.Request(f"{self.api.base}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def files_with(self, text: str) -> list[Path]:
        """Return the files below Airflow's home and the storage root whose bytes contain a text."""
        files = (file for file in self.layout.home.rglob("*") if file.is_file() and not file.is_symlink())
        return [file for file in files if text.encode() in file.read_bytes()]

    def left(self) -> list[str]:
        """Return the command lines of Airflow's processes that still run."""
        return [" ".join(process.cmdline()) for process in marked(self.airflow.mark)]
