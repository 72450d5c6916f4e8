"""Load the damaged fixtures into one journal, and compute what the plugin would have written.

Each case's name prefixes its persistence ids.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from cassandra.cluster import Session

from local.fixtures import Case
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import ticks
from tests.support.auditing import load_together
from tests.support.events import Journal

CASES = (
    "gap-middle",
    "gap-first",
    "gap-whole-pid",
    "late-previous-bucket",
    "duplicate-nr",
    "swapped-order",
    "null-event",
)
TAGS = ["tag-0", "tag-1"]
FIRST = Case(CASES[0]).expected["first_time_bucket"]


def load(session: Session, keyspace: str, cases: Sequence[str] = CASES) -> Journal:
    """Load the cases' tables into one new journal."""
    return Journal(session, load_together(session, keyspace, cases))


def healthy(cases: Iterable[str] = CASES) -> list[dict[str, Any]]:
    """Return the rows of tag_views as the plugin would have written them, computed from the recorded
    messages.
    """
    rows = []
    for case in cases:
        size, numbers = BucketSize(Case(case).expected["bucket"]), Counter[tuple[str, str]]()
        for event in sorted(
            Case(case).table("messages").to_pylist(), key=lambda e: (e["persistence_id"], e["sequence_nr"])
        ):
            for tag in event["tags"] or ():
                numbers[tag, event["persistence_id"]] += 1
                place = {"tag_name": tag, "timebucket": size.start(ticks(UUID(event["timestamp"])))}
                number = {"tag_pid_sequence_nr": numbers[tag, event["persistence_id"]]}
                known = {
                    "timestamp": UUID(event["timestamp"]),
                    "persistence_id": f"{case}/{event['persistence_id']}",
                }
                rows.append({**event, **place, **number, **known})
    return rows
