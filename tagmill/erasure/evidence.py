"""What else below the storage root names persistence ids: leftovers of finished runs, pages, job reports, the files of audits and builds.

Nobody reads any of it again, so a file that names one is removed as a whole. Sealed batches are not found here: they don't name them any
more (sealed.py).
"""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tagmill.erasure.rules import Names
from tagmill.erasure.sealed import matches
from tagmill.quality import docs
from tagmill.settings import Settings
from tagmill.stores import audits
from tagmill.stores.files import RunFiles

# of these folders of a pipeline every file goes: they hold keys or events of all persistence ids, and the next one makes them anew
WHOLE = ("views", "rebucket")
REPORTS, DOCS = "reports", "docs"


class Evidence:
    """The files of one pipeline, and some persistence ids."""

    def __init__(self, settings: Settings, name: str, persistence_ids: Sequence[str]) -> None:
        self.files, self.name = RunFiles(settings.storage.root), name
        self.ids, self.names = pa.array(persistence_ids, pa.string()), Names(persistence_ids)

    def look(self) -> tuple[int, int, set[str]]:
        """How many files, with those of sealed batches, and how many pages name one; those whose rows there are."""
        files, known = 0, set[str]()
        for _, named in self._files():
            files += 1
            known |= named
        return files, sum(1 for _ in self._pages()), known

    def erase(self) -> None:
        """Remove them."""
        for file, _ in self._files():
            self.files.remove(file)
        if pages := list(self._pages()):
            docs.forget(self.files.docs(self.name), pages)
        for folder in self._whole():
            self.files.remove_folder(folder)

    def _whole(self) -> list[str]:
        return [audits.home(self.name), *(f"{self.name}/{folder}" for folder in WHOLE)]

    def _files(self) -> Iterator[tuple[str, set[str]]]:
        """Files of runs and reports that name one, with those whose rows they have; all of the folders that go whole."""
        for folder in self._whole():
            yield from ((file, set[str]()) for file in self.files.below(folder))
        for folder in self.files.folders(self.name):
            for file in self.files.below(f"{self.name}/{folder}") if folder.startswith("run-") or folder == REPORTS else ():
                named = self._named_in(file)
                if named is not None:
                    yield file, named

    def _named_in(self, file: str) -> set[str] | None:
        """Those whose rows a file has; None: it has nothing to do with them."""
        if file.endswith(".parquet"):
            try:
                with self.files.open(file) as source:
                    return matches(source, self.ids)[1] or None
            except pa.ArrowInvalid:
                return set()  # half written by one who was killed: what it holds can't be told
        # a manifest names tags and batches only, and a persistence id may be called as a tag is
        is_text = file.endswith(".json") and not file.endswith("/manifest.json")
        return set() if is_text and self.names.are_in_json(self._text(file)) else None

    def _pages(self) -> Iterator[str]:
        for page in self.files.folders(f"{self.name}/{DOCS}"):
            folder = f"{self.name}/{DOCS}/{page}"
            texts = ((file, self._text(f"{folder}/{file}")) for file in self.files.names(folder))
            if any(
                self.names.are_in_json(text) if file.endswith(".json") else self.names.are_in_page(text) for file, text in texts
            ):
                yield page

    def _text(self, file: str) -> str:
        return self.files.read(file).decode("utf-8", errors="replace")
