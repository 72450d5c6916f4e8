"""Rounds of several pipelines in one session, and what is left when their time is over."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tagmill.config.settings import Settings
from tagmill.delivery import together
from tagmill.errors import ConfigurationError, StoreUnavailable

VIEWS = {"bucket_size": "Hour", "tags": ["t"], "first_time_bucket": "20261121T07:00"}
BY: dict[str, Any] = {"owner": "o", "spark": lambda: pytest.fail("Spark"), "tell": lambda _: None}


class Pipelines:
    """Pipelines with as many runs as `waiting` says; each delivers one row, and takes a second.

    `turns` has the names in the order of their turns; `errors` what the next turns of a pipeline raise.
    """

    def __init__(self, waiting: dict[str, int]) -> None:
        self.waiting, self.turns, self.built = waiting, list[str](), list[str]()
        self.errors: dict[str, list[Exception]] = {}
        self.now = 0.0

    def deliver(self, settings: Settings, pipeline: str, *, max_runs: int, **_: Any) -> list[dict[str, Any]]:
        assert max_runs == 1
        self.turns.append(pipeline)
        self.now += 1
        if errors := self.errors.get(pipeline):
            raise errors.pop(0)
        if not self.waiting[pipeline]:
            return []
        self.waiting[pipeline] -= 1
        left = self.waiting[pipeline]
        return [{"run": 10 - left, "batches": 1, "rows": 1, "held": left, "more": left > 0}]

    def plan(self, settings: Settings, pipeline: str, **_: Any) -> dict[str, Any]:
        self.turns.append(pipeline)
        self.now += 30
        return {"run": None}

    def build(self, settings: Settings, pipeline: str, **_: Any) -> None:
        self.built.append(pipeline)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    views = {
        name: {**VIEWS, "keyspace": name, "destination": name, "views": by}
        for name, by in {"a": "application", "b": "tagmill"}.items()
    }
    topic = {"kind": "topic", "topics": ["c"], "format": "json", "destination": "c"}
    content = {"pipelines": {**views, "c": topic}, "storage": {"root": str(tmp_path)}}
    return Settings.of(content, "test")


@pytest.fixture
def pipelines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Pipelines]]:
    """Return pipelines(a=…, b=…, c=…), whose runs wait."""

    def made(**waiting: int) -> Pipelines:
        one = Pipelines(waiting)
        monkeypatch.setattr(together, "deliver_views", one.deliver)
        monkeypatch.setattr(together, "deliver_topic", one.deliver)
        monkeypatch.setattr(together, "steps", SimpleNamespace(plan=one.plan))
        monkeypatch.setattr(together, "topic_steps", SimpleNamespace(plan=one.plan))
        monkeypatch.setattr(together, "check", lambda *_: None)
        monkeypatch.setattr(together, "build", one.build)
        monkeypatch.setattr(together, "time", SimpleNamespace(monotonic=lambda: one.now))
        return one

    return made


def test_backlog_keeps_no_other_pipeline_waiting(settings, pipelines) -> None:
    """Each round has one run of each pipeline whose run before left more; views are built once."""
    one = pipelines(a=3, b=1, c=0)
    outcomes = together.deliver_together(settings, ["a", "b", "c"], **BY)
    assert "".join(one.turns) == "abcaa" and one.built == ["b"]
    assert [(each.pipeline, each.runs, each.run, each.rows, each.batches) for each in outcomes] == [
        ("a", 3, 10, 3, 3),
        ("b", 1, 10, 1, 1),
        ("c", 0, None, 0, 0),
    ]
    assert [each.seconds for each in outcomes] == [3, 1, 1] and not any(each.more for each in outcomes)
    assert outcomes[2].message == "pipeline c: nothing to do"


def test_no_run_begins_after_given_seconds(settings, pipelines) -> None:
    one = pipelines(a=5, b=0, c=5)
    outcomes = together.deliver_together(settings, ["a", "b", "c"], seconds=4, **BY)
    assert "".join(one.turns) == "abca"
    assert [(each.runs, each.more) for each in outcomes] == [(2, True), (0, False), (1, True)]
    assert outcomes[2].message == "pipeline c: 1 runs, 1 rows, 4 held; more is left"
    late = together.deliver_together(settings, ["a"], seconds=0, **BY)
    assert late[0].message == "pipeline a: its turn did not come before the time was over"


def test_rows_that_come_meanwhile_begin_no_round(settings, pipelines) -> None:
    """A pipeline that is written to all the time has one run, unless its plan was too much for one."""
    one = pipelines(a=1, c=1)
    deliver = one.deliver

    def written_to(settings: Settings, pipeline: str, **options: Any) -> Any:
        runs = deliver(settings, pipeline, **options)
        one.waiting[pipeline] += 1
        return runs

    with pytest.MonkeyPatch.context() as patched:
        for name in ("deliver_views", "deliver_topic"):
            patched.setattr(together, name, written_to)
        outcomes = together.deliver_together(settings, ["a", "c"], **BY)
    assert one.turns == ["a", "c"] and not any(each.more for each in outcomes)


@pytest.mark.parametrize(
    ("errors", "turns", "ended"),
    [
        ([StoreUnavailable("away")], "acacc", None),
        ([StoreUnavailable("away")] * 2, "acacc", "away"),
        ([ConfigurationError("wrong")], "accc", "wrong"),
    ],
    ids=["passes", "stays", "final"],
)
def test_failed_pipeline_leaves_others_alone(settings, pipelines, errors, turns, ended) -> None:
    one = pipelines(a=1, c=3)
    one.errors["a"] = list(errors)
    a, c = together.deliver_together(settings, ["a", "c"], **BY)
    assert "".join(one.turns) == turns
    assert (c.runs, c.error) == (3, None)
    assert a.error == ended if ended is None else ended in a.error
    assert a.runs == (1 if ended is None else 0)


def test_failure_keeps_figures_of_runs_before(settings, pipelines) -> None:
    one = pipelines(a=9)
    deliver = one.deliver

    def third_fails(*arguments: Any, **options: Any) -> Any:
        if len(one.turns) == 2:
            one.errors["a"] = [ConfigurationError("wrong")]
        return deliver(*arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(together, "deliver_views", third_fails)
        (a,) = together.deliver_together(settings, ["a"], **BY)
    assert (a.runs, a.rows, a.run, a.exit_code) == (2, 2, 3, 2) and "wrong" in a.message


def test_plan_leaves_rest_after_given_seconds(settings, pipelines) -> None:
    """A pipeline that was not planned counts as one with something to do."""
    one = pipelines()
    planned = together.plan_together(settings, ["a", "c", "b"], owner="o", seconds=60)
    assert one.turns == ["a", "c"]
    assert planned["a"].message == "pipeline a: nothing to do" and planned["b"] is None
    planned = together.plan_together(settings, ["a", "c"], owner="o", seconds=30)
    assert planned["a"] is not None and planned["c"] is None
