"""What counts as delivered, and which snapshots are kept."""

from datetime import UTC, datetime

import pytest

from tagmill.domain.continuity.model import Progress
from tagmill.errors import ConfigurationError
from tagmill.journal.event_store import Snapshot
from tagmill.maintenance.journal_cleanup.model import Wanted, What
from tagmill.maintenance.journal_cleanup.rules import Delivered

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def undelivered(numbers, *, progress=None, **keys):
    """Return those of these sequence_nrs that are not delivered.

    Each is tagged, at a tick equal to its number.
    """
    one, found = Delivered("p", progress, **keys), []
    for number in sorted(numbers, reverse=True):
        before = one.undelivered
        one.shown(number, number)
        found += [number] * (one.undelivered - before)
    return sorted(found)


def to(number, sequence_nr, *missing):
    return Progress(number, sequence_nr, 0, "", missing)


@pytest.mark.parametrize(
    ("numbers", "keys", "expected"),
    [
        ([1, 2, 3], {}, [1, 2, 3]),
        ([1, 2, 3], {"progress": to(3, 3)}, []),
        ([1, 2, 3, 4, 5], {"progress": to(3, 3)}, [4, 5]),
        # Only each third event has the tag, so numbers 1 to 4 belong to the sequence_nrs 3, 6, 9 and 12.
        ([3, 6, 9, 12], {"progress": to(4, 12, (2, 3))}, [6, 9]),
        # The first tagged events, sequence_nrs 3 and 6, are deleted already.
        ([9, 12], {"progress": to(4, 12, (1, 1), (3, 3))}, [9]),
        # Sequence_nrs 9 and 12 are to stay, so they are counted as `above`.
        ([3, 6], {"progress": to(4, 12, (1, 1)), "above": 2}, [3]),
        ([9, 12, 15], {"progress": to(4, 12, (3, 3))}, [9, 15]),
        # With more events than numbers the lowest event has no number, so it does not count as delivered.
        ([2, 3, 6, 9, 12], {"progress": to(4, 12)}, [2]),
        ([1, 2], {"progress": to(2, 2), "hold": "hole"}, []),
        ([1, 2], {"progress": to(2, 2), "hold": "renumbered"}, [1, 2]),
        # A pipeline does not want events before its start.
        ([1, 2, 3, 4], {"start": 3}, [3, 4]),
        ([1, 2, 3, 4], {"start": 3, "progress": to(4, 4, (1, 3))}, [3]),
    ],
)
def test_delivered_follows_progress_of_number(numbers, keys, expected):
    """Events are delivered if progress covers their number, which follows from counting tagged events back
    from progress.
    """
    assert undelivered(numbers, **keys) == expected


@pytest.mark.parametrize(
    ("keep", "newer_than", "oldest"),
    [
        (1, None, 8),
        (2, None, 6),
        (9, None, 2),
        (1, 5, 6),
        (2, 7, 6),
        (3, 7, 4),
        (1, 1, 2),
        (1, 8, 8),
        (1, 9, 8),
    ],
)
def test_oldest_kept_snapshot_matches_plugin(keep, newer_than, oldest):
    """Snapshots 8, 6, 4 and 2 were taken at these seconds.

    They are kept by number and age as the plugin keeps them; one at `newer_than` itself is not newer.
    """
    taken = [Snapshot(number, number * 1000) for number in (8, 6, 4, 2)]
    moment = None if newer_than is None else datetime.fromtimestamp(newer_than, UTC)
    wanted = Wanted(What.SNAPSHOTS, keep=keep, keep_newer_than=moment)
    assert wanted.oldest_kept(iter(taken)) == Snapshot(oldest, oldest * 1000)
    assert wanted.oldest_kept(iter(())) is None


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"what": What.TO}, "a sequence_nr to delete to is missing"),
        ({"what": What.ALL, "to": 3}, "a sequence_nr is for deleting up to it only"),
        ({"what": What.SNAPSHOTS, "keep": 0}, "at least one snapshot is kept"),
        ({"what": What.ALL, "keep": 2}, "keep and keep-newer-than are about snapshots"),
        (
            {"what": What.SNAPSHOTS, "keep_newer_than": NOON.replace(tzinfo=None)},
            "keep-newer-than has no time zone",
        ),
        ({"what": What.BEFORE_SNAPSHOT, "never_again": True}, "never-again is for deleting all"),
        ({"what": What.SNAPSHOTS, "views": True}, "deleting snapshots deletes no events"),
        ({"what": What.ALL, "force_unread": True}, "--force-unread is about rows of the view"),
    ],
)
def test_wanted_contradictions_are_refused(wanted, said):
    """Refuse options that contradict each other before anything is read."""
    with pytest.raises(ConfigurationError, match=said):
        Wanted(**wanted)
