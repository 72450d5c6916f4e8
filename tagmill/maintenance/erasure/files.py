"""Removes other files below the storage root that name persistence ids: of finished runs, job reports, audits
and builds, and pages.

None of them is read again, so a file that names a persistence id is removed as a whole. The same goes for
reports and traces, which jobs of all pipelines share. Sealed batches are
not found here: they no longer name the persistence ids (batches.py).
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tagmill.config.settings import Settings
from tagmill.errors import SealedFileDamaged
from tagmill.ledger import audits
from tagmill.maintenance.erasure.batches import matches
from tagmill.maintenance.erasure.name_matching import ErasedNames
from tagmill.quality import docs
from tagmill.runs import trace_log
from tagmill.runs.report_folders import REPORTS, SHARED_REPORTS
from tagmill.runs.storage import RunFiles

# Folders of a pipeline that are removed as a whole: they hold keys or events of all persistence ids, and the
# next job recreates them.
WHOLE = ("views", "rebucket")
DOCS = "docs"
# Ends of names of files that are searched neither as rows nor as text: a manifest names only tags and batches,
# and a persistence id may have the name of a tag; the other holds checksums.
NOT_SEARCHED = ("/manifest.json", ".crc")


class _Search:
    """A search for files that name any of some persistence ids."""

    def __init__(self, settings: Settings, persistence_ids: Sequence[str]) -> None:
        self.files = RunFiles(settings.storage.root)
        self.ids, self.names = pa.array(persistence_ids, pa.string()), ErasedNames(persistence_ids)

    def named_below(self, folder: str) -> Iterator[tuple[str, set[str]]]:
        """Yield the files below a folder that name a persistence id, each with the ids whose rows it has."""
        for file in self.files.below(folder):
            named = self._named_in(file)
            if named is not None:
                yield file, named

    def _named_in(self, file: str) -> set[str] | None:
        """Return the persistence ids whose rows a file has; None if it names none of them.

        The set is empty if a text names one, or if a Parquet file can't be read.
        """
        if file.endswith(NOT_SEARCHED):
            return None
        if file.endswith(".parquet"):
            try:
                with self.files.open(file) as source:
                    return matches(source, self.ids)[1] or None
            except pa.ArrowInvalid:
                return set()  # half written when its writer was killed: its rows are unknown
        try:
            return set() if self.names.are_in_json(self.text(file)) else None
        except SealedFileDamaged:
            return None  # its writer, another job, has renamed or removed it meanwhile

    def text(self, file: str) -> str:
        """Return the content of a file as text."""
        return self.files.read(file).decode("utf-8", errors="replace")


class SharedEvidence(_Search):
    """Files that jobs of all pipelines share and that name any of some persistence ids: reports and traces."""

    def look(self) -> int:
        """Return the number of files that name a persistence id."""
        return sum(1 for _ in self._files())

    def erase(self) -> None:
        """Remove the files that name a persistence id."""
        for file in self._files():
            self.files.remove(file)

    def _files(self) -> Iterator[str]:
        for folder in (SHARED_REPORTS, trace_log.FOLDER):
            yield from (file for file, _ in self.named_below(folder))


class Evidence(_Search):
    """Files of one pipeline that name any of some persistence ids."""

    def __init__(self, settings: Settings, name: str, persistence_ids: Sequence[str]) -> None:
        super().__init__(settings, persistence_ids)
        self.name = name

    def look(self) -> tuple[int, int, set[str]]:
        """Return the number of files (sealed batches included) and of pages that name a persistence id, and
        the ids with rows in them.
        """
        files, known = 0, set[str]()
        for _, named in self._files():
            files += 1
            known |= named
        return files, sum(1 for _ in self._pages()), known

    def erase(self) -> None:
        """Remove the files and pages that name a persistence id, and the folders that are removed as a
        whole.
        """
        for file, _ in self._files():
            self.files.remove(file)
        if pages := list(self._pages()):
            docs.forget(self.files.docs(self.name), pages)
        for folder in self._whole():
            self.files.remove_folder(folder)

    def _whole(self) -> list[str]:
        return [audits.home(self.name), *(f"{self.name}/{folder}" for folder in WHOLE)]

    def _files(self) -> Iterator[tuple[str, set[str]]]:
        """Yield the files of runs and reports that name a persistence id, each with the ids whose rows it
        has.

        All files of the folders that are removed as a whole come first, with no ids.
        """
        for folder in self._whole():
            yield from ((file, set[str]()) for file in self.files.below(folder))
        for folder in self.files.folders(self.name):
            if folder.startswith("run-") or folder == REPORTS:
                yield from self.named_below(f"{self.name}/{folder}")

    def _pages(self) -> Iterator[str]:
        for page in self.files.folders(f"{self.name}/{DOCS}"):
            folder = f"{self.name}/{DOCS}/{page}"
            texts = ((file, self.text(f"{folder}/{file}")) for file in self.files.names(folder))
            if any(
                self.names.are_in_json(text) if file.endswith(".json") else self.names.are_in_page(text)
                for file, text in texts
            ):
                yield page
