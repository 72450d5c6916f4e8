"""Call the parts of Airflow's REST API that the stack and the demo need: token, pools, DAG runs, task
states.
"""

import json
import time
import urllib.error
import urllib.request
from typing import Any

from tagmill.errors import StoreUnavailable

FINAL = frozenset({"success", "failed"})


class AirflowApi:
    """A client of Airflow's REST API with its own token; raises StoreUnavailable with Airflow's answer."""

    def __init__(self, base: str, user: str, password: str) -> None:
        self.base, self._credentials = base, {"username": user, "password": password}
        self._token: str | None = None

    def dag_is_there(self, dag: str) -> bool:
        """Return whether Airflow has parsed the DAG."""
        return self.call("GET", f"/dags/{dag}", missing_is_none=True) is not None

    def import_errors(self) -> list[str]:
        """Return one line for each DAG file that Airflow could not import: its path and the last line of the
        stack trace.
        """
        found = self.call("GET", "/importErrors")["import_errors"]
        return [f"{error['filename']}: {error['stack_trace'].strip().splitlines()[-1]}" for error in found]

    def pause(self, dag: str, paused: bool) -> None:
        """Switch a DAG's schedule off or on; a paused DAG doesn't start runs that were triggered by hand
        either.
        """
        self.call("PATCH", f"/dags/{dag}", {"is_paused": paused})

    def trigger(self, dag: str, conf: dict[str, Any] | None = None) -> str:
        """Trigger a run of a DAG and return the run's id."""
        return str(
            self.call("POST", f"/dags/{dag}/dagRuns", {"logical_date": None, "conf": conf or {}})[
                "dag_run_id"
            ]
        )

    def runs(self, dag: str) -> dict[str, str]:
        """Return the state of each of a DAG's last 100 runs by run id, newest first."""
        found = self.call("GET", f"/dags/{dag}/dagRuns?order_by=-id&limit=100")["dag_runs"]
        return {run["dag_run_id"]: run["state"] for run in found}

    def run_state(self, dag: str, run: str) -> str:
        """Return the state of one run: queued, running, success or failed."""
        return str(self.call("GET", f"/dags/{dag}/dagRuns/{run}")["state"])

    def tasks(self, dag: str, run: str) -> list[dict[str, Any]]:
        """Return the task instances of a run, with task_id, map_index, state, try_number and duration."""
        found: list[dict[str, Any]] = self.call("GET", f"/dags/{dag}/dagRuns/{run}/taskInstances?limit=200")[
            "task_instances"
        ]
        return found

    def log_tail(self, dag: str, run: str, task: dict[str, Any], lines: int = 5) -> list[str]:
        """Return the first line of each of the last `lines` errors in a task's log."""
        path = f"/dags/{dag}/dagRuns/{run}/taskInstances/{task['task_id']}/logs/{task['try_number']}?map_index={task['map_index']}"
        content = self.call("GET", path)["content"]
        events = [
            (entry.get("error_detail") or [{}])[0].get("exc_value") or entry.get("event", "")
            for entry in content
            if isinstance(entry, dict) and entry.get("level") in ("error", "critical")
        ]
        return [event.strip().splitlines()[0] for event in events if event.strip()][-lines:]

    def pools(self) -> set[str]:
        """Return the names of all pools."""
        return {str(pool["name"]) for pool in self.call("GET", "/pools")["pools"]}

    def set_pool(self, name: str, slots: int, description: str) -> None:
        """Create a pool; leave an existing pool unchanged."""
        if self.call("GET", f"/pools/{name}", missing_is_none=True) is None:
            self.call("POST", "/pools", {"name": name, "slots": slots, "description": description})

    def call(self, method: str, path: str, body: Any = None, missing_is_none: bool = False) -> Any:
        """Make a call with the token, and return the answer's JSON; raises StoreUnavailable."""
        self._token = self._token or self._login()
        try:
            return self._request(
                method, f"{self.base}/api/v2{path}", body, {"Authorization": f"Bearer {self._token}"}
            )
        except urllib.error.HTTPError as error:
            if error.code == 404 and missing_is_none:
                return None
            raise StoreUnavailable(
                f"Airflow answered {error.code} to {method} {path}: "
                f"{error.read()[:300].decode(errors='replace')}"
            ) from None
        except OSError as error:
            raise StoreUnavailable(f"Airflow doesn't answer on {self.base}: {error}") from None

    def _login(self, attempts: int = 20) -> str:
        for attempt in range(attempts):  # Airflow reports healthy shortly before its login answers
            try:
                return str(
                    self._request("POST", f"{self.base}/auth/token", self._credentials, {})["access_token"]
                )
            except (urllib.error.URLError, OSError) as error:
                if attempt + 1 == attempts:
                    raise StoreUnavailable(f"Airflow's login on {self.base} failed: {error}") from None
                time.sleep(0.5)
        raise AssertionError

    @staticmethod
    def _request(method: str, url: str, body: Any, headers: dict[str, str]) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            url, data=data, method=method, headers={**headers, "Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"null")
