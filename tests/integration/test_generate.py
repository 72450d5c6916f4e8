"""A generated journal is one that the plugin could have written."""

from collections import Counter, defaultdict

import pytest

from local.generate import generate, plan
from tagmill.domain.time_buckets import BucketSize
from tagmill.domain.timeuuid import ticks


@pytest.mark.parametrize(
    "rows, tags, size",
    [(4001, ("a", "b", "c"), "Hour"), (500, ("one",), "Minute"), (1000, ("x", "y"), "Day")],
)
def test_the_tables_agree_with_each_other(stack, rows, tags, size):
    wanted, name = plan(rows, tags=tags, bucket_size=size, buckets=3, persistence_ids=7), f"g_{rows}"
    expected = generate(stack.session, name, wanted)
    views = list(stack.session.execute(f"SELECT * FROM {name}.tag_views"))
    assert Counter(row.tag_name for row in views) == expected
    assert sum(expected.values()) == rows
    assert len({row.timebucket for row in views}) == 3
    assert all(BucketSize(size).start(ticks(row.timestamp)) == row.timebucket for row in views)
    messages = {
        (row.persistence_id, row.sequence_nr): row
        for row in stack.session.execute(f"SELECT * FROM {name}.messages")
    }
    tagged = defaultdict(set)
    numbers = defaultdict(list)
    for row in sorted(views, key=lambda row: ticks(row.timestamp)):
        message = messages[row.persistence_id, row.sequence_nr]
        assert (message.event, message.timestamp, message.writer_uuid) == (
            row.event,
            row.timestamp,
            row.writer_uuid,
        )
        tagged[row.persistence_id, row.sequence_nr].add(row.tag_name)
        numbers[row.persistence_id, row.tag_name].append((row.tag_pid_sequence_nr, row.sequence_nr))
    assert all(set(row.tags or ()) == tagged[key] for key, row in messages.items())
    for seen in numbers.values():
        assert [number for number, _ in seen] == list(range(1, len(seen) + 1))
        assert seen == sorted(seen)
    progress = list(stack.session.execute(f"SELECT * FROM {name}.tag_write_progress"))
    last = {(row.persistence_id, row.tag): (row.tag_pid_sequence_nr, row.sequence_nr) for row in progress}
    assert last == {key: seen[-1] for key, seen in numbers.items()}
    for owner in {key[0] for key in messages}:
        found = sorted(number for key, number in messages if key == owner)
        assert found == list(range(1, len(found) + 1))


def test_generating_again_gives_the_same_rows(stack):
    wanted = plan(300, persistence_ids=5)
    generate(stack.session, "g_again", wanted)
    before = sorted(map(str, stack.session.execute("SELECT * FROM g_again.tag_views")))
    generate(stack.session, "g_again", wanted)
    assert sorted(map(str, stack.session.execute("SELECT * FROM g_again.tag_views"))) == before


def test_two_processes_write_what_one_would(stack):
    wanted = plan(30_000)
    expected = generate(stack.session, "g_many", wanted, processes=2)
    found = Counter(row.tag_name for row in stack.session.execute("SELECT tag_name FROM g_many.tag_views"))
    assert found == expected and sum(expected.values()) == 30_000
