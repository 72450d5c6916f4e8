"""The examination goes on after a store fails between two checks."""

from collections.abc import Generator

from tagmill.doctor.examination import guarded
from tagmill.doctor.model import Finding, fine, wrong
from tagmill.errors import StoreUnavailable


def test_error_between_checks_is_finding() -> None:
    def checks() -> Generator[Finding, None, bool]:
        yield fine("a", "b")
        raise StoreUnavailable("ClickHouse at c:1 did not answer. Nothing was done")

    found = list(guarded("clickhouse", checks(), False))
    assert found == [
        fine("a", "b"),
        wrong(
            "clickhouse",
            "ClickHouse at c:1 did not answer",
            "correct [clickhouse], then run tagmill doctor again",
        ),
    ]
