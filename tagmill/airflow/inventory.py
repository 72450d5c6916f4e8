"""Say which pools and connections Airflow has, as JSON without secrets, for `tagmill doctor`.

It runs as a program of its own, `python -m tagmill.airflow.inventory`, in the Python of Airflow.
"""

import json
import os
from typing import Any

# Outside of a task, this lets Airflow look up connections in its database.
os.environ.setdefault("_AIRFLOW_PROCESS_CONTEXT", "server")


def inventory() -> dict[str, Any]:
    """Return the pools with their slots, the connections that the configuration names and that exist, and
    what is wrong with them.

    The keys are pools, missing_pools, connections, missing_connections and error ("": nothing is wrong).
    """
    from airflow.models import Pool

    from tagmill.airflow.connections import find, load_settings
    from tagmill.config.settings import Settings
    from tagmill.errors import TagmillError

    pools = {pool.pool: pool.slots for pool in Pool.get_pools()}
    settings = Settings.load()
    pipelines = (*settings.pipelines, *settings.kafka_journals, *settings.streams)
    looks = (settings.airflow, *map(settings.dags_of, pipelines))
    wanted = {pool for look in looks for pool in (look.spark_pool, look.clickhouse_pool)}
    named = {
        getattr(settings, section).airflow_connection
        for section in ("cassandra", "clickhouse", "kafka", "spark")
    }
    connections = {name for name in named if find(name) is not None}
    error = ""
    try:
        load_settings()
    except TagmillError as wrong:
        error = str(wrong)
    return {
        "pools": pools,
        "missing_pools": sorted(wanted - pools.keys()),
        "connections": sorted(connections),
        "missing_connections": sorted(named - connections),
        "error": error,
    }


if __name__ == "__main__":
    print(json.dumps(inventory()))
