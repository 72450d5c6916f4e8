"""All DAGs of a configuration, in families: a DAG file has the DAGs of one family, or all of them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from airflow.sdk import DAG

from tagmill.airflow.audit import audit_dag
from tagmill.airflow.cleanup import cleanup_dag
from tagmill.airflow.customize import customize
from tagmill.airflow.deliver import deliver_dag
from tagmill.airflow.maintenance import maintenance_dags
from tagmill.airflow.replicate import replicate_dag
from tagmill.airflow.together import DAG_ID, shared, together_dag
from tagmill.airflow.topics import topic_dag
from tagmill.config.settings import Settings
from tagmill.package_files import package_folder


def _audit(settings: Settings, jobs: Path) -> Iterator[DAG]:
    for name in settings.pipelines:
        yield audit_dag(settings, name, jobs=jobs)


def _cleanup(settings: Settings, jobs: Path) -> Iterator[DAG]:
    for name in (*settings.pipelines, *settings.streams, *settings.kafka_journals):
        yield cleanup_dag(settings, name)


def _deliver(settings: Settings, jobs: Path) -> Iterator[DAG]:
    for name in settings.pipelines:
        yield deliver_dag(settings, name, jobs)
    if shared(settings):
        yield together_dag(settings, jobs)


def _replicate(settings: Settings, jobs: Path) -> Iterator[DAG]:
    for name in settings.kafka_journals:
        yield replicate_dag(settings, name, jobs)


def _topics(settings: Settings, jobs: Path) -> Iterator[DAG]:
    for name in settings.streams:
        yield topic_dag(settings, name, jobs)


# By a family's name: what makes its DAGs from the configuration and the folder of the Spark job scripts.
FAMILIES: dict[str, Callable[[Settings, Path], Iterator[DAG]]] = {
    "audit": _audit,
    "cleanup": _cleanup,
    "deliver": _deliver,
    "maintenance": maintenance_dags,
    "replicate": _replicate,
    "topics": _topics,
}


def dags_of(families: Sequence[str] = ()) -> Iterator[DAG]:
    """Yield the DAGs of these families, or of all; raises ConfigurationError."""
    settings, jobs = Settings.load(), package_folder("spark_jobs")
    for family in families or FAMILIES:
        for dag in FAMILIES[family](settings, jobs):
            of_all = bool(shared(settings)) and dag.dag_id == DAG_ID
            customize(dag, settings.airflow if of_all else settings.dags_of(dag.dag_id.partition("_")[2]))
            yield dag
