"""The base of all plans and manifests: files that one step of a run hands to the next, and that a person can
read.
"""

from pydantic import BaseModel, ConfigDict


class Document(BaseModel):
    """A part of a plan or a manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Batch(Document):
    """A sealed batch: its file (relative to the storage root) and the figures that prove it.

    `mended`: its rows were judged one by one, and come after those of staged files.
    """

    number: int
    batch_id: str
    tag: str
    file: str
    rows: int
    bytes: int
    sha256: str
    checksum: int
    first_offset: str
    last_offset: str
    mended: bool = False
