"""A mail server that keeps what it is sent, for tests of notifiers."""

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

REPLIES = {"EHLO": "250 here", "MAIL": "250 ok", "RCPT": "250 ok", "RSET": "250 ok", "QUIT": "221 bye"}


class _Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self._say("220 here")
        while line := self.rfile.readline().decode().strip():
            verb = line[:4].upper()
            if verb != "DATA":
                self._say(REPLIES.get(verb, "502 unknown"))
                continue
            self._say("354 go on")
            text = ""
            while (part := self.rfile.readline().decode()) != ".\r\n":
                text += part
            self.server.mails.append(text)  # type: ignore[attr-defined]
            self._say("250 kept")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


@contextmanager
def mail_server() -> Iterator[tuple[str, list[str]]]:
    """Yield the Airflow connection of a mail server, as its environment variable has it, and the mails it gets."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Session) as server:
        mails: list[str] = []
        server.mails = mails  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        extra = {"disable_ssl": True, "disable_tls": True, "from_email": "airflow@example.org"}
        host, port = server.server_address[:2]
        yield json.dumps({"conn_type": "smtp", "host": host, "port": port, "extra": extra}), mails
        server.shutdown()
