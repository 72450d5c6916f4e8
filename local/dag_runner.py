"""Trigger DAGs by REST and show their tasks until all of their runs have ended."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

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
# States with which a try of a task ends.
FINISHED = frozenset({"success", "failed", "up_for_retry"})
POLL_SECONDS = 1.0
Run = tuple[str, str]  # the run's DAG and id


class DagFailed(TerminalError):
    """A DAG run ended as failed."""

    exit_code = 1


class DagRunner:
    """Triggers DAGs of a running Airflow and shows their progress to a person."""

    def __init__(
        self, api: AirflowApi, dags: Sequence[str], console: Console, require_alive: Callable[[], None]
    ) -> None:
        """Keep the client, the DAGs and the console.

        `require_alive` raises when a server that the DAGs need has ended: retrying would not bring it back.
        """
        self.api, self.dags, self.console, self.require_alive = api, dags, console, require_alive
        self._told = set[tuple[str, str, str, int]]()

    def deliver(self, timeout_seconds: float) -> None:
        """Trigger a run of each DAG at once; wait for these runs and for those that they start while there is
        more to do.

        Raises:
            DagFailed: a run failed; the message has the failed tasks' own errors.
            StoreUnavailable: the time is over, or Airflow doesn't know the DAG.
        """
        limit = time.monotonic() + timeout_seconds
        for dag in self.dags:
            self._wait_until_known(dag, limit)
        before = {(dag, name) for dag in self.dags for name in self.api.runs(dag)}
        triggered = [(dag, self.api.trigger(dag)) for dag in self.dags]
        for dag in self.dags:
            self.api.pause(dag, False)
        with Live(console=self.console, refresh_per_second=4, transient=True) as live:
            while True:
                found = {
                    (dag, name): state for dag in self.dags for name, state in self.api.runs(dag).items()
                }
                states = {run: state for run, state in found.items() if run not in before}
                self._show(live, states)
                if all(run in states for run in triggered) and all(
                    state in FINAL for state in states.values()
                ):
                    break
                self.require_alive()
                if time.monotonic() > limit:
                    raise StoreUnavailable(
                        f"{' and '.join(self.dags)}: still under way after {timeout_seconds:.0f} s; look "
                        "into Airflow's UI"
                    )
                time.sleep(POLL_SECONDS)
        failed = [run for run, state in states.items() if state == "failed"]
        if failed:
            raise DagFailed("; ".join(self._why(*run) for run in failed))

    def _wait_until_known(self, dag: str, limit: float) -> None:
        while not self.api.dag_is_there(dag):
            if errors := self.api.import_errors():
                raise DagFailed(f"Airflow can't import the DAG: {errors[0]}")
            if time.monotonic() > limit:
                raise StoreUnavailable(
                    f"Airflow doesn't know the DAG {dag}; look into the log of its DAG processor"
                )
            time.sleep(0.5)

    def _show(self, live: Live, states: Mapping[Run, str]) -> None:
        active = [run for run, state in states.items() if state not in FINAL] or list(states)[:1]
        tasks = [(run, task) for run in reversed(active) for task in self.api.tasks(*run)]
        if self.console.is_terminal:
            live.update(_table(len(states), tasks))
            return
        for run, task in tasks:
            key, state = (*run, task["task_id"], task["try_number"]), task["state"]
            if state in FINISHED and key not in self._told:
                self._told.add(key)
                print(
                    f"  {run[0]}: {task['task_id']} {state} after {_seconds(task)} s",
                    file=sys.stderr,
                    flush=True,
                )

    def _why(self, dag: str, run: str) -> str:
        lines = []
        for task in self.api.tasks(dag, run):
            if task["state"] == "failed":
                lines += [
                    f"task {task['task_id']}: {line}"
                    for line in self.api.log_tail(dag, run, task)[-1:] or ["see its log"]
                ]
        return f"run {run} of DAG {dag} failed: {'; '.join(lines) or 'no task says why'}"


def _table(runs: int, tasks: list[tuple[Run, dict[str, Any]]]) -> Table:
    table = Table(title=f"{runs} run(s)", title_justify="left")
    for column in ("DAG", "run", "task", "state", "try", "seconds"):
        table.add_column(column)
    for (dag, run), task in sorted(tasks, key=lambda item: item[1].get("start_date") or "~"):
        state = task["state"] or "waiting"
        shown = Text(state, COLOURS.get(state, "white"))
        table.add_row(dag, run[:32], task["task_id"], shown, str(task["try_number"]), _seconds(task))
    return table


def _seconds(task: dict[str, Any]) -> str:
    """Return how long a task took or has been at work; empty if it has not begun."""
    if task.get("duration"):
        return f"{task['duration']:.1f}"
    if not task.get("start_date") or task["state"] != "running":
        return ""
    return f"{(datetime.now(UTC) - datetime.fromisoformat(task['start_date'])).total_seconds():.0f}"
