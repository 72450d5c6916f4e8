"""Run `airflow standalone` without its log servers, which listen on every interface at fixed ports.

Runs in the Airflow environment.

On one machine the API server reads the log files themselves, so nothing is lost, and several stacks can run
at once.
"""

import signal
from typing import Any

from airflow.cli.commands import standalone_command


class QuietCommand(standalone_command.SubCommand):
    """A component of Airflow that serves no logs."""

    def __init__(self, parent: Any, name: str, command: list[str], env: dict[str, str]) -> None:
        skip = ["--skip-serve-logs"] if name in ("scheduler", "triggerer") else []
        super().__init__(parent, name=name, command=[*command, *skip], env=env)


if __name__ == "__main__":
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a process started in the background ignores SIGINT by default
    standalone_command.SubCommand = QuietCommand
    standalone_command.StandaloneCommand.entrypoint(None)
