"""Ctrl-C or SIGTERM while Spark works ends a command with one line and leaves no process and no half-done
work.

A command that goes well prints nothing to stderr.
"""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from local.fixtures import WITHOUT_VIEWS
from tests.support.building import recorded, rows
from tests.support.commands import Ended

LINE = "stopped; nothing is lost, the same command goes on where this one was\n"
OF_VIEWS = {
    "views rebuild": ("--offline", "--yes"),
    "views migrate": ("--offline", "--yes"),
    "views rebucket": ("--to", "Minute", "--yes"),
    "audit": (),
    "events": ("--tag", "tag-0"),
}


def test_delivery_interrupted_one_line_then_quiet(
    delivery: Callable[..., Any], undisturbed: Callable[[str], Any]
) -> None:
    """Interrupt a delivery by Ctrl-C, which Spark's workers receive too, and by SIGTERM; the next one
    delivers each row once.
    """
    one = delivery(small_run_rows=0)
    for number, code, group in ((signal.SIGINT, 130, True), (signal.SIGTERM, 143, False)):
        ended = one.deliver(at="seal.begun").interrupt(number, group=group)
        assert (ended.code, ended.out, ended.err) == (code, "", LINE)
    assert one.rows() == []
    ended = one.deliver().end()
    assert (ended.code, ended.err) == (0, "")
    undisturbed("gap-middle").equals(one)
    logs = one.path("_logs")
    assert not logs.exists() or list(logs.iterdir()) == []


@pytest.mark.long
@pytest.mark.parametrize("after", [0.1, 1, 2])
def test_build_interrupted_one_line_then_whole(after: float, delivery: Callable[..., Any]) -> None:
    """Interrupt a build twice, some seconds behind an instant; the next build writes the plugin's rows."""
    one = delivery("orders", WITHOUT_VIEWS, views="tagmill", small_run_rows=0)
    for instant in ("build.begun", "build.after_commit"):
        ended = one.start("views", "build", at=instant).interrupt(signal.SIGINT, after, group=True)
        assert (ended.code, ended.err) in ((130, LINE), (0, "")), ended
    assert one.start("views", "build").end().code == 0
    for table in ("tag_views", "tag_write_progress"):
        assert rows(one.stack, one.keyspace, table) == recorded("orders", table), table


@pytest.mark.long
@pytest.mark.parametrize("after", [8, 12])
@pytest.mark.parametrize("name", OF_VIEWS)
def test_command_interrupted_at_work_one_line(name: str, after: float, delivery: Callable[..., Any]) -> None:
    """Interrupt a command after some seconds, whatever it does by then, the start of Spark included."""
    one = delivery()
    ended: Ended = one.start(*name.split(), *OF_VIEWS[name]).interrupt(signal.SIGINT, after, group=True)
    assert (ended.code, ended.err) == (130, LINE) or ended.code in (0, 3), ended
