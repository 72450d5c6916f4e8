"""Find in an error message of Cassandra the permission that the user lacks."""

import re
from typing import NamedTuple

# Cassandra's message for a missing permission, whichever driver passes it on.
MISSING = re.compile(r"User (?P<user>\S+) has no (?P<right>[A-Z_]+) permission on <(?P<resource>[^>]+)>")


class MissingRight(NamedTuple):
    """A missing permission (`said`), the statement that grants it (`way_out`), and the user who lacks it."""

    said: str
    way_out: str
    user: str


def missing_right(text: str) -> MissingRight | None:
    """Return the permission that an answer of Cassandra names as missing; None: it names none."""
    said = MISSING.search(text)
    if said is None:
        return None
    user, right, resource = said["user"], said["right"], said["resource"]
    return MissingRight(
        f"user {user} has no {right} permission on {resource}",
        f'Grant it (GRANT {right} ON {resource} TO "{user}")',
        user,
    )
