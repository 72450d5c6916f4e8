"""Deal the tests out to processes without losing a module."""

from types import SimpleNamespace

from tests.support.run import ROOT, chosen
from tests.support.sharing import DEAREST, taken, taking


def modules(path):
    """Return the test modules at or below a path, relative to the project's root."""
    place = ROOT / path
    return (
        [path] if place.is_file() else [str(module.relative_to(ROOT)) for module in place.rglob("test_*.py")]
    )


def test_every_module_runs_in_one_suite():
    split, options = chosen(["-q"])
    shared = [split.pop(f"servers-{part}") for part in (1, 2, 3)]
    assert shared == [["tests/integration", "tests/faults", "tests/interop"]] * 3
    dealt = [module for paths in (*split.values(), shared[0]) for path in paths for module in modules(path)]
    assert sorted(dealt) == sorted(modules("tests"))
    assert options == ["-q"]


def test_shared_modules_run_once_dearest_first(tmp_path):
    """Let two processes take modules in turn: each module is whole in one of them, the dearest come first."""
    names = [
        *(f"tests/{name}" for name in reversed(DEAREST)),
        "tests/faults/test_a.py",
        "tests/faults/test_b.py",
    ]
    tests = [SimpleNamespace(nodeid=f"{name}::test_{number}") for name in names for number in (1, 2)]
    left, both = [taken(tests, taking(tmp_path)) for _ in range(2)], ([], [])
    while left:
        for process, found in zip(left, both, strict=False):
            found += [test.nodeid for _ in range(2) if (test := next(process, None))]
        left = [process for process in left if len(both[0]) + len(both[1]) < len(tests)]
    assert sorted([*both[0], *both[1]]) == sorted(test.nodeid for test in tests)
    assert not {name.partition("::")[0] for name in both[0]} & {name.partition("::")[0] for name in both[1]}
    assert [name.partition("::")[0] for name in both[0]][:2] == [f"tests/{DEAREST[0]}"] * 2
    assert all((ROOT / "tests" / name).is_file() for name in DEAREST)


def test_named_module_runs_alone():
    assert chosen(["tests/integration/test_topics.py"])[0] == {
        "servers": ["tests/integration/test_topics.py"]
    }


def test_quick_runs_rules_dags_and_one_delivery():
    split, options = chosen(["quick", "-x"])
    assert options == ["-x"]
    assert split["spark"] == ["tests/unit", "tests/spark"]
    assert split["airflow"] == ["tests/dags/test_integrity.py"]
    (delivery,) = split["servers"]
    module, name = delivery.split("::")
    assert f"def {name}(" in (ROOT / module).read_text()
