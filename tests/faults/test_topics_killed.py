"""Deliveries of a plain topic that are killed or frozen at announced instants, and one whose Kafka restarts: each event arrives once."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tagmill.topics.report import topic_line
from tests.support.commands import Command
from tests.support.topics import Shop, made

# those between them: tests/integration/test_topics.py, which crashes there instead of killing a process
INSTANTS = ("plan.before_commit", "seal.after_commit", "push.after_insert", "close.before_end")


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    yield from made(stack, kafka, spark, tmp_path)


@pytest.fixture
def started() -> Iterator[Callable[..., Command]]:
    """started(shop, *arguments, at=instant): `tagmill run deliver` in the background."""
    commands: list[Command] = []

    def start(one: Shop, *arguments: str, at: str | None = None) -> Command:
        commands.append(Command(one.file, "run", "deliver", "--pipeline", one.name, *arguments, instant=at))
        return commands[-1].paused() if at else commands[-1]

    yield start
    for command in commands:
        if command.process.poll() is None:
            command.kill()


def fill(one: Shop, products: range) -> None:
    """Each product twice, in two partitions, and every tenth can't be read."""
    for product in products:
        one.send(product)
        one.send(product, partition=1)
        if product % 10 == 0:
            one.topic.send("k", b"{no json")
    one.topic.flush()


def expect(one: Shop, products: range) -> None:
    assert Counter(one.products()) == Counter(products)
    line = topic_line(one.settings, one.name, verify=True)
    assert (line["level"], line["waiting"], line["dead_letters"]) == ("apart", 0, len(products) // 10)
    assert len(one.ids()) == len(products)


@pytest.mark.timeout(1200)
def test_killed_in_every_step_it_delivers_each_event_once(shop: Any, started: Any) -> None:
    one = shop(2, batch_rows=15)
    fill(one, range(20))
    one.deliver()
    fill(one, range(20, 40))
    for instant in INSTANTS:
        started(one, at=instant).kill()
    ended = started(one, "--json").end()
    assert ended.code == 0, ended
    expect(one, range(40))


@pytest.mark.long
def test_one_that_wakes_up_after_others_went_on_adds_nothing(shop: Any, started: Any) -> None:
    one = shop(2)
    fill(one, range(10))
    frozen = started(one, at="push.before_insert")
    frozen.freeze()
    one.stack.session.execute("DELETE FROM tagmill_test.leases WHERE pipeline = %s", (one.name,))
    one.deliver()
    expect(one, range(10))
    woken = frozen.wake()
    assert woken.code == 75 and "was taken over" in woken.error
    expect(one, range(10))


def test_a_broker_that_restarts_is_waited_for(shop: Any, started: Any, kafka: Any) -> None:
    one = shop(2)
    fill(one, range(30))
    command = started(one, at="plan.after_commit")
    kafka.kill()
    command.pause_file.unlink()
    time.sleep(5)
    kafka.start()
    ended = command.end()
    if ended.code == 75:  # it waited as long as it may; nothing was sealed
        ended = started(one).end()
    assert ended.code == 0, ended
    expect(one, range(30))
