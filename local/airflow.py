"""Run Airflow standalone on the stack: in its own home, with the project's DAGs and plugins, and connections
by environment.

It runs in the Airflow environment (build/venvs/airflow), its Spark jobs in the environment of this program. SIGTERM to
`airflow standalone` would orphan its children. It is therefore stopped with SIGINT, and processes that are left are
ended by their mark.
"""

import json
import os
import secrets
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any, ClassVar

from local.airflow_api import AirflowApi
from local.errors import one_line
from local.java import SPARK, find_java, java_home
from local.layout import StackLayout
from local.service import Service
from tagmill.errors import ConfigurationError

NEEDED = ("metadatabase", "scheduler", "dag_processor")
POOLS = {
    "spark": (1, "Spark jobs: one JVM at a time on one machine"),
    "clickhouse": (2, "Inserts into ClickHouse"),
}
PASSWORDS = "simple_auth_manager_passwords.json.generated"


class Airflow(Service):
    """Scheduler, DAG processor, API server and triggerer of one stack."""

    name: ClassVar[str] = "airflow"
    stop_signal: ClassVar[int] = signal.SIGINT
    stop_seconds: ClassVar[float] = 20  # seconds: Airflow waits for running tasks, which are safe to kill

    def __init__(self, layout: StackLayout) -> None:
        super().__init__(layout.home / "airflow", layout.ports.airflow)
        self.layout = layout

    def where(self) -> str:
        """Return the address of the UI, with the login and the file of the password."""
        return f"http://127.0.0.1:{self.port} (UI and REST; user admin, password in {self.home / PASSWORDS})"

    def command(self) -> list[str]:
        """Return the command that starts Airflow standalone; raise ConfigurationError if Airflow or its Java
        is missing.
        """
        folder = self.layout.airflow_venv / "bin"
        if not (folder / "airflow").exists():
            raise ConfigurationError(
                f"there is no Airflow in {self.layout.airflow_venv}; Airflow was not started. Run bin/setup"
            )
        find_java(SPARK)  # Airflow's tasks start Spark, which needs this Java
        # -P keeps the folder `local` off the module path, where it would hide Airflow's own modules.
        return [str(folder / "python"), "-P", str(self.layout.root / "local" / "standalone.py")]

    def environment(self) -> dict[str, str]:
        """Return Airflow's settings, connections and PATH as environment variables."""
        return environment(self.layout, self.home)

    def healthy(self) -> bool:
        """Return whether Airflow reports its database, scheduler and DAG processor as healthy."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/api/v2/monitor/health", timeout=5
            ) as answer:
                state = json.load(answer)
        except (OSError, ValueError):
            return False
        return all((state.get(name) or {}).get("status") == "healthy" for name in NEEDED)

    def start(self) -> float:
        """Start Airflow, make the generated password readable by its owner only, and create the pools; return
        the seconds of the start.
        """
        seconds = super().start()
        (self.home / PASSWORDS).chmod(0o600)
        api = self.api()
        for name, (slots, description) in POOLS.items():
            api.set_pool(name, slots, description)
        return seconds

    def login(self) -> tuple[str, str]:
        """Return the user name and the generated password."""
        content = json.loads((self.home / PASSWORDS).read_text())
        return "admin", str(content["admin"])

    def api(self) -> AirflowApi:
        """Return a REST client with Airflow's login."""
        return AirflowApi(f"http://127.0.0.1:{self.port}", *self.login())

    def failure(self) -> str:
        """Return the log's last line that names an error, or its last line, leaving warnings out."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return one_line("\n".join(line for line in text.splitlines() if "Warning" not in line))


def environment(layout: StackLayout, home: Path) -> dict[str, str]:
    """Return the variables of an Airflow standalone on this stack: settings, connections, the environment
    for jobs, and PATH.
    """
    base = f"http://127.0.0.1:{layout.ports.airflow}"
    java = java_home(SPARK)
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(layout.root / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(layout.root / "plugins"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__AUTH_MANAGER": "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": "admin:admin",
        "AIRFLOW__API__HOST": "127.0.0.1",  # the default listens on every interface
        "AIRFLOW__API__PORT": str(layout.ports.airflow),
        "AIRFLOW__API__WORKERS": "1",
        # Workers derive the execution API's address from the base URL: without it, tasks fail on any port but
        # 8080.
        "AIRFLOW__API__BASE_URL": base,
        "AIRFLOW__API_AUTH__JWT_SECRET": _secret(home / "jwt-secret"),
        "AIRFLOW__CORE__FERNET_KEY": "",
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "15",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "60",  # seconds: a parse takes seconds of a core, and the files rarely change
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",  # the health check's port is fixed: two stacks could not run on one machine
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        "AIRFLOW__LOGGING__FILE_TASK_HANDLER_NEW_FOLDER_PERMISSIONS": "0o750",
        "AIRFLOW__LOGGING__FILE_TASK_HANDLER_NEW_FILE_PERMISSIONS": "0o640",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "NO_COLOR": "1",
        "SPT_NOENV": "1",  # stops process titles from overwriting the environment, where local.processes reads the mark
        "SCARF_ANALYTICS": "false",
        "DO_NOT_TRACK": "1",
        **connections(layout),
        "TAGMILL_CONFIG": str(layout.config),
        "TAGMILL_CASSANDRA__PORT": str(layout.ports.cassandra),
        "TAGMILL_CLICKHOUSE__PORT": str(layout.ports.clickhouse),
        "TAGMILL_KAFKA__BOOTSTRAP_SERVERS": json.dumps([f"127.0.0.1:{layout.ports.kafka}"]),
        "TAGMILL_SPARK__ENVIRONMENT": sys.prefix,
        "JAVA_HOME": java,
        "PATH": os.pathsep.join(
            [
                str(layout.airflow_venv / "bin"),
                f"{java}/bin",
                os.environ.get("PATH", os.defpath),
            ]
        ),
        "PYTHONPATH": "",
    }


def connections(layout: StackLayout) -> dict[str, str]:
    """Return the three Airflow connections that the demo pipeline names, as AIRFLOW_CONN_* variables."""

    def variable(content: dict[str, Any]) -> str:
        return json.dumps(content, separators=(",", ":"))

    return {
        "AIRFLOW_CONN_TAGMILL_CASSANDRA": variable(
            {"conn_type": "generic", "host": "127.0.0.1", "port": layout.ports.cassandra}
        ),
        "AIRFLOW_CONN_TAGMILL_CLICKHOUSE": variable(
            {"conn_type": "generic", "host": "127.0.0.1", "port": layout.ports.clickhouse}
        ),
        "AIRFLOW_CONN_TAGMILL_SPARK": variable(
            {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
        ),
    }


def _secret(file: Path) -> str:
    """Return the secret in a file; create the file first if it is missing, readable by its owner only."""
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(secrets.token_urlsafe(64))
    return file.read_text()
