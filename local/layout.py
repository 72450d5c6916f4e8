"""Name what belongs to one stack: its folder and its ports.

Several stacks with different homes and ports can run at once.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from tagmill.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[1]
HOME_VARIABLE = "TAGMILL_HOME"
PORT_VARIABLE = "TAGMILL_LOCAL_{}_PORT"
PORTS = {"cassandra": 19042, "clickhouse": 18123, "kafka": 19092, "airflow": 18080}


@dataclass(frozen=True)
class Ports:
    """The TCP ports of a stack, all on 127.0.0.1.

    Cassandra's and Kafka's internal ports are derived from their client ports.
    """

    cassandra: int = PORTS["cassandra"]
    clickhouse: int = PORTS["clickhouse"]
    airflow: int = PORTS["airflow"]
    kafka: int = PORTS["kafka"]


@dataclass(frozen=True)
class StackLayout:
    """The folders and ports of one stack, which writes only below `home`."""

    home: Path
    ports: Ports
    config_name: str = "tagmill.toml"
    root: Path = ROOT

    @property
    def jars(self) -> Path:
        """The folder that has one folder of jars per configuration of local/jars/ivy.xml."""
        return self.root / "build" / "jars"

    @property
    def config(self) -> Path:
        """The configuration file that Airflow and the demo use."""
        return self.home / self.config_name

    @property
    def airflow_venv(self) -> Path:
        """The Python environment with Airflow; this process runs in the Spark environment."""
        return Path(os.environ.get("TAGMILL_AIRFLOW_VENV") or self.root / "build" / "venvs" / "airflow")

    def remember(self) -> None:
        """Write the ports into the home, so that `down` and `status` need no options."""
        self.home.mkdir(parents=True, exist_ok=True)
        (self.home / "ports.json").write_text(json.dumps(asdict(self.ports)))


def resolve(home: str | Path | None = None, ports: Mapping[str, int | None] | None = None) -> StackLayout:
    """Return the stack's folder and ports: from the options, else the environment, else the ports of its last start,
    else the defaults.
    """
    folder = Path(home or os.environ.get(HOME_VARIABLE) or ROOT / "build" / "local").resolve()
    chosen = {
        **PORTS,
        **_remembered(folder),
        **_from_environment(),
        **{k: v for k, v in (ports or {}).items() if v},
    }
    return StackLayout(folder, Ports(**chosen))


def _remembered(home: Path) -> dict[str, int]:
    try:
        content = json.loads((home / "ports.json").read_text())
    except (OSError, ValueError):
        return {}
    return {name: port for name, port in content.items() if name in PORTS}


def _from_environment() -> dict[str, int]:
    found = {}
    for name in PORTS:
        variable = PORT_VARIABLE.format(name.upper())
        if text := os.environ.get(variable):
            if not text.isdigit() or not 1024 <= int(text) <= 65535:
                raise ConfigurationError(
                    f"{variable}={text} is no port: give a number from 1024 to 65535. Nothing was started."
                )
            found[name] = int(text)
    return found
