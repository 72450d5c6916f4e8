"""Run the ClickHouse engine (chDB) as a separate server process, for clickhouse-connect and curl."""

import os
import sys
import urllib.request
from pathlib import Path
from typing import ClassVar

from local.layout import ROOT
from local.service import Service
from local.tls import ServerTls


class ClickHouse(Service):
    """Owns the database in home/db; `module` is the server program (tests pass one that injects faults).

    With `tls` it serves only clients with a certificate of the authority.
    """

    name: ClassVar[str] = "clickhouse"
    stop_seconds: ClassVar[float] = 60  # seconds: running statements end first
    start_seconds: ClassVar[float] = 60

    def __init__(
        self,
        home: Path,
        port: int,
        module: str = "local.clickhouse_http",
        password: str | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        super().__init__(home, port)
        self.module, self.password, self.tls = module, password, tls

    def where(self) -> str:
        """Return the HTTP address."""
        return f"{self._url()} (HTTP)"

    def _url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """Return the command that starts the server program in this Python environment."""
        files = map(str, (self.tls.certificate, self.tls.key, self.tls.authority)) if self.tls else ()
        tls = ["--tls", *files] if self.tls else []
        return [sys.executable, "-m", self.module, "--home", str(self.home), "--port", str(self.port), *tls]

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
            context = self.tls.client_context() if self.tls else None
            with urllib.request.urlopen(f"{self._url()}/ping", timeout=2, context=context) as answer:
                return bool(answer.read() == b"Ok.\n")
        except OSError:
            return False
