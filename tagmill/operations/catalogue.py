"""List all operations that a person starts by hand."""

from typing import Any

from tagmill.operations import audit, deletion, kafka_journal, topics, views
from tagmill.operations.model import Kind, Operation

# The first of a kind is what a form opens with: it changes the least.
OPERATIONS: tuple[Operation[Any], ...] = (
    views.TAGS,
    views.REBUILD,
    views.DELETE,
    views.TRUNCATE,
    views.PIDS,
    views.MIGRATE,
    views.REBUCKET,
    audit.REPAIR,
    deletion.CLEAN,
    deletion.ERASE,
    topics.EXPIRE,
    topics.REKEY,
    kafka_journal.PURGE,
)
# Not in a form: DAGs of their own start them on schedule.
SCHEDULED: tuple[Operation[Any], ...] = (views.BUILD, kafka_journal.REPLICATE)
BY_NAME = {operation.name: operation for operation in (*SCHEDULED, *OPERATIONS)}


def operations_of(kind: Kind) -> tuple[Operation[Any], ...]:
    """Return the operations that a kind of pipeline has."""
    return tuple(operation for operation in OPERATIONS if operation.kind == kind)
