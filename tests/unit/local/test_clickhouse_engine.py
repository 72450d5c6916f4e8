"""Which statements take rows, and where a statement in the body ends."""

from pathlib import Path

import pytest

from local.clickhouse_engine import HEAD, reading_spool, takes_rows

SPOOL = Path("/x/spool'1")


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t FORMAT Parquet",
        "insert into `a b` (x, y) format Native ;",
        "INSERT INTO t SELECT a, {b:UUID} FROM input('a String') WHERE (SELECT count() FROM t WHERE b = "
        "{b:UUID}) = 0 FORMAT X",
    ],
)
def test_takes_rows_of_insert_with_format(sql):
    """Inserts that end with a format take rows."""
    assert takes_rows(sql)


@pytest.mark.parametrize("sql", ["SELECT 1 FORMAT CSV", "INSERT INTO t VALUES (1)", "INSERT INTO t SELECT 1"])
def test_other_statements_do_not(sql):
    assert not takes_rows(sql)


def test_the_spool_file_takes_the_place_of_input():
    """Statements read the spooled body from a file where they named input() or no source."""
    assert reading_spool(
        "INSERT INTO t SELECT a FROM input('a String, b Enum(\\'x\\')') FORMAT Parquet", SPOOL
    ) == ("INSERT INTO t SELECT a FROM file('/x/spool\\'1', 'Parquet', 'a String, b Enum(\\'x\\')')")
    assert (
        reading_spool("INSERT INTO t FORMAT Native", SPOOL)
        == "INSERT INTO t FROM INFILE '/x/spool\\'1' FORMAT Native"
    )


def test_head_ends_at_first_format_line():
    """Statements in the body end at the first line that ends with a format."""
    body = b"INSERT INTO t (a) FORMAT CSV\nFORMAT x\n{batch:UUID}\n"
    assert HEAD.match(body).group() == b"INSERT INTO t (a) FORMAT CSV\n"
    assert not HEAD.match(b"INSERT INTO t VALUES ('a FORMAT CSV\n')")
