"""Pytest plugin by which several processes share modules: each runs the next module that no other one has taken.

python -m pytest -p tests.support.sharing --share FOLDER PATH...; all processes get the same paths and folder. The
dearest modules come first, so that the processes end at about the same time.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path

import pytest

# Modules of minutes, the longest first.
DEAREST = """
integration/test_rebuild.py
integration/test_journal_delivery.py
integration/test_views_build.py
integration/test_repair.py
integration/test_queries.py
integration/test_verdicts.py
integration/test_topics.py
integration/test_kafka_journal.py
integration/test_views_refused.py
integration/test_failures.py
integration/test_restore.py
integration/test_cleanup.py
integration/test_init.py
integration/test_doctor.py
integration/test_erase.py
integration/test_restore_states.py
integration/test_rebucket.py
faults/test_outages.py
integration/test_dependent_views.py
integration/test_topic_give_up.py
integration/test_look_back.py
integration/test_migrate.py
integration/test_audit.py
integration/test_journal_clean.py
integration/test_together.py
integration/test_give_up.py
integration/test_one_gap.py
faults/test_topics_killed.py
integration/test_way_out.py
integration/test_damage.py
integration/test_damage_first_seen.py
faults/test_frozen.py
integration/test_another_life.py
interop/test_migrate.py
faults/test_interrupted.py
faults/test_lost_answers.py
faults/test_killed.py
interop/test_journal_clean.py
integration/test_kafka_write_times.py
""".split()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that names the folder."""
    parser.addoption("--share", type=Path, required=True, help="folder where each process notes its modules")


def by_cost(module: str) -> tuple[int, str]:
    """Return a module's place among all: the dearest first, the others by name."""
    places = (place for place, name in enumerate(DEAREST) if module.endswith(name))
    return next(places, len(DEAREST)), module


def taken(items: Iterable[pytest.Item], take: Callable[[str], bool]) -> Iterator[pytest.Item]:
    """Yield the tests of each module that `take` gets for this process, module by module."""

    def module_of(item: pytest.Item) -> str:
        return item.nodeid.partition("::")[0]

    in_order = sorted(items, key=lambda item: by_cost(module_of(item)))
    for module, tests in groupby(in_order, module_of):
        of_module = list(tests)
        if take(module):
            yield from of_module


def taking(folder: Path) -> Callable[[str], bool]:
    """Return a function that takes a module, unless another process with the same folder has taken it."""

    def take(module: str) -> bool:
        try:
            (folder / module.replace("/", ".")).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    return take


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests of the modules that this process takes."""
    if session.testsfailed or session.config.option.collectonly:
        return None  # pytest's own loop says what is wrong
    tests = taken(session.items, taking(session.config.getoption("--share")))
    test = next(tests, None)
    while test is not None:
        following = next(tests, None)
        test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        test = following
    return True
