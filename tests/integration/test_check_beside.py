"""Verdicts of `check` and `status` beside a run, a resend or a withdrawal of the same pipeline."""

import json
from datetime import timedelta

import pytest

from tagmill.ledger.runs import Ledger
from tagmill.runs import checkpoints
from tests.integration.test_verdicts import BEGIN, Case, say
from tests.support.delivery import tagmill
from tests.support.events import events
from tests.support.topics import made


@pytest.fixture
def case(journal, settings, spark):
    """Return make(**keys), which makes a pipeline of tag views over a new journal."""
    return lambda **keys: Case(journal(), settings, spark, **keys)


@pytest.fixture
def shop(stack, kafka, spark, tmp_path):
    """Yield a factory of topics with products, each delivered by its own pipeline."""
    yield from made(stack, kafka, spark, tmp_path)


def at(monkeypatch, instant, action):
    """Let an action be done once when a checkpoint is reached."""
    pending = [action]

    def reached(name):
        if name == instant and pending:
            pending.pop()()

    monkeypatch.setattr(checkpoints, "reached", reached)


def operate(one, verb, batch, *more):
    """Resend or withdraw a batch of run 1."""
    command = ("batches", verb, batch, "--run", "1", "-p", one.name, "--why", "a test", "--yes", *more)
    code, _, said = tagmill(one.file, *command)
    assert code == 0, said


def first_batch(one):
    """Return the id of the pipeline's first batch."""
    return str(json.loads(tagmill(one.file, "batches", "-p", one.name, "--json")[1])[-1]["batch_id"])


def is_exactly_once(said):
    """Return whether a verdict of `check` is green."""
    code, (verdict,) = said
    return code == 0 and verdict.startswith("exactly once, checked at ")


def deliver_more(one, first):
    """Write three more events, and deliver them."""
    one.journal.both(events("a", range(first, first + 3), BEGIN + first * timedelta(minutes=1), "t"))
    one.deliver()


@pytest.mark.parametrize(("command", "instant"), [("check", "check.counted"), ("status", "status.read")])
def test_verdict_beside_a_run_is_no_difference(case, monkeypatch, command, instant):
    """Seal, push and close a run while ClickHouse is counted: neither now nor later is it a difference."""
    one = case()
    deliver_more(one, 1)
    with monkeypatch.context() as patched:
        at(patched, instant, lambda: deliver_more(one, 4))
        code, (verdict,) = one.say(command)
    assert code == 0 and "differs" not in verdict, verdict
    code, (verdict,) = one.say("status")
    assert code == 0 and "differs" not in verdict, verdict
    assert is_exactly_once(one.say("check"))


@pytest.mark.parametrize("verb", ["resend", "withdraw"])
def test_check_beside_ended_operation_is_no_difference(case, monkeypatch, verb):
    """Send a batch again, or take it out, between the reading of ClickHouse and that of the ledger."""
    one = case()
    deliver_more(one, 1)
    with monkeypatch.context() as patched:
        at(patched, "check.counted", lambda: operate(one, verb, first_batch(one)))
        _, (verdict,) = one.say("check")
    assert "batch" not in verdict, verdict
    assert "batch" not in one.say("status")[1][0]


def test_verdicts_during_resend_call_it_changing(case, monkeypatch, stack):
    """Look while the batch's rows are removed, before and after it is NEW: it waits, and no check records it."""
    one, said = case(), []
    deliver_more(one, 1)
    move = Ledger.move_batch

    def slow(*args):
        if said:
            return move(*args)
        said.append(one.say("check"))
        moved = move(*args)
        said.extend([one.say("check"), one.say("status")])
        return moved

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "move_batch", slow)
        operate(one, "resend", first_batch(one))
    for _, (verdict,) in said:
        assert "is changing: a process is at work on it" in verdict and "differs" not in verdict, verdict
    assert [code for code, _ in said] == [3, 3, 0]
    assert one.say("status") == (0, ["counts agree"])
    stack.rows(f"ALTER TABLE `{one.name}` DELETE WHERE sequence_nr = 2 SETTINGS mutations_sync = 2")
    code, (verdict,) = one.say("check")
    assert code == 3 and verdict.endswith("has 2 rows instead of 3 in ClickHouse"), verdict


def test_check_many_missing_batches_named_without_hint(case, stack):
    """Lose the newest of two batches: no retention removes that; losing the older one may be one."""
    one = case()
    deliver_more(one, 1)
    deliver_more(one, 4)
    stack.rows(f"ALTER TABLE `{one.name}` DELETE WHERE sequence_nr > 3 SETTINGS mutations_sync = 2")
    code, (verdict,) = one.say("check")
    assert code == 3 and verdict.endswith("has 0 rows instead of 3 in ClickHouse"), verdict
    stack.rows(f"ALTER TABLE `{one.name}` DELETE WHERE sequence_nr > 1 SETTINGS mutations_sync = 2")
    batch = json.loads(tagmill(one.file, "batches", "-p", one.name, "--json")[1])[0]
    command = ("batches", "resend", str(batch["batch_id"]), "--run", str(batch["run"]), "-p", one.name)
    assert tagmill(one.file, *command, "--why", "a test", "--yes")[0] == 0
    stack.rows(f"ALTER TABLE `{one.name}` DELETE WHERE sequence_nr = 1 SETTINGS mutations_sync = 2")
    code, (verdict,) = one.say("check")
    assert code == 3 and "has 0 rows instead of 3 in ClickHouse (dropped on purpose?" in verdict, verdict


@pytest.mark.parametrize(("command", "instant"), [("check", "check.counted"), ("status", "status.read")])
def test_topic_verdict_beside_run_is_no_difference(shop, monkeypatch, command, instant):
    one = shop()

    def deliver(product):
        one.send(product)
        one.topic.flush()
        one.deliver()

    deliver(1)
    with monkeypatch.context() as patched:
        at(patched, instant, lambda: deliver(2))
        code, (verdict,) = say(one.file, command)
    assert code == 0 and "differs" not in verdict, verdict
    code, (verdict,) = say(one.file, "status")
    assert code == 0 and "differs" not in verdict, verdict


def test_topic_pushed_rows_of_open_run_counted_once(shop, monkeypatch):
    """Look while a run has pushed all its batches and is not closed."""
    one, said = shop(), []
    finish = Ledger.finish_run

    def slow(*args, **more):
        said.append(say(one.file, "status"))
        return finish(*args, **more)

    one.send(1)
    one.topic.flush()
    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "finish_run", slow)
        one.deliver()
    ((code, (verdict,)),) = said
    assert code == 0 and "run 1 is not closed (SEALED)" in verdict and "differs" not in verdict, verdict
