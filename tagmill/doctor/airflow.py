"""Check the pools and connections of Airflow, where this Python is Airflow's."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tagmill.config.airflow import creating_pools
from tagmill.config.settings import CONFIG_VARIABLE
from tagmill.doctor.model import Findings, fine, not_checked, warning, wrong

POOLS, CONNECTIONS = "airflow pools", "airflow connections"
# Seconds for Airflow to start and to answer.
ANSWER_SECONDS = 60
CURE = "run tagmill doctor with the Python and the environment of Airflow"


class NoAnswer(Exception):
    """Airflow can't be asked; the message says why, without anything that Airflow printed."""


def installed() -> bool:
    """Return whether this Python has Airflow."""
    return find_spec("airflow") is not None and find_spec("airflow.sdk") is not None


def examine(file: Path) -> Findings:
    """Check pools and connections; `file`: the configuration."""
    if not installed():
        yield not_checked(POOLS, "Airflow is not installed in this Python", CURE)
        yield not_checked(CONNECTIONS, "Airflow is not installed in this Python", CURE)
        return
    try:
        told = _ask(file)
    except NoAnswer as error:
        yield not_checked(POOLS, str(error), CURE)
        yield not_checked(CONNECTIONS, str(error), CURE)
        return
    if missing := told["missing_pools"]:
        said = f"no pool {', '.join(missing)}: tasks run in the default pool"
        yield warning(POOLS, said, creating_pools(missing))
    else:
        yield fine(POOLS, ", ".join(f"{name} ({slots} slots)" for name, slots in told["pools"].items()))
    if told["error"]:
        yield wrong(CONNECTIONS, told["error"], "correct the extra of the connection")
    else:
        named, absent = ", ".join(told["connections"]) or "none", ", ".join(told["missing_connections"])
        said = f"{named}; without {absent} the file and the environment hold" if absent else named
        yield fine(CONNECTIONS, said)


def _ask(file: Path) -> dict[str, Any]:
    """Return what the program tagmill.airflow.inventory says; raises NoAnswer.

    What Airflow prints is not repeated: it may name the database with its password.
    """
    command = [sys.executable, "-P", "-m", "tagmill.airflow.inventory"]
    environment = os.environ | {CONFIG_VARIABLE: str(file.absolute())}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise NoAnswer(f"Airflow did not answer in {ANSWER_SECONDS} s") from None
    if done.returncode:
        errors = re.findall(r"^([\w.]+(?:Error|Exception))\b", done.stderr, re.MULTILINE)
        raise NoAnswer(f"Airflow's database can't be read ({errors[-1] if errors else 'no reason given'})")
    told: dict[str, Any] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return told
