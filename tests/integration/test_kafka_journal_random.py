"""Random actions in random polls, with crashes between writes, leave the tables of a small model."""

import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest

from tagmill.kafka_journal.replicate import replicate
from tagmill.ledger import schema
from tagmill.runs import checkpoints
from tests.conftest import FEW_ROWS

pytestmark = pytest.mark.usefixtures("both_replications")
IDS, ACTIONS, POLLS = 8, 160, 6
INSTANTS = (
    "replicate.staged", "replicate.before_commit", "replicate.after_commit", "replicate.after_delete_to", "replicate.after_deletes",
    "replicate.after_events", "replicate.after_purges", "replicate.before_expiry", "replicate.after_entries", "replicate.before_end",
)  # fmt: skip


class Crashed(Exception):
    pass


@dataclass
class Model:
    """The tables of one id, changed action by action as the documentation's cases say."""

    events: dict[tuple[int, int], str] = field(default_factory=dict)
    entry: tuple[int, int | None] | None = None

    def append(self, numbers, payload, timestamp):
        self.events |= {(number, timestamp): payload for number in numbers}
        seq_nr, delete_to = self.entry or (0, numbers[0] - 1 or None)
        self.entry = (max(seq_nr, numbers[-1]), delete_to)

    def delete(self, to):
        seq_nr, delete_to = self.entry or (to, to)
        self.entry = (seq_nr, max(delete_to or 0, min(to, seq_nr)))
        self.events = {key: payload for key, payload in self.events.items() if key[0] > to}

    def purge(self):
        self.events, self.entry = {}, None


def act(choice, topic, models):
    """Send one random action of a random id to Kafka and to its model."""
    key = f"id-{choice.randrange(IDS)}"
    model = models[key]
    partition = int(key[-1]) % 2
    what = choice.choices(("append", "delete", "purge", "mark"), (60, 20, 8, 12))[0]
    last = model.entry[0] if model.entry else 0
    if what == "append":
        first = last + 1 + choice.choice((0, 0, 0, 5))
        numbers = list(range(first, first + choice.randrange(1, 5)))
        payload = str(choice.random())
        at = topic.append(key, [(number, payload) for number in numbers], partition=partition)
        model.append(numbers, f'"{payload}"', at)
    elif what == "delete":
        to = choice.randrange(1, last + 4)
        topic.delete(key, to, partition=partition)
        model.delete(to)
    elif what == "purge":
        topic.purge(key, partition=partition)
        model.purge()
    else:
        topic.mark(key, partition=partition)


@pytest.mark.parametrize("ways", [(20_000,), (0, 20_000)], ids=["here", "either way"])
@pytest.mark.parametrize(
    "seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)]
)
def test_random_actions_with_crashes_match_model(kafka_journal, spark, monkeypatch, seed, ways):
    """Replicate random actions in several polls, each with a crash at a random instant, all in this process or each
    time by Spark or here: the tables equal the model's.
    """
    choice, journal = random.Random(seed), kafka_journal()
    either = [journal.settings(FEW_ROWS, segment_size=3, small_run_rows=most) for most in ways]
    schema.apply(either[0])
    topic, models = journal.topic("a", 2), defaultdict(Model)
    crash_at: list[str] = []

    def reached(name):
        if crash_at and crash_at[0] == name:
            crash_at.clear()
            raise Crashed(name)

    monkeypatch.setattr(checkpoints, "reached", reached)
    for _ in range(POLLS):
        for _ in range(ACTIONS // POLLS):
            act(choice, topic, models)
        topic.flush()
        crash_at[:] = [choice.choice(INSTANTS)]
        try:
            replicate(choice.choice(either), journal.name, owner="o", spark=lambda: spark)
        except Crashed:
            replicate(choice.choice(either), journal.name, owner="o", spark=lambda: spark)
        found = {key: (row["seq_nr"], row["delete_to"]) for key, row in journal.entries().items()}
        assert found == {key: model.entry for key, model in models.items() if model.entry}, seed
        rows, kept = defaultdict(dict), journal.entries()
        for row in journal.rows():
            assert (
                row["meta_record_id"] == kept[row["id"]]["record_id"]
                and row["segment"] == (row["seq_nr"] - 1) // 3
            )
            rows[row["id"]][row["seq_nr"], _ms(row["timestamp"])] = row["payload_txt"]
        assert rows == {key: model.events for key, model in models.items() if model.events}, seed


def _ms(timestamp):
    from datetime import UTC

    return round(timestamp.replace(tzinfo=UTC).timestamp() * 1000)
