"""Journals that the plugin writes at random, damaged at random: a rebuild restores each row, and the plugin
reads them all.
"""

from collections import Counter
from random import Random
from uuid import UUID, uuid1

import pytest

from tests.interop.test_rebuild import FIRST, rebuilt
from tests.support.building import rows
from tests.support.delivery import clickhouse_rows, deliver, only

NAMES = ["tag-0", "Заказ №'/ 1", 'a|b"c\\d %', "\u00e9", "e\u0301", "x" * 120, "日本語", "a b", "A B"]
MILLISECONDS = {"Day": 86_400_000, "Hour": 3_600_000, "Minute": 60_000}
KEY = ("tag_name", "timebucket", "timestamp", "persistence_id", "tag_pid_sequence_nr")
DELETE = ("--set", "pekko.persistence.cassandra.cleanup.operation-timeout=120s")


def by_key(view):
    """Return a view's rows by their primary key."""
    return {tuple(row[name] for name in KEY): row for row in view}


class Damage:
    """Takes, changes and adds rows of a view."""

    def __init__(self, random, stack, keyspace, bucket):
        self.random, self.session, self.table = random, stack.session, f"{keyspace}.tag_views"
        self.step = MILLISECONDS[bucket]

    def take(self, row):
        """Delete a row of the view."""
        where = " AND ".join(f"{name} = %s" for name in KEY)
        key = (UUID(row[name]) if name == "timestamp" else row[name] for name in KEY)
        self.session.execute(f"DELETE FROM {self.table} WHERE {where}", tuple(key))

    def put(self, row, **changed):
        """Write a row of the view, with these changes."""
        row = {name: value for name, value in {**row, **changed}.items() if value is not None}
        row["timestamp"] = UUID(row["timestamp"])
        marks = ", ".join(["%s"] * len(row))
        self.session.execute(
            f"INSERT INTO {self.table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values())
        )

    def moved(self, row):
        """Return a change that puts a row into a wrong bucket, time, number or tag."""
        random = self.random
        return random.choice(
            [
                {"timebucket": row["timebucket"] + random.choice([-1, 1]) * self.step},
                {"timestamp": str(uuid1())},
                {"tag_pid_sequence_nr": row["tag_pid_sequence_nr"] + random.choice([1, 2, 50])},
                {"tag_name": "tag-0", "tag_pid_sequence_nr": row["tag_pid_sequence_nr"] + 1000},
            ]
        )

    def some(self, view):
        """Change, move, double or delete some of these rows; delete all with one persistence_id, tag,
        sequence_nr or event.
        """
        random = self.random
        one = random.choice(view)
        for row in view:
            if random.random() < 0.05:
                self.put(row, event=b"another", ser_id=random.choice([7, row["ser_id"]]))
            if random.random() < 0.1:
                self.put(row, **self.moved(row))
            if random.random() < 0.1:
                self.take(row)
        name = random.choice(["persistence_id", "tag_name", "sequence_nr", "event"])
        for row in view:
            if row[name] == one[name]:
                self.take(row)


def written(random, names, bucket):
    """Return the words of a random command for the plugin's writer."""
    words = [
        "--pids",
        str(random.randint(1, 10)),
        "--events",
        str(random.randint(3, 30)),
        "--tags",
        str(random.randint(1, len(names))),
    ]
    words += [
        "--batch",
        str(random.choice([1, 3, 7, 10])),
        "--tag-by",
        random.choice(["event", "pid", "nr"]),
        "--bucket",
        bucket,
    ]
    words += ["--payload", random.choice(["string", "bytes", "json", "json-order"]), "--linger", "4"]
    words += random.choice([["--replicated"], ["--prefix", "ф|'\" "], ["--untagged-every", "3"], []])
    return [*words, *(part for name in names for part in ("--tag-name", name))]


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(1, 5))
def test_whatever_is_damaged_comes_back(seed, stack, peer, settings, spark):
    random = Random(seed)
    size = random.choice([10, 17, 500_000])  # an atomic write has at most this number of events
    plugin = peer("--set", f"pekko.persistence.cassandra.journal.target-partition-size={size}")
    bucket, names = random.choice(list(MILLISECONDS)), random.sample(NAMES, random.randint(1, 4))
    configured = settings(
        plugin.keyspace,
        tags=names,
        bucket_size=bucket,
        first_time_bucket=FIRST,
        repair_view=False,
        quality={"max_held_share_percent": 100, "max_wrong_bucket_share_percent": 100},
    )
    words, deleted = written(random, names, bucket), Counter[str]()
    for _ in range(3):
        plugin.write(*words, tagging=True)
        before = rows(stack, plugin.keyspace, "tag_views")
        ids = sorted({row["persistence_id"] for row in before})
        for one in random.sample(ids, min(len(ids), random.choice([0, 1, 2]))):
            last = max(row["sequence_nr"] for row in before if row["persistence_id"] == one)
            deleted[one] = max(deleted[one], random.randint(1, last))
            plugin("delete", "--pid", one, "--to", str(deleted[one]), *DELETE)
        # A rebuild can't restore rows of deleted events, so these are left alone.
        if living := [row for row in before if row["sequence_nr"] > deleted[row["persistence_id"]]]:
            Damage(random, stack, plugin.keyspace, bucket).some(living)
        rebuilt(configured, spark)
        after = rows(stack, plugin.keyspace, "tag_views")
        assert by_key(after) == by_key(before)
    for tag in names:
        wanted = Counter(
            (row["persistence_id"], row["sequence_nr"], row["timestamp"])
            for row in after
            if row["tag_name"] == tag
        )
        assert Counter(plugin.read(tag, bucket, FIRST)) == wanted
    deliver(configured, only(configured), spark)
    found = Counter(
        (row.tag, row.persistence_id, row.tag_pid_sequence_nr)
        for row in clickhouse_rows(configured, only(configured))
    )
    assert found == Counter(
        (row["tag_name"], row["persistence_id"], row["tag_pid_sequence_nr"]) for row in after
    )
