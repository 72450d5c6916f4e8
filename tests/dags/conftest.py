"""Airflow without a server or a database, set up before the first import of Airflow so that no developer's
settings leak in.
"""

import os
import tempfile
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
CONFIG = """
[cassandra]
airflow_connection = "tagmill_cassandra"
[storage]
root = "{root}"
[pipelines.orders]
keyspace = "orders"
bucket_size = "Hour"
tags = ["order", "billing", "it's \\"quoted\\" / ünï"]
first_time_bucket = "20261121T07:00"
destination = "orders"
schedule = "@hourly"
[pipelines.payments]
keyspace = "payments"
bucket_size = "Day"
tags = ["payment"]
first_time_bucket = "20261121T00:00"
destination = "payments"
views = "tagmill"
schedule = "30 2 * * *"
audit_schedule = "45 3 * * 1"
[pipelines.products]
kind = "topic"
topics = ["products"]
format = "json"
destination = "products"
[pipelines.carts]
kind = "kafka_journal"
keyspace = "carts"
topic_prefixes = ["journal-"]
schedule = "*/10 * * * *"
cleanup_schedule = "@monthly"
[pipelines.cart_events]
kind = "kafka_journal_events"
keyspace = "carts"
destination = "cart_events"
cleanup_schedule = "@weekly"
"""

os.environ.update(
    AIRFLOW_HOME=tempfile.mkdtemp(prefix="airflow_"),
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="True",
    AIRFLOW__CORE__DAGS_FOLDER=str(PROJECT / "dags"),
    AIRFLOW__CORE__PLUGINS_FOLDER=str(PROJECT / "plugins"),
)
for name in [
    name for name in os.environ if name.startswith(("AIRFLOW_CONN_", "TAGMILL_", "AIRFLOW__DATABASE__"))
]:
    del os.environ[name]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a configuration file with several pipelines, name it in TAGMILL_CONFIG and return its path.

    Its storage root is the test's own folder.
    """
    file = tmp_path / "tagmill.toml"
    file.write_text(CONFIG.format(root=tmp_path / "data"))
    monkeypatch.setenv("TAGMILL_CONFIG", str(file))
    return file
