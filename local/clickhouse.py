"""Run the ClickHouse engine (chDB) as a separate server process, for clickhouse-connect and curl."""

import os
import sys
import urllib.request
from pathlib import Path
from typing import ClassVar

from local.layout import ROOT
from local.service import Service


class ClickHouse(Service):
    """Owns the database in home/db; `module` is the server program (tests pass one that injects faults)."""

    name: ClassVar[str] = "clickhouse"
    stop_seconds: ClassVar[float] = 60  # seconds: running statements end first
    start_seconds: ClassVar[float] = 60

    def __init__(
        self, home: Path, port: int, module: str = "local.clickhouse_http", password: str | None = None
    ) -> None:
        super().__init__(home, port)
        self.module, self.password = module, password

    def where(self) -> str:
        """Return the HTTP address."""
        return f"http://127.0.0.1:{self.port} (HTTP)"

    def command(self) -> list[str]:
        """Return the command that starts the server program in this Python environment."""
        return [sys.executable, "-m", self.module, "--home", str(self.home), "--port", str(self.port)]

    def environment(self) -> dict[str, str]:
        """Return the server's variables: the project on PYTHONPATH, UTC, and the password of user `default`
        if one is set.
        """
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        secret = {"TAGMILL_LOCAL_CLICKHOUSE_PASSWORD": self.password} if self.password else {}
        return {"PYTHONPATH": path, "TZ": "UTC", **secret}

    def healthy(self) -> bool:
        """Return whether GET /ping answers Ok., as it does once the database is open."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ping", timeout=2) as answer:
                return bool(answer.read() == b"Ok.\n")
        except OSError:
            return False
