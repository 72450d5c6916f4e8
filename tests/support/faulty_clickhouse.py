"""Run the local ClickHouse with faults on demand, to test what happens to an INSERT when the answer, or the
server, is lost.

    POST /_fault {"kind": ..., "match": "INSERT INTO", "times": 1, "ms": 200, "code": 241}    queue a fault
    POST /_reset    forget faults and the log
    POST /_login password   -> port of the same database that asks user `default` for this password
    GET  /_log   -> [[start of the statement, insert_deduplication_token, fault kind or ""], ...]

kind          statement runs   client sees
error_before  no               500 with exception code (default 241, memory limit)
drop_before   no               connection closed (clickhouse_connect repeats the request once by itself)
delay         yes              the answer after ms
drop_after    yes              connection closed after the commit (the same silent repeat: doubles if nothing
                               deduplicates)
error_after   yes              500 after the commit (default code 209, timeout)
kill_during   perhaps          SIGKILL of the server ms after the statement began
kill_after    yes              SIGKILL after the commit, before the answer
"""

import json
import os
import re
import signal
import socket
import threading
import time
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from local import clickhouse_http
from local.clickhouse_engine import Statement, execute

KINDS = {"error_before", "drop_before", "delay", "drop_after", "error_after", "kill_during", "kill_after"}
FAULTS: list[dict[str, Any]] = []
LOG: list[list[str]] = []
LOCK = threading.Lock()


def take(sql: str) -> dict[str, Any]:
    """Return the next queued fault that matches this statement, and count it as used; {} if none matches."""
    with LOCK:
        for fault in FAULTS:
            if fault["times"] > 0 and re.search(fault.get("match", ""), sql, re.I):
                fault["times"] -= 1
                return fault
    return {}


def die() -> None:
    """End this server as a crash would."""
    os.kill(os.getpid(), signal.SIGKILL)


class FaultyHandler(clickhouse_http.Handler):
    """The handler with the control paths and the faults."""

    def do_POST(self) -> None:
        """Answer the control paths; pass all other requests to the local ClickHouse."""
        path = urlsplit(self.path).path
        if path == "/_log":
            self.body()
            return self.reply(200, json.dumps(LOG).encode())
        if path == "/_reset":
            self.body()
            FAULTS.clear()
            LOG.clear()
            return self.reply(200)
        if path == "/_fault":
            fault = {"times": 1, **json.loads(self.body())}
            if fault.get("kind") not in KINDS:
                return self.reply(400, f"kind must be one of {sorted(KINDS)}".encode())
            FAULTS.append(fault)
            return self.reply(200)
        if path == "/_login":
            LoginHandler.password = self.body().decode()
            server = clickhouse_http.Server(("127.0.0.1", 0), LoginHandler, None)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            return self.reply(200, json.dumps(server.server_address[1]).encode())
        super().do_POST()

    do_GET = do_HEAD = do_POST

    def drop(self) -> None:
        """Close the connection without an answer."""
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def injected(self, code: int, when: str) -> None:
        """Answer with an injected error, which the statement didn't cause."""
        self.fail(f"Code: {code}. DB::Exception: injected {when} the statement. (INJECTED)")

    def statement(self, statement: Statement) -> None:
        """Run one statement under the fault that was queued for it."""
        fault = take(statement.sql)
        kind = fault.get("kind", "")
        LOG.append(
            [statement.sql.strip()[:100], statement.parameters.get("insert_deduplication_token", ""), kind]
        )
        if kind == "delay":
            time.sleep(fault.get("ms", 200) / 1000)
        if kind == "drop_before":
            return self.drop()
        if kind == "error_before":
            return self.injected(fault.get("code", 241), "before")
        if kind == "kill_during":
            threading.Timer(fault.get("ms", 50) / 1000, die).start()
        if kind in ("kill_after", "drop_after", "error_after"):
            return self.fault_after(kind, fault, statement)
        super().statement(statement)

    def fault_after(self, kind: str, fault: dict[str, Any], statement: Statement) -> None:
        """Commit the statement, then lose the answer or the server."""
        try:
            execute(self.database, statement)
        except RuntimeError as error:  # the statement itself failed: no fault to inject
            return self.fail(str(error))
        if kind == "kill_after":
            die()
        if kind == "drop_after":
            return self.drop()
        self.injected(fault.get("code", 209), "after the commit of")


class LoginHandler(FaultyHandler):
    """The handler of the port that asks for a password."""


def order(port: int, kind: str, **details: Any) -> None:
    """Queue a fault at a running faulty server, from a test."""
    _post(port, "/_fault", json.dumps({"kind": kind, **details}).encode())


def reset(port: int) -> None:
    """Clear the faults and the log of a running faulty server."""
    _post(port, "/_reset")


def port_with_login(port: int, password: str) -> int:
    """Let a running faulty server serve its database on a second port, where user `default` needs this
    password; return the port.
    """
    return int(_post(port, "/_login", password.encode()))


def log(port: int) -> list[list[str]]:
    """Return the start, the deduplication token and the fault of each statement that the server received."""
    seen: list[list[str]] = json.loads(_post(port, "/_log"))
    return seen


def _post(port: int, path: str, data: bytes = b"") -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data=data, timeout=10) as answer:
        return bytes(answer.read())


if __name__ == "__main__":
    clickhouse_http.main(FaultyHandler)
