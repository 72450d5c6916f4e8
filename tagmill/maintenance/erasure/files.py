"""Removes other files below the storage root that name persistence ids: of finished runs, job reports, audits
and builds, and pages.

None of them is read again, so a file that names a persistence id is removed as a whole. Sealed batches are
not found here: they no longer name the persistence ids (batches.py).
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tagmill.config.settings import Settings
from tagmill.ledger import audits
from tagmill.maintenance.erasure.batches import matches
from tagmill.maintenance.erasure.name_matching import ErasedNames
from tagmill.quality import docs
from tagmill.runs.storage import RunFiles

# Folders of a pipeline that are removed as a whole: they hold keys or events of all persistence ids, and the
# next job recreates them.
WHOLE = ("views", "rebucket")
REPORTS, DOCS = "reports", "docs"


class Evidence:
    """Files of one pipeline that name any of some persistence ids."""

    def __init__(self, settings: Settings, name: str, persistence_ids: Sequence[str]) -> None:
        self.files, self.name = RunFiles(settings.storage.root), name
        self.ids, self.names = pa.array(persistence_ids, pa.string()), ErasedNames(persistence_ids)

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
            for file in (
                self.files.below(f"{self.name}/{folder}")
                if folder.startswith("run-") or folder == REPORTS
                else ()
            ):
                named = self._named_in(file)
                if named is not None:
                    yield file, named

    def _named_in(self, file: str) -> set[str] | None:
        """Return the persistence ids whose rows a file has; None if it names none of them.

        The set is empty if a JSON file names one, or if a Parquet file can't be read.
        """
        if file.endswith(".parquet"):
            try:
                with self.files.open(file) as source:
                    return matches(source, self.ids)[1] or None
            except pa.ArrowInvalid:
                return set()  # half written when its writer was killed: its rows are unknown
        # Manifests are skipped: they name only tags and batches, and a persistence id may have the name of a
        # tag.
        is_text = file.endswith(".json") and not file.endswith("/manifest.json")
        return set() if is_text and self.names.are_in_json(self._text(file)) else None

    def _pages(self) -> Iterator[str]:
        for page in self.files.folders(f"{self.name}/{DOCS}"):
            folder = f"{self.name}/{DOCS}/{page}"
            texts = ((file, self._text(f"{folder}/{file}")) for file in self.files.names(folder))
            if any(
                self.names.are_in_json(text) if file.endswith(".json") else self.names.are_in_page(text)
                for file, text in texts
            ):
                yield page

    def _text(self, file: str) -> str:
        return self.files.read(file).decode("utf-8", errors="replace")
