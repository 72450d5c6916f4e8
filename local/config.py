"""Write the demo's configuration file: its pipelines on the local stack."""

import os
import re
from pathlib import Path

from local import class_archive
from local.layout import StackLayout

TEXT = """\
# The demo's pipelines on the local stack. Relative paths count from this file's folder.
[cassandra]
hosts = ["127.0.0.1"]
port = {cassandra}
local_datacenter = "datacenter1"
ledger_keyspace = "tagmill"
replication = {{ class = "SimpleStrategy", replication_factor = 1 }}

[clickhouse]
host = "127.0.0.1"
port = {clickhouse}

[spark]
driver_memory = "2g"
class_archive = "{classes}"

[storage]
root = "data"

[pipelines.{pipeline}]
keyspace = "{pipeline}"
bucket_size = "Hour"
tags = ["billing", "order", "shipping"]
first_time_bucket = "{first}"
destination = "{pipeline}"
schedule = "@hourly"
"""

# Further pipelines, which only the demo of the recorded orders has.
BESIDE = """
# The same journal without views, as if its application ran with events-by-tag off: Tagmill builds them before
# it delivers.
[pipelines.orders_built]
keyspace = "orders_built"
bucket_size = "Hour"
tags = ["billing", "order", "shipping"]
first_time_bucket = "{first}"
destination = "orders_built"
views = "tagmill"
schedule = "@hourly"

# Beside it a plain topic, of which each distinct event is delivered once.
[kafka]
bootstrap_servers = ["127.0.0.1:{kafka}"]

# All three are delivered in one Spark session, by the DAG deliver_all.
[airflow]
shared_session = true

[pipelines.products]
kind = "topic"
topics = ["products"]
format = "json"
destination = "products"
schedule = "@hourly"

[[pipelines.products.columns]]
name = "price"
type = "Float64"

[[pipelines.products.columns]]
name = "country"
path = "customer.country"
type = "LowCardinality(String)"
"""


def write_config(
    layout: StackLayout, *, pipeline: str = "orders", first_time_bucket: str = "20261121T07:00"
) -> Path:
    """Write the configuration file, or only the ports if it exists, and return its path.

    Keyspace and destination get the pipeline's name.
    """
    file = layout.config
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        text = (TEXT + BESIDE if pipeline == "orders" else TEXT).format(
            cassandra=layout.ports.cassandra,
            clickhouse=layout.ports.clickhouse,
            kafka=layout.ports.kafka,
            classes=os.path.relpath(class_archive.FILE, file.parent),
            pipeline=pipeline,
            first=first_time_bucket,
        )
        file.write_text(text, encoding="utf-8")
    elif (text := _with_ports(before := file.read_text(encoding="utf-8"), layout)) != before:
        file.write_text(text, encoding="utf-8")
    return file


def _with_ports(text: str, layout: StackLayout) -> str:
    """Return a configuration with the stack's ports, which another start may have changed."""
    for section, key, port in (
        ("cassandra", "port = ", layout.ports.cassandra),
        ("clickhouse", "port = ", layout.ports.clickhouse),
        ("kafka", r'bootstrap_servers = \["127.0.0.1:', layout.ports.kafka),
    ):
        text = re.sub(rf"(?m)(^\[{section}\]\n(?:[^\[\n].*\n|\n)*?{key})\d+", rf"\g<1>{port}", text)
    return text
