"""Storage cases of Kafka Journal, and that folding many actions equals applying them one by one."""

from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tagmill.kafka_journal.fold import (
    Fold,
    Fork,
    Record,
    entry_segments,
    expire_on,
    java_hash,
    record_id,
    segment_of,
)

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def record(kind, offset, to=0, partition=0, after=None, first=None):
    """Return a record; an append has the event `to` alone unless `first` is given."""
    lowest = to if first is None and kind == "append" else first or 0
    return Record(kind, "t", partition, offset, BEGIN + timedelta(seconds=offset), lowest, to, "o", after)


def folded(*records, entry=None):
    fold = Fold(entry, 10)
    for one in records:
        fold.add(one)
    return fold


STANDING = folded(record("append", 1, 5, first=1)).entry


def test_append_without_an_entry_creates_it():
    entry = folded(record("append", 7, 5, first=1)).entry
    assert (entry.seq_nr, entry.delete_to, entry.segment_size, entry.offset) == (5, None, 10, 7)
    assert entry.created == entry.updated == BEGIN + timedelta(seconds=7)
    assert entry.record_id == record_id("t", 0, 7)


@pytest.mark.parametrize(("first", "delete_to"), [(1, None), (2, 1), (10_001, 10_000)])
def test_new_life_is_deleted_before_first_event(first, delete_to):
    """Set delete_to below the first event of a life, also behind a purge; later appends leave it."""
    begun = record("append", 7, first + 4, first=first)
    later = record("append", 8, first + 9, first=first + 5)
    for before in (None, STANDING):
        records = [record("purge", 6), begun] if before else [begun]
        assert folded(*records, entry=before).entry.delete_to == delete_to
        assert folded(*records, later, entry=before).entry.delete_to == delete_to


def test_append_to_entry_keeps_its_life():
    """Appending to an entry updates seq_nr and offset, and keeps record_id and time of creation."""
    entry = folded(record("append", 7, 9), entry=STANDING).entry
    assert (entry.seq_nr, entry.offset, entry.record_id, entry.created) == (
        9,
        7,
        STANDING.record_id,
        STANDING.created,
    )


@pytest.mark.parametrize("before", [None, STANDING], ids=["no life", "purged life"])
def test_delete_without_entry_creates_it(before):
    """Create an entry from a Delete alone; the events that a later append continues with are not covered."""
    records = [record("purge", 6)] * bool(before) + [record("delete", 7, 3)]
    entry = folded(*records, entry=before).entry
    assert (entry.seq_nr, entry.delete_to, entry.offset, entry.record_id) == (3, 3, 7, record_id("t", 0, 7))
    assert entry.created == entry.updated == BEGIN + timedelta(seconds=7) and entry.expire_on is None
    on = folded(*records, record("append", 8, 4), entry=before).entry
    assert (on.seq_nr, on.delete_to, on.record_id) == (4, 3, entry.record_id)


@pytest.mark.parametrize("kind", ["purge", "mark"])
def test_without_an_entry_the_others_do_nothing(kind):
    fold = folded(record(kind, 7, 3))
    assert fold.entry is None and fold.deletes == [] and fold.cut_to == 0


def test_delete_with_entry_sets_delete_to():
    """Deleting with an entry sets delete_to and deletes the events up to it."""
    fold = folded(record("delete", 7, 3), entry=STANDING)
    assert (fold.entry.delete_to, fold.entry.seq_nr, fold.entry.offset, fold.cut_to) == (3, 5, 7, 3)


def test_delete_above_seq_nr_ends_there():
    """Delete up to seq_nr at most, so that readers see what is appended later, and never lower delete_to."""
    fold = folded(record("delete", 7, 30), record("delete", 8, 2), entry=STANDING)
    assert (fold.entry.delete_to, fold.cut_to) == (5, 5)
    fold = folded(record("delete", 7, 30), record("append", 8, 6), record("delete", 9, 2), entry=STANDING)
    assert (fold.entry.delete_to, fold.entry.seq_nr, fold.cut_to) == (5, 6, 5)
    above = folded(record("delete", 7, 3), entry=replace(STANDING, delete_to=30)).entry
    assert above.delete_to == 30


def test_purge_with_entry_ends_its_life():
    """Purging ends the entry's life and drops earlier records; a later append begins another life."""
    fold = folded(record("append", 6, 8), record("purge", 7), entry=STANDING)
    assert fold.entry is None and fold.purged and fold.cut_to == 0
    again = folded(record("purge", 7), record("append", 8, 2), entry=STANDING)
    assert (again.entry.seq_nr, again.entry.record_id) == (2, record_id("t", 0, 8))


def test_append_below_last_number_is_fork():
    """Note appends that begin where the id has been, those of earlier lives and of earlier reads apart."""
    stale, next_one = record("append", 7, 4, first=3), record("append", 8, 6)
    assert folded(stale, next_one, entry=STANDING).forks == [Fork(0, 7, 3)]
    assert folded(next_one, record("append", 9, 6), entry=STANDING).forks == [Fork(0, 9, 6)]
    assert folded(stale, record("purge", 8), record("append", 9, 1), entry=STANDING).forks == []
    later = replace(STANDING, offset=8)
    assert folded(stale, next_one, record("append", 9, 5), entry=later).forks == [Fork(0, 9, 5)]


def test_mark_changes_nothing():
    assert folded(record("mark", 7), entry=STANDING).entry == STANDING


def test_what_was_applied_before_changes_nothing_again():
    """Records at or below the entry's offset change nothing."""
    fold = Fold(STANDING, 10)
    assert not fold.add(record("append", 1, 5)) and fold.entry == STANDING
    assert fold.add(record("append", 2, 6))


def test_expiry_is_that_of_the_last_append():
    day = 86_400_000
    entry = folded(record("append", 1, 1, after=day)).entry
    assert (entry.expire_after_ms, entry.expire_on) == (day, date(2026, 11, 2))
    assert folded(record("append", 2, 2), entry=entry).entry.expire_on is None
    assert folded(record("delete", 2, 1), entry=entry).entry.expire_on == date(2026, 11, 2)
    assert expire_on(BEGIN, 10**15) == date.max


def test_fold_of_moved_id_goes_on():
    """Ids that moved to another partition go on there; reading their records again changes nothing."""
    fold = folded(record("append", 50, 6), record("append", 0, 7, partition=3), entry=STANDING)
    assert (fold.entry.partition, fold.entry.offset, fold.entry.seq_nr) == (3, 0, 7)
    assert fold.partitions == [0, 3]
    again = folded(
        record("append", 50, 6),
        record("delete", 51, 4),
        record("append", 0, 7, partition=3),
        record("append", 1, 8, partition=3),
        entry=fold.entry,
    )
    assert (
        again.entry == folded(record("append", 1, 8, partition=3), entry=fold.entry).entry
        and again.deletes == []
    )


def test_purge_left_in_old_partition_is_not_repeated():
    """Read a purge in the old partition again with the new life in the new one: nothing is purged or written."""
    records = [record("append", 1, 5), record("purge", 2), record("append", 3, 2, partition=3)]
    before = folded(*records).entry
    again = folded(*records, entry=before)
    assert again.entry == before and not again.purged
    on = folded(*records, record("append", 4, 3, partition=3), entry=before)
    assert (on.entry.seq_nr, on.entry.record_id, on.purged) == (3, before.record_id, False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("ä-1", 220552),
        ("\U0001f600", 1772899),
    ],
)
def test_java_hash_codes(text, expected):
    assert java_hash(text) == expected


def test_segments():
    assert entry_segments("polygenelubricants") == (3648, 48)
    assert entry_segments("HELLO") == entry_segments("hello") == (2322, 22)
    assert [segment_of(n, 10_000) for n in (1, 10_000, 10_001, 2**62)] == [0, 0, 1, (2**62 - 1) // 10_000]


@dataclass
class Model:
    """Tables of one id as the documentation's cases describe them, one action after the other."""

    events: set[int] = field(default_factory=set)
    entry: tuple[int, int | None] | None = None

    def apply(self, kind, to):
        if kind == "append":
            self.events.add(to)
            seq_nr, delete_to = self.entry or (0, to - 1 or None)
            self.entry = (max(seq_nr, to), delete_to)
        elif kind == "delete":
            seq_nr, delete_to = self.entry or (to, to)
            self.entry = (seq_nr, max(delete_to or 0, min(to, seq_nr)))
            self.events -= {event for event in self.events if event <= to}
        elif kind == "purge":
            self.events, self.entry = set(), None


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["append", "append", "append", "delete", "purge", "mark"]), st.integers(1, 12)),
    min_size=1,
    max_size=25,
)


@settings(max_examples=400)
@given(actions=ACTIONS, cuts=st.sets(st.integers(1, 24)), again=st.integers(0, 8))
def test_folds_equal_single_actions(actions, cuts, again):
    """Folds of any size, with records read again, leave what the actions leave one by one.

    `cuts`: where a poll ends; `again`: how many records before a poll are read once more.
    """
    model, entry, rows = Model(), None, set()
    begin = 0
    for end in sorted({*cuts, len(actions)}):
        if not begin < end <= len(actions):
            continue
        fold = Fold(entry, 10)
        known = entry is not None
        for offset in range(max(0, begin - again) if known else begin, end):
            fold.add(record(actions[offset][0], offset, actions[offset][1]))
        if fold.purged:
            rows.clear()
        rows -= {row for row in rows if row <= fold.cut_to}
        if fold.entry is not None:
            for offset in range(max(0, begin - again) if known else begin, end):
                kind, to = actions[offset]
                if kind != "append" or (fold.dropped is not None and offset <= fold.dropped.offset):
                    continue
                if to > next((bound for at, bound in fold.deletes if at.offset > offset), 0):
                    rows.add(to)
        for kind, to in actions[begin:end]:
            model.apply(kind, to)
        entry, begin = fold.entry, end
        assert rows == model.events
        assert (None if entry is None else (entry.seq_nr, entry.delete_to)) == model.entry


@settings(max_examples=400)
@given(of_partitions=st.lists(ACTIONS, min_size=1, max_size=3))
def test_folding_everything_again_changes_nothing(of_partitions):
    """Fold the records of an id that moved between partitions once more on the entry that they left."""
    records = [
        record(kind, offset, to, partition)
        for partition, actions in enumerate(of_partitions)
        for offset, (kind, to) in enumerate(actions)
    ]
    before = folded(*records).entry
    again = folded(*records, entry=before)
    assert (again.entry, again.purged and before is not None, again.cut_to) == (before, False, 0)
