"""What an error is about, besides its message."""

import importlib
import inspect
import pickle
from typing import Any
from uuid import UUID

import pytest

from tagmill.errors import (
    BatchDiffers,
    DataQualityStop,
    SealedFileDamaged,
    StoreUnavailable,
    TerminalError,
    about,
)

BATCH = UUID(int=7)


def test_error_has_pipeline_run_and_batch() -> None:
    error = BatchDiffers("differs", pipeline="p", run=3, batch=BATCH)
    assert (str(error), error.pipeline, error.run, error.batch) == ("differs", "p", 3, str(BATCH))
    bare = StoreUnavailable("away")
    assert (bare.pipeline, bare.run, bare.batch) == (None, None, None)


def test_error_keeps_attributes_between_processes() -> None:
    stop = pickle.loads(pickle.dumps(DataQualityStop("stopped", "page", pipeline="p", run=3)))
    assert (str(stop), stop.docs_page, stop.pipeline, stop.run, stop.batch) == (
        "stopped",
        "page",
        "p",
        3,
        None,
    )


def test_about_fills_in_missing_attributes() -> None:
    """The place nearest to the error knows best; those around it add only what is missing."""
    with pytest.raises(SealedFileDamaged, match="^gone$") as raised:
        with about(pipeline="outer", run=9), about(run=3, batch=BATCH):
            raise SealedFileDamaged("gone", pipeline="p")
    assert (raised.value.pipeline, raised.value.run, raised.value.batch) == ("p", 3, str(BATCH))
    with pytest.raises(KeyError), about(pipeline="p"):
        raise KeyError("not ours")


class Refusing:
    """Settings of which each key is refused with an error that names no pipeline."""

    def __getattr__(self, name: str) -> Any:
        raise TerminalError(f"{name} is refused")


OPERATIONS = (
    "tagmill.audit.audit.audit",
    "tagmill.audit.repair.audit_and_repair",
    "tagmill.delivery.tag_views.steps.close",
    "tagmill.delivery.tag_views.steps.plan",
    "tagmill.delivery.tag_views.steps.push",
    "tagmill.delivery.tag_views.steps.seal",
    "tagmill.delivery.topics.expire_ids.expire",
    "tagmill.delivery.topics.rekey_ids.rekey",
    "tagmill.delivery.topics.steps.close",
    "tagmill.delivery.topics.steps.plan",
    "tagmill.delivery.topics.steps.push",
    "tagmill.delivery.topics.steps.seal",
    "tagmill.kafka_journal.purge.purge_expired",
    "tagmill.kafka_journal.replicate.replicate",
    "tagmill.maintenance.erasure.erase.erase",
    "tagmill.maintenance.journal_cleanup.clean.clean",
    "tagmill.maintenance.view_cleanup.clean.clean",
    "tagmill.views.build.build",
    "tagmill.views.delete.delete",
    "tagmill.views.delete.truncate",
    "tagmill.views.migrate.migrate",
    "tagmill.views.persistence_ids.rebuild_ids",
    "tagmill.views.rebucket.rebucket.rebucket",
    "tagmill.views.rebuild.rebuild",
    "tagmill.views.tags.tags",
)


@pytest.mark.parametrize("path", OPERATIONS)
def test_operation_error_names_its_pipeline(path: str) -> None:
    """An operation's errors carry its pipeline, and its run where it has one, whoever raises them."""
    module, _, name = path.rpartition(".")
    operation = getattr(importlib.import_module(module), name)
    parameters = list(inspect.signature(operation).parameters.values())
    needed = {p.name: None for p in parameters[2:] if p.default is inspect.Parameter.empty}
    has_run = "run" in needed
    with pytest.raises(TerminalError, match="is refused$") as raised:
        operation(Refusing(), "orders", **needed | ({"run": 3} if has_run else {}))
    assert (raised.value.pipeline, raised.value.run) == ("orders", 3 if has_run else None)
