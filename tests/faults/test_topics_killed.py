"""Deliveries of a plain topic that are killed, frozen or cut off from Kafka deliver each event once."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from tagmill.delivery.topics.status import topic_line
from tests.support.commands import Command
from tests.support.leases import free_lease
from tests.support.topics import Shop, made

# tests/integration/test_topics.py covers each instant by crashes instead of killed processes.
INSTANTS = ("seal.after_commit", "push.after_insert")
OTHERS = ("plan.before_commit", "seal.before_commit", "push.after_batch", "close.before_end")


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    """Yield a factory of topics with products, each read with Spark and delivered by its own pipeline."""
    for make in made(stack, kafka, spark, tmp_path):
        yield partial(make, small_run_rows=0)


@pytest.fixture
def started() -> Iterator[Callable[..., Command]]:
    """Return started(shop, *arguments, at=instant), which starts `tagmill run deliver` in the background."""
    commands: list[Command] = []

    def start(one: Shop, *arguments: str, at: str | None = None) -> Command:
        commands.append(Command(one.file, "run", "deliver", "--pipeline", one.name, *arguments, instant=at))
        return commands[-1].paused() if at else commands[-1]

    yield start
    for command in commands:
        if command.process.poll() is None:
            command.kill()


def fill(one: Shop, products: range) -> None:
    """Send each product twice, in two partitions, and behind every tenth a record that can't be read."""
    for product in products:
        one.send(product)
        one.send(product, partition=1)
        if product % 10 == 0:
            one.topic.send("k", b"{no json")
    one.topic.flush()


def expect(one: Shop, products: range) -> None:
    """Assert that each product was delivered once, and each unreadable record became a dead letter."""
    assert Counter(one.products()) == Counter(products)
    line = topic_line(one.settings, one.name, verify=True)
    assert (line["level"], line["waiting"], line["dead_letters"]) == ("apart", 0, len(products) // 10)
    assert len(one.ids()) == len(products)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "instants", [pytest.param(INSTANTS, id="some"), pytest.param(OTHERS, id="others", marks=pytest.mark.long)]
)
def test_topic_delivery_killed_often_delivers_once(instants: Sequence[str], shop: Any, started: Any) -> None:
    """Kill a delivery at several instants; the next one delivers the rest, each product once."""
    one = shop(2, batch_rows=15)
    fill(one, range(20))
    one.deliver()
    fill(one, range(20, 40))
    for instant in instants:
        started(one, at=instant).kill()
    one.deliver()
    expect(one, range(40))


@pytest.mark.long
def test_topic_pusher_frozen_during_other_adds_nothing(shop: Any, started: Any) -> None:
    """Wake a frozen pusher after another process has delivered its run."""
    one = shop(2)
    fill(one, range(10))
    frozen = started(one, at="push.before_insert")
    frozen.freeze()
    free_lease(one.stack.session, one.name)
    one.deliver()
    expect(one, range(10))
    woken = frozen.wake()
    assert woken.code == 75 and "was taken over" in woken.error
    expect(one, range(10))


def test_topic_delivery_broker_restarts_is_waited_for(shop: Any, started: Any, kafka: Any) -> None:
    """Restart the broker behind the plan: this delivery or the next one ends well."""
    one = shop(2)
    fill(one, range(30))
    command = started(one, at="plan.after_commit")
    kafka.kill()
    command.pause_file.unlink()
    time.sleep(5)
    kafka.start()
    ended = command.end()
    if ended.code == 75:  # the command waited as long as it may, and sealed nothing
        ended = started(one).end()
    assert ended.code == 0, ended
    expect(one, range(30))
