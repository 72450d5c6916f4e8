"""Run one statement of ClickHouse's HTTP protocol on the embedded engine (chDB).

Every statement has its own chDB connection, so settings don't leak. The engine itself reads an INSERT's data
from a spool file: Python never parses them. In INSERT ... SELECT ... FROM input('structure') ... FORMAT X the
spool file replaces input(), which chDB can't feed.
"""

import re
from pathlib import Path
from typing import NamedTuple

# Request parameters of the HTTP protocol; every other request parameter is a setting of the statement.
TRANSPORT = frozenset(
    """query database session_id session_timeout session_check query_id quota_key compress decompress role user password
    wait_end_of_query client_protocol_version send_progress_in_http_headers http_headers_progress_interval_ms default_format
    buffer_size enable_http_compression cancel_http_readonly_queries_on_client_close""".split()
)
INSERT = re.compile(r"\s*INSERT\s+INTO\b", re.I)
TAIL_FORMAT = re.compile(r"\bFORMAT\s+(\w+)\s*;?\s*$", re.I)
HEAD = re.compile(rb"\s*INSERT\s+INTO\s+(?:(?!\bVALUES\b).)+?\bFORMAT\s+\w+[ \t]*(?:\r?\n|$)", re.I | re.S)
INPUT = re.compile(r"\binput\s*\(\s*('(?:[^'\\]|\\.)*')\s*\)", re.I)
READS = re.compile(r"\s*\(*\s*(SELECT|WITH|SHOW|DESC|EXISTS|EXPLAIN)", re.I)
SETTING = re.compile(r"\w+")


class Statement(NamedTuple):
    """A statement's text, its request parameters, and the file with the rows to insert (None: no rows)."""

    sql: str
    parameters: dict[str, str]
    spool: Path | None = None


class Answer(NamedTuple):
    """The result's bytes, their format ('' if the statement returns no rows), and the number of rows
    written.
    """

    data: bytes
    format: str
    written: int


def quote(value: str) -> str:
    """Return a value as a ClickHouse string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def takes_rows(sql: str) -> bool:
    """Return whether the statement is an INSERT ... FORMAT X, which rows follow; VALUES doesn't count."""
    tail = TAIL_FORMAT.search(sql)
    return bool(INSERT.match(sql) and tail and tail.group(1).upper() != "VALUES")


def execute(database: str, statement: Statement) -> Answer:
    """Run the statement on the database folder; raise RuntimeError with ClickHouse's message if it fails."""
    import chdb

    connection = chdb.connect(database)
    try:
        for preparation in _preparations(statement.parameters):
            connection.query(preparation)
        bind = {
            name[6:]: value for name, value in statement.parameters.items() if name.startswith("param_")
        } or None
        if statement.spool is not None:
            return Answer(
                b"",
                "",
                connection.query(reading_spool(statement.sql, statement.spool), params=bind).rows_written(),
            )
        sql = statement.sql.rstrip().rstrip(";")
        tail = TAIL_FORMAT.search(sql)
        format_ = tail.group(1) if tail else statement.parameters.get("default_format", "TabSeparated")
        result = connection.query(sql, format_, params=bind)
        data = result.bytes()
        return Answer(data, format_ if data or READS.match(sql) else "", result.rows_written())
    finally:
        connection.close()


def _preparations(parameters: dict[str, str]) -> list[str]:
    statements = ["USE `{}`".format((parameters.get("database") or "default").replace("`", ""))]
    settings = {
        name: value
        for name, value in parameters.items()
        if name not in TRANSPORT and not name.startswith("param_")
    }
    if bad := [name for name in settings if not SETTING.fullmatch(name)]:
        raise RuntimeError(f"Code: 115. DB::Exception: Unknown setting {bad[0]!r}. (UNKNOWN_SETTING)")
    if settings:
        statements.append("SET " + ", ".join(f"{name} = {quote(value)}" for name, value in settings.items()))
    return statements


def reading_spool(sql: str, spool: Path) -> str:
    """Return the INSERT with the spool file as the source of its rows."""
    tail = TAIL_FORMAT.search(sql)
    if tail is None:
        raise RuntimeError("Code: 62. DB::Exception: the INSERT names no format. (SYNTAX_ERROR)")
    head, format_ = sql[: tail.start()].rstrip(), tail.group(1)
    text, found = INPUT.subn(
        lambda call: f"file({quote(str(spool))}, {quote(format_)}, {call.group(1)})", head, count=1
    )
    return text if found else f"{head} FROM INFILE {quote(str(spool))} FORMAT {format_}"
