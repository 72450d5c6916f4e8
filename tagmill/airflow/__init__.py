"""Airflow's side: when the steps run, with whose credentials, and what a failure means to the scheduler.

Nothing outside this folder imports Airflow, and nothing in it imports a store when a DAG file is parsed. A DAG file
with two lines makes all DAGs:

    from tagmill.airflow import all_dags
    globals().update(all_dags())
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk import DAG


def all_dags(*families: str) -> dict[str, DAG]:
    """Return the DAGs of all configured pipelines by their ids.

    Args:
        families: only these of tagmill.airflow.dags.FAMILIES (audit, cleanup, deliver, maintenance, replicate,
            topics); left out: all.

    Raises ConfigurationError, which Airflow shows as the file's import error.
    """
    from tagmill.airflow.dags import dags_of

    return {dag.dag_id: dag for dag in dags_of(families)}
