"""Let tasks whose pool does not exist run in Airflow's default pool, and make Airflow warn of the missing pool.

Airflow's scheduler never starts such a task, and only its log says why. A DAG file must not read Airflow's
database, so this is done where Airflow itself uses it: in the scheduler when a run begins, and in the api-server when
the warnings of DAGs are asked for.
"""

import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from airflow.listeners import hookimpl

from tagmill.airflow.factory import KINDS
from tagmill.config.airflow import creating_pools

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)
WARNINGS_PATH = "/api/v2/dagWarnings"
# Seconds for which the recorded warnings are not looked at again, however often they are asked for.
RECORDED_SECONDS = 2.0


def is_ours(dag_id: str, tags: Collection[str]) -> bool:
    """Return whether a DAG is one that factory.new_dag made, by its id and its tags."""
    kind, _, pipeline = dag_id.partition("_")
    return kind in KINDS and kind in tags and pipeline in tags


def existing(session: "Session") -> set[str]:
    """Return the names of Airflow's pools."""
    from airflow.models.pool import Pool
    from sqlalchemy import select

    return set(session.scalars(select(Pool.pool)))


@hookimpl
def on_dag_run_running(dag_run: Any, msg: str) -> None:
    """Move the tasks of a run that begins from pools that do not exist to the default pool.

    Airflow's scheduler calls it, also for a run with cleared tasks. The change is part of the scheduler's own
    transaction.
    """
    from airflow.models.pool import Pool
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.state import State
    from sqlalchemy import select
    from sqlalchemy.orm import object_session

    session, dag = object_session(dag_run), getattr(dag_run, "dag", None)
    if session is None or dag is None or not is_ours(dag_run.dag_id, dag.tags):
        return
    query = select(TaskInstance).where(
        TaskInstance.dag_id == dag_run.dag_id, TaskInstance.run_id == dag_run.run_id
    )
    waiting = [task for task in session.scalars(query) if task.state not in State.finished]
    absent = sorted({task.pool for task in waiting} - existing(session))
    moved = [task for task in waiting if task.pool in absent]
    for task in moved:
        task.pool = Pool.DEFAULT_POOL_NAME
    if moved:
        log.warning(
            "run %s of %s: no pool %s, so %s use %s. Create it: %s",
            dag_run.run_id,
            dag_run.dag_id,
            ", ".join(absent),
            ", ".join(sorted(task.task_id for task in moved)),
            Pool.DEFAULT_POOL_NAME,
            creating_pools(absent),
        )


class PoolWarnings:
    """ASGI middleware of the api-server: records the missing pools of DAGs before the warnings are read.

    The DAG processor deletes the recorded warnings with each parse of a file, so they are recorded when they are read.
    """

    def __init__(self, app: Any) -> None:
        self.app = app
        self._recorded = float("-inf")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Record the warnings if this request reads them, then pass it on."""
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"].endswith(WARNINGS_PATH):
            from starlette.concurrency import run_in_threadpool

            now = time.monotonic()
            if now - self._recorded >= RECORDED_SECONDS:
                self._recorded = now
                await run_in_threadpool(_record)
        await self.app(scope, receive, send)


def _record() -> None:
    """Record the missing pools; a failure is logged, and leaves the request alone."""
    from airflow.utils.session import create_session

    try:
        with create_session(scoped=False) as session:
            record_warnings(session)
    except Exception:
        log.exception("missing pools can't be recorded")


def record_warnings(session: "Session") -> None:
    """Make Airflow's warnings say which pools of Tagmill's DAGs do not exist now."""
    from airflow.models.dag import DagTag
    from airflow.models.dagwarning import DagWarning, DagWarningType
    from airflow.models.serialized_dag import SerializedDagModel
    from sqlalchemy import select

    tags: dict[str, set[str]] = {}
    for dag_id, tag in session.execute(select(DagTag.dag_id, DagTag.name)):
        tags.setdefault(dag_id, set()).add(tag)
    kind = DagWarningType.NONEXISTENT_POOL
    recorded = {
        row.dag_id: row for row in session.scalars(select(DagWarning).where(DagWarning.warning_type == kind))
    }
    known = existing(session)
    for dag_id in sorted(dag_id for dag_id, of_dag in tags.items() if is_ours(dag_id, of_dag)):
        dag = SerializedDagModel.get_dag(dag_id, session=session)
        absent = sorted({task.pool for task in dag.tasks} - known) if dag is not None else []
        text = f"no pool {', '.join(absent)}: runs that begin now use the default pool. Create it: {creating_pools(absent)}"
        row = recorded.get(dag_id)
        if not absent:
            if row is not None:
                session.delete(row)
        elif row is None:
            session.add(DagWarning(dag_id, kind.value, text))
        elif row.message != text:
            row.message = text
