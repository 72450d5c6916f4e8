"""What an error is about, besides its message."""

import pickle
from uuid import UUID

import pytest

from tagmill.errors import BatchDiffers, DataQualityStop, SealedFileDamaged, StoreUnavailable, about

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
