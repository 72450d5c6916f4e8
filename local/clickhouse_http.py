"""Serve ClickHouse's HTTP interface on the embedded engine: the transport.

    python -m local.clickhouse_http --home build/local/clickhouse --port 18123

It runs in the foreground until SIGTERM.

One process owns a database folder; it must not be forked. Rows of an INSERT go from the socket straight into
a spool file. Not supported: sessions, users (except one password), roles, replication, system.query_log,
external data, progress headers.
"""

import argparse
import base64
import binascii
import gzip
import hmac
import json
import os
import re
import signal
import ssl
import sys
import tempfile
import threading
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, ClassVar, cast
from urllib.parse import parse_qsl, urlsplit

from local.clickhouse_engine import HEAD, INSERT, Answer, Statement, execute, takes_rows
from local.tls import ServerTls

CHUNK = 1 << 20
HANDSHAKE_SECONDS = 10
NOT_FOUND = ("60", "81")  # ClickHouse's error codes for an unknown table and an unknown database


def decompress(body: bytes, encoding: str) -> bytes:
    """Return a request body as it was before the client compressed it; `encoding` is the Content-Encoding."""
    if encoding == "gzip":
        return gzip.decompress(body)
    if encoding == "deflate":
        return zlib.decompress(body)
    if encoding == "lz4":
        import lz4.frame

        return bytes(lz4.frame.decompress(body))
    if encoding == "zstd":
        from backports import zstd  # comes with clickhouse-connect

        return bytes(zstd.decompress(body))
    return body


def form_fields(content_type: str, body: bytes) -> dict[str, str]:
    """Return the fields of a form, in which clients send values that have no room in the address."""
    form = BytesParser().parsebytes(f"Content-Type: {content_type}\r\n\r\n".encode() + body)
    return {
        str(part.get_param("name", header="Content-Disposition")): cast(
            bytes, part.get_payload(decode=True)
        ).decode()
        for part in form.walk()
        if not part.is_multipart()
    }


class Handler(BaseHTTPRequestHandler):
    """Handles the requests of one client connection."""

    protocol_version, server_version = "HTTP/1.1", "chdb-http"
    rbufsize = wbufsize = CHUNK  # buffers a whole answer, so that it leaves as one packet
    disable_nagle_algorithm = True  # the second of two packets would otherwise wait 40 ms
    database: ClassVar[str]
    password: ClassVar[str | None] = None
    server: "Server"

    def log_message(self, *args: object) -> None:
        """Suppress the access log of http.server."""

    def pieces(self) -> Iterator[memoryview | bytes]:
        """Yield the request body as it arrives; to be called exactly once per request."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        buffer = memoryview(bytearray(min(CHUNK, left)))
        while left:
            count = self.rfile.readinto(buffer[: min(CHUNK, left)])
            if not count:
                raise ConnectionError("the client went away")
            left -= count
            yield buffer[:count]

    def body(self) -> bytes:
        """Read the whole request body and decompress it."""
        return decompress(
            b"".join(bytes(piece) for piece in self.pieces()), self.headers.get("Content-Encoding", "")
        )

    def reply(self, code: int, body: bytes = b"", **headers: str) -> None:
        """Send an answer; underscores in header names become hyphens."""
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, message: str) -> None:
        """Send an error as ClickHouse's HTTP interface does: 404 for an unknown table or database, otherwise
        500.
        """
        match = re.search(r"Code: (\d+)", message)
        code = match[1] if match else "1002"
        self.reply(404 if code in NOT_FOUND else 500, message.encode(), X_ClickHouse_Exception_Code=code)

    def statement(self, statement: Statement) -> None:
        """Run one statement and send its answer; the tests' faulty server overrides this."""
        try:
            answer = execute(self.database, statement)
        except RuntimeError as error:
            return self.fail(str(error))
        self.succeed(statement, answer)

    def succeed(self, statement: Statement, answer: Answer) -> None:
        """Send the result's rows, if any, with the summary of the written rows as a header."""
        headers = {
            "X_ClickHouse_Query_Id": statement.parameters.get("query_id") or str(uuid.uuid4()),
            "X_ClickHouse_Timezone": "UTC",
            "X_ClickHouse_Summary": json.dumps({"written_rows": str(answer.written)}),
        }
        if answer.format:
            headers["X_ClickHouse_Format"] = answer.format
        self.reply(200, answer.data, **headers)

    @contextmanager
    def received(self, parameters: dict[str, str]) -> Iterator[Statement]:
        """Yield this request's statement, with its rows in a spool file that exists until the context
        ends.
        """
        sql = parameters.get("query", "")
        with tempfile.NamedTemporaryFile(
            dir=Path(self.database).parent, prefix="spool-", buffering=0
        ) as spool:
            path = Path(spool.name)
            if takes_rows(sql):
                spooled = self._spool(spool)
                yield Statement(sql, parameters, path if spooled else None)
                return
            body = self.body()
            if (kind := self.headers.get("Content-Type", "")).startswith("multipart/form-data"):
                fields = form_fields(kind, body)
                text = "\n".join(filter(None, [sql, fields.pop("query", "")]))
                yield Statement(text, {**parameters, **fields})
                return
            head = HEAD.match(body) if not sql and INSERT.match(body[:200].decode("latin1")) else None
            if head and takes_rows(head.group().decode()):
                spool.write(memoryview(body)[head.end() :])
                yield Statement(head.group().decode(), parameters, path)
            else:  # ClickHouse joins ?query= and the body
                yield Statement("\n".join(filter(None, [sql, body.decode()])), parameters)

    def _spool(self, spool: "IO[bytes] | tempfile._TemporaryFileWrapper[bytes]") -> int:
        encoding = self.headers.get("Content-Encoding", "")
        if encoding not in ("", "identity"):
            body = self.body()
            spool.write(body)
            return len(body)
        total = 0
        for piece in self.pieces():
            spool.write(piece)
            total += len(piece)
        return total

    def _allowed(self, parameters: dict[str, str]) -> bool:
        if self.password is None:
            return True
        user, key = self.headers.get("X-ClickHouse-User"), self.headers.get("X-ClickHouse-Key")
        if self.headers.get("X-ClickHouse-SSL-Certificate-Auth") == "on":
            return user == "default" and user in self._names_shown()
        if (basic := self.headers.get("Authorization", "")).startswith("Basic "):
            try:
                user, _, key = base64.b64decode(basic[6:]).decode().partition(":")
            except (binascii.Error, UnicodeDecodeError):
                return False
        user, key = user or parameters.get("user", ""), key or parameters.get("password", "")
        return user == "default" and hmac.compare_digest(key.encode(), self.password.encode())

    def _names_shown(self) -> set[str]:
        """Return the common names of the client's certificate; none without TLS."""
        shown = self.connection.getpeercert() if isinstance(self.connection, ssl.SSLSocket) else None
        subject: Any = (shown or {}).get("subject", ())
        return {value for part in subject for name, value in part if name == "commonName"}

    def do_POST(self) -> None:
        """Run the statement given in ?query=, in the body, or in both, and answer /ping."""
        url = urlsplit(self.path)
        if url.path == "/ping":
            self.body()
            return self.reply(200, b"Ok.\n")
        parameters = dict(parse_qsl(url.query, keep_blank_values=True))
        if not self._allowed(parameters):
            self.close_connection = True
            text = (
                b"Code: 516. DB::Exception: default: Authentication failed: password is incorrect. "
                b"(AUTHENTICATION_FAILED)"
            )
            return self.reply(403, text, X_ClickHouse_Exception_Code="516", Connection="close")
        if not self.server.enter():
            self.close_connection = True
            return self.reply(503, b"stopping", Connection="close")
        try:
            with self.received(parameters) as statement:
                self.statement(statement)
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except OSError as error:  # a full disk under the spool file
            self.close_connection = True
            self.fail(
                f"Code: 243. DB::Exception: Cannot reserve space for the request: {error}. (NOT_ENOUGH_SPACE)"
            )
        finally:
            self.server.leave()

    do_GET = do_HEAD = do_POST


class Server(ThreadingHTTPServer):
    """Counts the running statements, so that a stop can wait for them."""

    daemon_threads, block_on_close = True, False  # idle keep-alive connections must not delay the stop
    request_queue_size = 64

    def __init__(
        self, address: tuple[str, int], handler: type[Handler], tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(address, handler)
        self.tls = tls
        self._change, self._running, self._stopping = threading.Condition(), 0, False

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, with TLS after the handshake; a client that fails it is left alone."""
        if self.tls is None:
            return super().finish_request(request, client_address)
        with suppress(OSError):
            request.settimeout(HANDSHAKE_SECONDS)
            with self.tls.wrap_socket(request, server_side=True) as connection:
                connection.settimeout(None)
                super().finish_request(connection, client_address)

    def enter(self) -> bool:
        """Count a statement as running; return False if the server is stopping."""
        with self._change:
            self._running += not self._stopping
            return not self._stopping

    def leave(self) -> None:
        """Count a running statement as ended."""
        with self._change:
            self._running -= 1
            self._change.notify_all()

    def drain(self) -> None:
        """Refuse new statements and wait until the running ones have ended."""
        with self._change:
            self._stopping = True
            self._change.wait_for(lambda: self._running == 0)


def serve(home: Path, port: int, handler: type[Handler] = Handler, tls: ssl.SSLContext | None = None) -> None:
    """Open the database and answer requests until SIGTERM or SIGINT; running statements end first."""
    import chdb

    home.mkdir(parents=True, exist_ok=True)
    for left_behind in home.glob("spool-*"):
        left_behind.unlink()
    handler.database = str(home.resolve() / "db")
    handler.password = os.environ.get("TAGMILL_LOCAL_CLICKHOUSE_PASSWORD") or None
    pinned = chdb.connect(handler.database)  # the engine stays open while the process lives
    with Server(("127.0.0.1", port), handler, tls) as server:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
        server.serve_forever(poll_interval=0.1)
        server.drain()
    pinned.close()


def main(handler: type[Handler] = Handler) -> None:
    """Parse the command line and serve with this handler."""
    parser = argparse.ArgumentParser(
        description=(sys.modules[handler.__module__].__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tls", type=Path, nargs=3, metavar=("CERTIFICATE", "KEY", "AUTHORITY"))
    arguments = parser.parse_args()
    tls = ServerTls(*arguments.tls).server_context() if arguments.tls else None
    serve(arguments.home, arguments.port, handler, tls)


if __name__ == "__main__":
    main()
