"""Names of Airflow that only tests need, and that moved between 3.1 and 3.3."""

from typing import Any

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:
    from airflow.models.dagbag import DagBag
try:
    from airflow.serialization.serialized_objects import DagSerialization
except ImportError:
    from airflow.serialization.serialized_objects import SerializedDAG as DagSerialization

__all__ = ["DagBag", "DagSerialization", "cron", "crons", "first_run", "registered_plugins", "store_dags"]

PRESETS = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0"}


def cron(timetable: Any) -> str:
    """Return the cron expression of a timetable of tagmill.airflow.compat; Airflow 3.2 keeps a preset as it is."""
    expression: str = getattr(timetable, "expression", None) or timetable._expression
    return PRESETS.get(expression, expression)


def crons(timetable: Any) -> set[str]:
    """Return the cron expressions of a timetable that has several."""
    return set(map(cron, getattr(timetable, "timetables", None) or timetable._timetables))


def registered_plugins() -> tuple[list[str], dict[str, str]]:
    """Return the names of the plugins that Airflow has registered, and its errors."""
    from airflow import plugins_manager

    plugins_manager.ensure_plugins_loaded()
    if hasattr(plugins_manager, "_get_plugins"):
        loaded, errors = plugins_manager._get_plugins()
    else:
        loaded, errors = plugins_manager.plugins, plugins_manager.import_errors
    return [plugin.name for plugin in loaded], errors


def first_run(dag: Any) -> Any:
    """Return when a stored DAG runs first that has not run yet."""
    try:
        return dag.next_dagrun_info(last_automated_run_info=None).run_after
    except TypeError:
        return dag.next_dagrun_info(last_automated_dagrun=None).run_after


def store_dags(bag: Any, session: Any) -> None:
    """Store the DAGs of a bag in Airflow's database, as the DAG processor does."""
    from airflow.models.dagbundle import DagBundleModel

    try:
        from airflow.dag_processing.dagbag import sync_bag_to_db
    except ImportError:
        from airflow.models.dagbag import sync_bag_to_db
    if session.get(DagBundleModel, "tests") is None:
        session.add(DagBundleModel(name="tests"))
        session.flush()
    for dag in bag.dags.values():
        dag.relative_fileloc = dag.fileloc
    sync_bag_to_db(bag, "tests", None, session=session)
