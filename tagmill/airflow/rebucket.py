"""DAG `views_rebucket_<pipeline>`: moves the tag views of the pipeline's journal to buckets of another size.

Only by hand.

Start with a dry run, then copy while the application writes (`dry_run` off). Then stop the application and
set `offline`: the run copies what came since, verifies everything, and makes the new table the view. The
task's log ends with what the configurations must say then.
"""

from pathlib import Path

from airflow.sdk import DAG, Param

from tagmill.airflow.factory import LONG, SPARK_POOL, dry_run_param, new_dag
from tagmill.airflow.operators import RebucketOperator
from tagmill.config.settings import Settings
from tagmill.domain.time_buckets import BucketSize


def rebucket_dag(settings: Settings, pipeline: str, jobs: Path) -> DAG:
    """Return the DAG `views_rebucket_<pipeline>`; `jobs` is the folder of the Spark job scripts."""
    configured = settings.pipeline(pipeline)
    sizes = [size.value for size in BucketSize]
    dag = new_dag(
        "views_rebucket",
        pipeline,
        description=f"{configured.keyspace}.{configured.view_table} into a table with another bucket size",
        doc=__doc__,
        schedule=None,
        params={
            "to": Param(
                configured.bucket_size.value,
                title="To",
                type="string",
                enum=sizes,
                description="bucket size that the view is to have",
            ),
            "table": Param(
                None,
                title="New table",
                type=["null", "string"],
                pattern="^([a-z][a-z0-9_]{0,47})?$",
                description="its name; empty: tag_views_ and the size, in lower case",
            ),
            "dry_run": dry_run_param("only count, and say what would be done"),
            "offline": Param(
                False,
                title="Offline",
                type="boolean",
                description="the application is stopped on every node: verify, and switch",
            ),
            "drop_old": Param(
                False,
                title="Drop the old table",
                type="boolean",
                description="after the switch, if the new one has every row of it",
            ),
            "abandon": Param(
                False,
                title="Give it up",
                type="boolean",
                description="before the switch: drop the new table, the view stays as it is",
            ),
        },
    )
    with dag:
        RebucketOperator(
            task_id="rebucket",
            pipeline=pipeline,
            application=str(jobs / "rebucket.py"),
            conn_id=settings.spark.airflow_connection,
            pool=SPARK_POOL,
            execution_timeout=LONG,
        )
    return dag
