"""Name the right that Cassandra misses, from what it says."""

import re
from typing import NamedTuple

# as Cassandra says it, whichever driver passes it on
MISSING = re.compile(r"User (?P<user>\S+) has no (?P<right>[A-Z_]+) permission on <(?P<resource>[^>]+)>")


class MissingRight(NamedTuple):
    """What is missing, and the statement that grants it."""

    said: str
    way_out: str


def missing_right(text: str) -> MissingRight | None:
    """Return the right that an answer of Cassandra names as missing, None where it names none."""
    said = MISSING.search(text)
    if said is None:
        return None
    user, right, resource = said["user"], said["right"], said["resource"]
    return MissingRight(
        f"user {user} has no {right} permission on {resource}", f'Grant it (GRANT {right} ON {resource} TO "{user}")'
    )
