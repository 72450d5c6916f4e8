"""Make what `on_failure` and `on_deadline` name: functions, and notifiers of Airflow's providers."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from asgiref.sync import sync_to_async

from tagmill.config.airflow import Callback, Notifier
from tagmill.errors import ConfigurationError

log = logging.getLogger(__name__)
Called = Callable[[Any], Any]


class NotInstalled(Exception):
    """No installed provider has this notifier; the message is one line."""


def imported(key: str, path: str) -> Callable[..., Any]:
    """Import `module:name`; raises ConfigurationError, about a key of `[airflow]`, if that is not callable."""
    module, _, name = path.partition(":")
    try:
        value: Callable[..., Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"airflow.{key}: {path} can't be imported: {error}") from None
    if not callable(value):
        raise ConfigurationError(f"airflow.{key}: {path} is not a function or a notifier")
    return value


def made(key: str, callback: Callback) -> Called:
    """Return a function of the context, or a notifier with its arguments.

    Raises:
        NotInstalled: no installed provider has the notifier.
        ConfigurationError: a path leads to nothing, or the notifier refuses its arguments.
    """
    if isinstance(callback, str):
        return imported(key, callback)
    notifier: Called
    try:
        notifier = imported(key, _path_of(key, callback.notifier))(**callback.arguments)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"airflow.{key}: notifier {callback.notifier}: {error}") from None
    return notifier


def _path_of(key: str, name: str) -> str:
    if ":" in name:
        return name
    known = notifiers()
    if name not in known:
        installed = ", ".join(sorted(known)) or "none"
        raise NotInstalled(
            f"airflow.{key}: no installed provider has the notifier {name} (installed: {installed}). It is left out; "
            "install the provider"
        )
    return known[name]


@cache
def notifiers() -> Mapping[str, str]:
    """Return the import paths of all notifiers that the installed providers declare, by their modules' names."""
    found = {}
    for entry in entry_points(group="apache_airflow_provider"):
        try:
            declared = entry.load()().get("notifications", ())
        except Exception as error:
            log.debug("provider %s says nothing of its notifiers: %s", entry.name, error)
            continue
        for path in declared:
            module, _, name = path.rpartition(".")
            found[module.rpartition(".")[2]] = f"{module}:{name}"
    return found


async def deadline_missed(
    deadline_seconds: float, callbacks: Sequence[str | Mapping[str, Any]], context: dict[str, Any]
) -> None:
    """Call what `on_deadline` names, each of it, in Airflow's triggerer.

    Args:
        deadline_seconds: as configured.
        callbacks: as configured.
        context: Airflow's, with `dag_run` and `deadline`.

    Raises ConfigurationError, after the last one, if a callback failed.
    """
    run = context.get("dag_run") or {}
    log.warning(
        "run %s of %s is not done after %s s", run.get("dag_run_id"), run.get("dag_id"), deadline_seconds
    )
    failed = []
    for configured in callbacks:
        callback = configured if isinstance(configured, str) else Notifier(**configured)
        name = callback if isinstance(callback, str) else callback.notifier
        try:
            # In a thread, since it may block; the triggerer's loop answers its questions for connections.
            call = partial(made("on_deadline", callback), context)
            await sync_to_async(call, thread_sensitive=False)()
        except Exception as error:
            log.exception("on_deadline: %s failed", name)
            failed.append(f"{name}: {error}")
    if failed:
        raise ConfigurationError(f"airflow.on_deadline: {'; '.join(failed)}")
