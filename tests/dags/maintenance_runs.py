"""Program of test_maintenance_runs.py: runs of maintenance_orders by Airflow's own task runner.

Its approvals are answered by Airflow's REST API, in this process: no server is started. It prints a JSON line
for each run.
"""

import json
import sys
import threading
import time

from airflow.api_fastapi.app import create_app
from fastapi.testclient import TestClient

from tagmill.maintenance.journal_cleanup import clean as module
from tests.support.airflow_names import DagBag

DAG = "maintenance_orders"
CONF = {"operation": "journal clean", "to": 5, "persistence_ids": ["p-1", "p-2"]}
deleted = []


def clean(settings, pipeline, persistence_ids, wanted, *, owner, delete, tell):
    """Take the library's place: note what it is asked for and return a report."""
    deleted.append([list(persistence_ids), delete])
    return {"events": 20, "refused": 0, "unknown": 0, "refusals": [], "warnings": [], "message": "# said"}


def answer(client, headers, option, questions):
    """Wait for a run's approval, for at most two minutes, and answer it by REST."""
    for _ in range(120):
        time.sleep(1)
        path = f"/api/v2/dags/{DAG}/dagRuns/~/hitlDetails?response_received=false"
        for detail in client.get(path, headers=headers).json()["hitl_details"]:
            task = detail["task_instance"]
            if task["state"] == "awaiting_input":
                path = f"/api/v2/dags/{DAG}/dagRuns/{task['dag_run_id']}/taskInstances/approve/-1/hitlDetails"
                body = {"chosen_options": [option], "params_input": {}}
                client.patch(path, headers=headers, json=body).raise_for_status()
                questions.append({"subject": detail["subject"], "body": detail["body"]})
                return


def main(folder):
    """Run the DAG as a dry run, then rejected, then approved."""
    module.clean = clean
    with TestClient(create_app(apps="core")) as client:
        headers = {"Authorization": f"Bearer {client.get('/auth/token').json()['access_token']}"}
        for option in (None, "Reject", "Approve"):
            deleted.clear()
            questions = []
            if option:
                given = (client, headers, option, questions)
                threading.Thread(target=answer, args=given, daemon=True).start()
            dag = DagBag(dag_folder=folder).dags[DAG]
            run = dag.test(run_conf={**CONF, "dry_run": option is None})
            tasks = {task.task_id: str(task.state) for task in run.get_task_instances()}
            shown = {"state": str(run.state), "tasks": tasks, "deleted": deleted, "questions": questions}
            print("RUN", json.dumps(shown), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
