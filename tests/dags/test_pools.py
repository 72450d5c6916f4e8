"""Tasks whose pool does not exist, on a database of Airflow: they run in the default pool, and a warning says so."""

import asyncio
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

pytest.importorskip("airflow")

from tagmill.airflow import pools
from tests.dags.test_integrity import bag
from tests.support.airflow_names import store_dags

MOMENT = datetime(2026, 11, 21, tzinfo=UTC)


@pytest.fixture(scope="module")
def database():
    """Create Airflow's tables in the database of these tests, which is in its own AIRFLOW_HOME."""
    command = [Path(sys.executable).parent / "airflow", "db", "migrate"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture
def session(database, config):
    """Yield a session of Airflow's database, which has the DAGs of the configuration and the pool `spark` only."""
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session

    with create_session(scoped=False) as opened:
        store_dags(bag(), opened)
        Pool.create_or_update_pool("spark", 1, "", False, session=opened)
        opened.commit()
        yield opened
        opened.rollback()


def started(session, dag_id, run_id):
    """Return a new run of a stored DAG, as the scheduler has it when the run begins."""
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.utils.state import DagRunState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    dag = SerializedDagModel.get_dag(dag_id, session=session)
    run = dag.create_dagrun(
        run_id=run_id,
        run_after=MOMENT,
        run_type=DagRunType.MANUAL,
        triggered_by=DagRunTriggeredByType.TEST,
        state=DagRunState.RUNNING,
        session=session,
    )
    run.dag = dag
    return run


def pools_of(session, run):
    """Return the pool of each task of a run."""
    session.flush()
    session.expire_all()
    return {task.task_id: task.pool for task in run.get_task_instances(session=session)}


def test_run_moves_tasks_of_missing_pools_only(session, caplog):
    """Move the tasks of a run that begins from a pool that is not there; leave the others, and foreign DAGs."""
    run = started(session, "deliver_orders", "first")
    before = pools_of(session, run)
    assert before["push"] == "clickhouse"
    run.notify_dagrun_state_changed(msg="started")
    assert pools_of(session, run) == before | {"push": "default_pool"}
    (said,) = [record.getMessage() for record in caplog.records if record.name == pools.__name__]
    assert "run first of deliver_orders: no pool clickhouse, so push use default_pool" in said
    foreign = started(session, "deliver_orders", "second")
    foreign.dag.tags = {"theirs"}
    foreign.notify_dagrun_state_changed(msg="started")
    assert pools_of(session, foreign) == before


def test_asking_for_warnings_names_missing_pools(session):
    """Record a warning of a missing pool before the warnings are read, and delete it when the pool is there."""
    from airflow.models.dagwarning import DagWarning
    from airflow.models.pool import Pool
    from sqlalchemy import select

    asked = []

    async def app(scope, receive, send):
        asked.append(scope["path"])

    def warnings(path):
        scope = {"type": "http", "method": "GET", "path": path}
        asyncio.run(pools.PoolWarnings(app)(scope, None, None))
        session.expire_all()
        found = {row.dag_id: row.message for row in session.scalars(select(DagWarning))}
        session.rollback()
        return found

    assert warnings("/api/v2/dags") == {}
    found = warnings("/api/v2/dagWarnings")
    assert set(found) == {"deliver_orders", "deliver_payments", "deliver_products", "deliver_cart_events"}
    assert found["deliver_orders"].startswith("no pool clickhouse: runs that begin now use the default pool.")
    assert 'airflow pools set clickhouse 1 "tagmill"' in found["deliver_orders"]
    Pool.create_or_update_pool("clickhouse", 1, "", False, session=session)
    session.commit()
    assert warnings("/api/v2/dagWarnings") == {}
    Pool.delete_pool("clickhouse", session=session)
    session.commit()
    assert asked == ["/api/v2/dags", "/api/v2/dagWarnings", "/api/v2/dagWarnings"]
