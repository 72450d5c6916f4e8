"""Measure a scheduled run with nothing to do: Airflow's wall time, its parts, and how many JVMs were started.

bin/run                  in another terminal, until it says that everything stays up
bench/idle [ROUNDS]
"""

import statistics
import sys
import time
from datetime import datetime

from local import layout
from local.airflow_api import FINAL
from local.processes import marked
from local.stack import Stack

DAG = "deliver_orders"


def main(rounds: int = 3) -> None:
    """Trigger the DAG `rounds` times, one run after the other, and print a table."""
    airflow = Stack(layout.resolve()).airflow
    api, walls = airflow.api(), []
    print(
        "| round | queued s | plan s | in all s | tasks that ran | JVMs started |\n|---|---|---|---|---|---|"
    )
    for round_ in range(1, rounds + 1):
        begun, started = time.monotonic(), set[int]()
        run = api.trigger(DAG)
        while (state := api.run_state(DAG, run)) not in FINAL:
            started |= {process.pid for process in marked(airflow.mark) if process.name() == "java"}
            time.sleep(0.1)
        walls.append(time.monotonic() - begun)
        ran = {task["task_id"]: task for task in api.tasks(DAG, run) if task["state"] == "success"}
        plan = ran["plan"]
        queued = (
            datetime.fromisoformat(plan["start_date"]) - datetime.fromisoformat(plan["queued_when"])
        ).total_seconds()
        print(
            f"| {round_} | {queued:.1f} | {plan['duration']:.1f} | {walls[-1]:.1f} | {', '.join(ran)} "
            f"({state}) | {len(started)} |"
        )
    print(f"\nmedian {statistics.median(walls):.1f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
