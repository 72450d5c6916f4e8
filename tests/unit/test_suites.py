"""Deal the tests out to processes without losing a module."""

from tests.support.run import ROOT, chosen


def modules(path):
    """Return the test modules at or below a path, relative to the project's root."""
    place = ROOT / path
    return (
        [path] if place.is_file() else [str(module.relative_to(ROOT)) for module in place.rglob("test_*.py")]
    )


def test_every_module_runs_in_one_process():
    split, options = chosen(["-q"])
    dealt = [module for paths in split.values() for path in paths for module in modules(path)]
    assert sorted(dealt) == sorted(modules("tests"))
    assert {"integration-1", "integration-2"} < set(split)
    assert options == ["-q"]


def test_named_module_runs_alone():
    assert chosen(["tests/integration/test_topics.py"])[0] == {
        "integration": ["tests/integration/test_topics.py"]
    }


def test_quick_runs_rules_dags_and_one_delivery():
    split, options = chosen(["quick", "-x"])
    assert options == ["-x"]
    assert split["spark"] == ["tests/unit", "tests/spark"]
    assert split["airflow"] == ["tests/dags/test_integrity.py"]
    (delivery,) = split["integration"]
    module, name = delivery.split("::")
    assert f"def {name}(" in (ROOT / module).read_text()
