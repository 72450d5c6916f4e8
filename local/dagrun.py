"""Triggers a DAG by REST and shows its tasks until no run of it is under way."""

import sys
import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from local.airflow_api import FINAL, AirflowApi
from tagmill.errors import StoreUnavailable, TerminalError

COLOURS = {
    "success": "green",
    "running": "cyan",
    "failed": "red",
    "up_for_retry": "yellow",
    "upstream_failed": "red",
    "skipped": "dim",
}
POLL_SECONDS = 1.0


class DagFailed(TerminalError):
    """A DAG run ended as failed."""

    exit_code = 1


class DagRunner:
    """One DAG of a running Airflow, watched by a person."""

    def __init__(self, api: AirflowApi, dag: str, console: Console) -> None:
        self.api, self.dag, self.console = api, dag, console
        self._told: dict[tuple[str, str, int], str] = {}

    def deliver(self, timeout_seconds: float) -> str:
        """Trigger a run, wait for it and for those that it starts while there is more to do; returns its id.

        Raises:
            DagFailed: one of them failed; the message has the failed tasks' own errors.
            StoreUnavailable: the time is over, or Airflow doesn't know the DAG.
        """
        limit = time.monotonic() + timeout_seconds
        self._wait_until_known(limit)
        before = set(self.api.runs(self.dag))
        run = self.api.trigger(self.dag)
        self.api.pause(self.dag, False)
        with Live(console=self.console, refresh_per_second=4, transient=True) as live:
            while True:
                states = {name: state for name, state in self.api.runs(self.dag).items() if name not in before}
                self._show(live, states)
                if states.get(run) in FINAL and all(state in FINAL for state in states.values()):
                    break
                if time.monotonic() > limit:
                    raise StoreUnavailable(
                        f"DAG {self.dag} is still under way after {timeout_seconds:.0f} s; look into Airflow's UI"
                    )
                time.sleep(POLL_SECONDS)
        failed = [name for name, state in states.items() if state == "failed"]
        if failed:
            raise DagFailed("; ".join(self._why(name) for name in failed))
        return run

    def _wait_until_known(self, limit: float) -> None:
        while not self.api.dag_is_there(self.dag):
            if errors := self.api.import_errors():
                raise DagFailed(f"Airflow can't import the DAG: {errors[0]}")
            if time.monotonic() > limit:
                raise StoreUnavailable(f"Airflow doesn't know the DAG {self.dag}; look into the log of its DAG processor")
            time.sleep(0.5)

    def _show(self, live: Live, states: dict[str, str]) -> None:
        active = [name for name, state in states.items() if state not in FINAL] or list(states)[:1]
        tasks = [(name, task) for name in reversed(active) for task in self.api.tasks(self.dag, name)]
        if self.console.is_terminal:
            live.update(_table(self.dag, states, tasks))
            return
        for run, task in tasks:
            key, state = (run, task["task_id"], task["try_number"]), task["state"] or "waiting"
            if self._told.get(key, "waiting") != state:
                self._told[key] = state
                print(f"  {run}: {task['task_id']} {state}", file=sys.stderr, flush=True)

    def _why(self, run: str) -> str:
        lines = []
        for task in self.api.tasks(self.dag, run):
            if task["state"] == "failed":
                lines += [
                    f"task {task['task_id']}: {line}" for line in self.api.log_tail(self.dag, run, task)[-1:] or ["see its log"]
                ]
        return f"DAG run {run} failed: {'; '.join(lines) or 'no task says why'}"


def _table(dag: str, states: dict[str, str], tasks: list[tuple[str, dict[str, Any]]]) -> Table:
    table = Table(title=f"{dag}: {len(states)} run(s)", title_justify="left")
    for column in ("run", "task", "state", "try", "seconds"):
        table.add_column(column)
    for run, task in sorted(tasks, key=lambda item: item[1].get("start_date") or "~"):
        state = task["state"] or "waiting"
        seconds = f"{task['duration']:.1f}" if task.get("duration") else ""
        table.add_row(run[:32], task["task_id"], f"[{COLOURS.get(state, 'white')}]{state}[/]", str(task["try_number"]), seconds)
    return table
