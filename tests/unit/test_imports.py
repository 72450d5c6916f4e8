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
    "tagmill.cassandra",
    "tagmill.clickhouse",
    "tagmill.ledger",
    "tagmill.delivery",
    "tagmill.cli",
    "tagmill.airflow",
)
# Package: modules that nothing in it may import.
FORBIDDEN = {
    "tagmill/domain/continuity": IO,
    "tagmill/domain/time_buckets.py": IO,
    "tagmill/domain/timeuuid.py": IO,
    "tagmill/domain/identifiers.py": IO,
    "tagmill/domain/journal_tables.py": IO,
    "tagmill/domain": (*IO, "tagmill.ledger"),
    "tagmill/ledger": ("tagmill.delivery", "tagmill.quality", "tagmill.cli", "tagmill.airflow", "pyspark"),
    "tagmill/domain/clock.py": IO,
    "tagmill/cassandra": (
        "tagmill.delivery",
        "tagmill.domain.continuity.rules",
        "tagmill.quality",
        "tagmill.cli",
        "tagmill.airflow",
        "pyspark",
    ),
    "tagmill/runs": ("tagmill.delivery", "tagmill.cli", "tagmill.airflow", "airflow", "pyspark", "local"),
    "tagmill/maintenance/ledger_restore": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/quality": ("tagmill.delivery", "tagmill.cli", "tagmill.airflow", "cassandra", "clickhouse_connect"),
    "tagmill/delivery": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/views": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/queries": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/audit": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/views/rebucket": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/views/rebucket/advice.py": IO,
    "tagmill/maintenance/view_cleanup/rules.py": IO,
    "tagmill/maintenance/journal_cleanup/rules.py": IO,
    "tagmill/maintenance/view_cleanup": ("tagmill.cli", "tagmill.airflow", "airflow", "pyspark", "local"),
    "tagmill/maintenance/journal_cleanup": ("tagmill.cli", "tagmill.airflow", "airflow", "pyspark", "local"),
    "tagmill/maintenance/erasure": ("tagmill.cli", "tagmill.airflow", "airflow", "pyspark", "local"),
    "tagmill/maintenance/erasure/name_matching.py": IO,
    "tagmill/config/base.py": IO,
    "tagmill/config/tls.py": IO,
    "tagmill/spark": (
        "tagmill.delivery",
        "tagmill.views",
        "tagmill.kafka_journal",
        "tagmill.cli",
        "tagmill.airflow",
        "airflow",
        "local",
    ),
    "tagmill/config/kafka.py": IO,
    "tagmill/config/tag_views.py": IO,
    "tagmill/kafka": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/kafka_journal": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    "tagmill/kafka_journal/wire_format.py": (*IO, "confluent_kafka"),
    "tagmill/kafka_journal/fold.py": (*IO, "confluent_kafka"),
    "tagmill/delivery/topics": ("tagmill.cli", "tagmill.airflow", "airflow", "local"),
    **{
        f"tagmill/delivery/topics/{name}.py": (*IO, "confluent_kafka")
        for name in ("table_columns", "record_decoder", "schema_evolution", "fields", "formats", "event_ids")
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
