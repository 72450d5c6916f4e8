"""`airflow standalone` without its log servers, which listen on every interface at fixed ports. Runs in the Airflow environment.

On one machine the API server reads the log files themselves, so nothing is lost, and several stacks stand beside each other.
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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever was started in the background ignores it
    standalone_command.SubCommand = QuietCommand
    standalone_command.StandaloneCommand.entrypoint(None)
