"""The JSON Schema of the file: it takes what the model takes, and refuses unknown keys."""

import copy
import tomllib

import jsonschema
import pytest

from local.config import BESIDE, TEXT
from tagmill.config.json_schema import schema

VALID = tomllib.loads(
    (TEXT + BESIDE).format(
        cassandra=9042,
        clickhouse=8123,
        kafka=9092,
        classes="c",
        pipeline="orders",
        first="20261121T07:00",
    )
)
VALID["pipelines"]["carts"] = {"kind": "kafka_journal", "keyspace": "carts", "topics": ["t"]}
VALID["pipelines"]["events"] = {"kind": "kafka_journal_events", "keyspace": "carts", "destination": "events"}


def test_schema_is_valid_and_takes_demo_file() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(VALID, schema())
    for store in ("CassandraSettings", "ClickHouseSettings", "KafkaSettings"):
        keys = schema()["$defs"][store]["properties"].keys()
        assert not {"username", "password", "tls_key_password"} & keys
        assert {"tls_certificate_file", "tls_key_file"} <= keys


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("cassandra", "prot"), 1),
        (("cassandra", "port"), "9042"),
        (("cassandra", "username"), "u"),
        (("kafka", "tls_key_password"), "p"),
        (("kafka", "properties"), {"client.rack": ["a"]}),
        (("pipelines", "orders", "bucket_size"), "Week"),
        (("pipelines", "orders", "topics"), ["t"]),
        (("pipelines", "products", "keyspace"), "k"),
        (("pipelines", "products", "kind"), "other"),
        (("pipelines", "products", "columns"), [{"name": "a", "type": "Text"}]),
        (("pipelines", "no name"), {"kind": "topic"}),
        (("topics",), {}),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else None,
)
def test_schema_refuses_wrong_keys(path, value) -> None:
    content = copy.deepcopy(VALID)
    section = content
    for name in path[:-1]:
        section = section[name]
    section[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, schema())
