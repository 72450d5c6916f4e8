"""Dependencies point one way: rules know no I/O, stores know no rules that decide, jobs and DAGs know only the library."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IO = (
    "cassandra",
    "clickhouse_connect",
    "pyspark",
    "pyarrow",
    "airflow",
    "tagmill.stores",
    "tagmill.delivery",
    "tagmill.cli",
    "tagmill.airflow",
)
# Package: modules that nothing in it may import.
FORBIDDEN = {
    "tagmill/continuity": IO,
    "tagmill/batches": IO,
    "tagmill/buckets.py": IO,
    "tagmill/timeuuid.py": IO,
    "tagmill/names.py": IO,
    "tagmill/journaltables.py": IO,
    "tagmill/domain": (*IO, "tagmill.ledger"),
    "tagmill/ledger": ("tagmill.delivery", "tagmill.quality", "tagmill.cli", "tagmill.airflow", "pyspark"),
    "tagmill/clock.py": IO,
    "tagmill/stores": (
        "tagmill.delivery",
        "tagmill.continuity.rules",
        "tagmill.quality",
        "tagmill.cli",
        "tagmill.airflow",
        "pyspark",
    ),
    "tagmill/runs": ("tagmill.delivery", "tagmill.cli", "tagmill.airflow", "airflow", "pyspark", "local"),
    "tagmill/restore": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/quality": ("tagmill.delivery", "tagmill.cli", "tagmill.airflow", "cassandra", "clickhouse_connect"),
    "tagmill/delivery": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/views": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/queries": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/audit": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/rebucket": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/rebucket/advice.py": IO,
    "tagmill/cleanup/rules.py": IO,
    "tagmill/journal/rules.py": IO,
    "tagmill/cleanup": ("tagmill.cli", "tagmill.airflow", "airflow", "pyspark", "local"),
    "tagmill/journal": ("tagmill.cli", "tagmill.airflow", "airflow", "pyspark", "local"),
    "tagmill/erasure": ("tagmill.cli", "tagmill.airflow", "airflow", "pyspark", "local"),
    "tagmill/erasure/rules.py": IO,
    "tagmill/section.py": IO,
    "tagmill/tls.py": IO,
    "tagmill/spark": (
        "tagmill.delivery",
        "tagmill.views",
        "tagmill.topics",
        "tagmill.cli",
        "tagmill.airflow",
        "airflow",
        "local",
    ),
    "tagmill/kafkasettings.py": IO,
    "tagmill/viewsettings.py": IO,
    "tagmill/kafka": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/kafkajournal": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/kafkajournal/records.py": (*IO, "confluent_kafka"),
    "tagmill/kafkajournal/rules.py": (*IO, "confluent_kafka"),
    "tagmill/topics": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    **{
        f"tagmill/topics/{name}.py": (*IO, "confluent_kafka")
        for name in ("columns", "events", "evolution", "fields", "formats", "ids")
    },
    "tagmill/cli": ("tagmill.airflow", "airflow"),
    "tagmill/airflow": ("tagmill.cli", "pyspark", "local"),
    "spark_jobs": ("airflow", "tagmill.airflow", "tagmill.cli", "local"),
    "dags": ("pyspark", "cassandra", "tagmill.cli", "tagmill.delivery", "local"),
    "plugins": ("pyspark", "cassandra", "tagmill.cli", "tagmill.delivery", "local"),
}


def imported(file: Path) -> Iterator[str]:
    """Yield the modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@pytest.mark.parametrize("room", FORBIDDEN)
def test_a_room_imports_only_what_lies_below_it(room):
    """Packages import none of the modules that are forbidden to them."""
    place = ROOT / room
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    assert files, f"{room} is gone: adapt this test"
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in files
        for module in imported(file)
        for package in FORBIDDEN[room]
        if within(module, package)
    ]
    assert wrong == []
