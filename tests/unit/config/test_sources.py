"""Where each value of the configuration comes from; secrets are never shown."""

import json

import pytest

from local.config import TEXT
from tagmill.config.sources import MASK, effective
from tests.support.delivery import tagmill

AZURE = "spark.hadoop.fs.azure.account.key.here.dfs.core.windows.net"


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Write a file with secrets in odd places, and set variables over it."""
    path = tmp_path / "tagmill.toml"
    text = TEXT.format(cassandra=1, clickhouse=2, classes="c", pipeline="orders", first="20261121T07:00")
    text = text.replace('root = "data"', 'root = "s3a://key:sesame@bucket/t"')
    conf = '[spark.conf]\n"spark.hadoop.fs.s3a.secret.key" = "sesame"\n"spark.executor.memory" = "4g"\n'
    conf += f'"{AZURE}" = "sesame"\n'
    path.write_text(f"{text}\n{conf}[pipelines.orders.quality]\nnamed_rows = 7\n")
    monkeypatch.setenv("TAGMILL_CASSANDRA__PASSWORD", "sesame")
    (tmp_path / "secret").write_text("sesame")
    monkeypatch.setenv("TAGMILL_KAFKA__TLS_KEY_PASSWORD_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("TAGMILL_CLICKHOUSE", json.dumps({"database": "analytics"}))
    monkeypatch.setenv("tagmill_pipelines__orders__schedule", "@daily")
    return path


def test_effective_names_source_of_each_key(file) -> None:
    values = {value.key: (value.value, value.source) for value in effective(file)}
    assert values["cassandra.port"] == (1, str(file))
    assert values["cassandra.replication.class"] == ("SimpleStrategy", str(file))
    assert values["cassandra.replication.replication_factor"] == (1, str(file))
    assert values["cassandra.password"] == (MASK, "environment variable TAGMILL_CASSANDRA__PASSWORD")
    variable = "environment variable TAGMILL_KAFKA__TLS_KEY_PASSWORD_FILE"
    assert values["kafka.tls_key_password"] == (MASK, variable)
    assert values["cassandra.username"] == (None, "not set; in Airflow the connection tagmill_cassandra")
    assert values["clickhouse.database"] == ("analytics", "environment variable TAGMILL_CLICKHOUSE")
    assert values["clickhouse.port"] == (2, str(file))
    assert values["pipelines.orders.schedule"] == (
        "@daily",
        "environment variable tagmill_pipelines__orders__schedule",
    )
    assert values["pipelines.orders.quality.named_rows"] == (7, str(file))
    assert values["pipelines.orders.batch_rows"] == (250_000, "default")
    assert values["storage.root"][0] == f"s3a://key:{MASK}@bucket/t"
    masked = {"spark.hadoop.fs.s3a.secret.key": MASK, AZURE: MASK}
    assert values["spark.conf"][0] == {"spark.executor.memory": "4g"} | masked


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["table", "JSON"])
def test_config_show_hides_secrets(file, options) -> None:
    code, shown, error = tagmill(file, "config", "show", *options)
    assert code == 0 and "sesame" not in shown + error and "pipelines.orders.tags" in shown
    if options:
        assert {"key", "value", "source"} == json.loads(shown)[0].keys()


def test_config_schema_is_json(file) -> None:
    code, shown, _ = tagmill(file, "config", "schema")
    assert code == 0 and "pipelines" in json.loads(shown)["properties"]


def test_version_is_printed_without_configuration(tmp_path) -> None:
    code, shown, _ = tagmill(tmp_path / "none.toml", "--version")
    assert code == 0 and shown.strip().count(".") == 2
