"""An audit finds every damage of the fixtures by kind, tag, persistence_id and number, and agrees where nothing is wrong."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tagmill.stores import schema
from tests.support.auditing import audited, by_case, findings, load_together
from tests.support.delivery import deliver, known_to_spark, only

DAMAGED = [
    "gap-first", "gap-middle", "gap-whole-pid", "late-previous-bucket", "duplicate-nr", "swapped-order", "null-event", "split-brain",
]  # fmt: skip
HEALTHY = ["orders", "deleted-events", "odd-names", "partition-boundary"]
TOLERANT = {"quality": {"max_held_share_percent": 100, "max_wrong_bucket_share_percent": 100, "named_rows": 1000}}


@pytest.fixture(scope="module")
def together(stack: Any) -> Iterator[Any]:
    """together(cases) loads cases into one keyspace; dropped after the module."""
    made = []

    def load(cases: list[str]) -> str:
        made.append(f"t_{uuid.uuid4().hex[:12]}")
        return load_together(stack.session, made[-1], cases)

    yield load
    for name in made:
        stack.session.execute(f"DROP KEYSPACE IF EXISTS {name}")


def test_explore(stack, together, module_settings, spark):
    journal = together(DAMAGED)
    configured = module_settings(
        journal, tags=["tag-0", "tag-1"], bucket_size="Hour", first_time_bucket="20261121T06:00", repair_view=False, **TOLERANT
    )
    schema.apply(configured)
    print(deliver(configured, only(configured), spark))
    report = audited(configured, spark)
    print(report.model_dump_json(indent=1)[:3000])
    for case, found in by_case(findings(configured, report)).items():
        for key, kinds in found.items():
            print(case, key, dict(kinds))
    for f in findings(configured, report):
        print({k: v for k, v in f.items() if v is not None})
