"""The files of runs on any Arrow file system: plans, manifests, sealed batches.

Each is written once and never changed.

Layout: <root>/<pipeline>/run-<number>/plan-<attempt>.json, and attempt-<attempt>/ with the batches,
manifest.json, progress, holds.
"""

import errno
import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from pyarrow import fs

from tagmill.domain.urls import without_password
from tagmill.errors import ConfigurationError, SealedFileDamaged, StoreUnavailable, TagmillError
from tagmill.runs.privacy import make_file

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# Folder of a pipeline for payloads from which the ids of a topic are made again.
SLICES = "rekey"
# Bytes that are read at once to compute a digest.
CHUNK = 8 * 1024 * 1024
# Rows of a file that are added up at once.
ROWS_AT_ONCE = 100_000
# Errors of the file system that no repetition cures.
REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS}
NO_FOLDER = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}


class RunFiles:
    """The files below one storage root, a local folder or a URL of Arrow's file systems.

    Raises ConfigurationError for a URL that Arrow can't open, StoreUnavailable if its store can't be asked.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        if "://" in root:
            self.filesystem, self.base = _file_system(root)
        else:
            self.filesystem, self.base = fs.LocalFileSystem(), str(Path(root).absolute())

    def folder(self, pipeline: str, run: int) -> str:
        """Return the folder of a run, relative to the root."""
        return f"{pipeline}/run-{run:08d}"

    def url(self, relative: str) -> str:
        """Return the URL by which Spark reads and writes a file or folder."""
        return f"{self.root}/{relative}" if "://" in self.root else f"file://{self.base}/{relative}"

    def path(self, relative: str) -> str:
        """Return the path of a file or folder in Arrow's file system."""
        return f"{self.base}/{relative}"

    def docs(self, pipeline: str) -> str:
        """Return where a pipeline's pages are: a folder, or a URL if the root is one."""
        return self.url(f"{pipeline}/docs") if "://" in self.root else self.path(f"{pipeline}/docs")

    def write(self, relative: str, content: bytes) -> str:
        """Write a whole file under a name that no other file has; return its SHA-256."""
        with self.create(relative) as stream:
            stream.write(content)
        return hashlib.sha256(content).hexdigest()

    def read(self, relative: str) -> bytes:
        """Return the content of a whole file; raises SealedFileDamaged if it is gone."""
        with self._readable(relative), self.filesystem.open_input_stream(self.path(relative)) as stream:
            return cast(bytes, stream.read())

    @contextmanager
    def create(self, relative: str) -> Iterator[BinaryIO]:
        """Open a new file to write to, piece by piece.

        Raises StoreUnavailable if it can't be written, ConfigurationError if it may not be.
        """
        with self._told(relative, "written", ". Nothing was committed"):
            if "://" in self.root:
                self.filesystem.create_dir(self.path(relative).rpartition("/")[0], recursive=True)
            else:
                make_file(Path(self.path(relative)))
            with self.filesystem.open_output_stream(self.path(relative)) as stream:
                yield cast(BinaryIO, stream)

    def open(self, relative: str) -> BinaryIO:
        """Open a file to read from, seekable; raises SealedFileDamaged if it is gone."""
        with self._readable(relative):
            return cast(BinaryIO, self.filesystem.open_input_file(self.path(relative)))

    def open_sealed(self, relative: str, sha256: str) -> BinaryIO:
        """Open a sealed file to read from, seekable; raises SealedFileDamaged if its bytes are not those that
        were sealed.
        """
        if self.digest(relative)[1] != sha256:
            raise self._damaged(relative, "has other bytes than were sealed")
        return self.open(relative)

    @contextmanager
    def _readable(self, relative: str) -> Iterator[None]:
        with self._told(relative, "read"):
            try:
                yield
            except FileNotFoundError:
                raise self._damaged(relative, "is gone") from None

    @contextmanager
    def _told(self, relative: str, action: str, untouched: str = "") -> Iterator[None]:
        """Raise an error of the file system as one line that names the file or folder, and `action` (a
        participle), which failed.

        Arrow's errors have no file name.
        """
        try:
            yield
        except OSError as error:
            line = f"{self._shown(relative)} can't be {action}: {error}{untouched}"
            if error.errno in REFUSED or "ACCESS_DENIED" in str(error):
                line += ". Correct the rights there, then run the same command again"
                raise ConfigurationError(line) from None
            if error.errno in NO_FOLDER:
                raise ConfigurationError(
                    f"{line}. A file is in the way, or the path can't be: see storage.root"
                ) from None
            raise StoreUnavailable(line) from None

    def _shown(self, relative: str) -> str:
        return without_password(self.url(relative))

    def _damaged(self, relative: str, problem: str) -> SealedFileDamaged:
        return SealedFileDamaged(
            f"{self._shown(relative)} {problem}. Nothing of it was used; restore it from a backup"
        )

    def digest(self, relative: str) -> tuple[int, str]:
        """Return the size of a file in bytes and its SHA-256."""
        digest, size = hashlib.sha256(), 0
        with self._readable(relative), self.filesystem.open_input_stream(self.path(relative)) as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
        return size, digest.hexdigest()

    def names(self, relative: str) -> list[str]:
        """Return the names of the files directly in a folder, sorted; an absent folder has none."""
        return sorted(info.base_name for info in self._listed(relative, fs.FileType.File))

    def parquet(self, folder: str) -> list[str]:
        """Return the Parquet files directly in a folder, relative to the root, sorted."""
        return [f"{folder}/{name}" for name in self.names(folder) if name.endswith(".parquet")]

    def record_batches(
        self, folder: str, rows: int, columns: list[str] | None = None
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the rows of the Parquet files directly in a folder, at most `rows` at once."""
        import pyarrow.parquet as pq

        for name in self.parquet(folder):
            with self.open(name) as source:
                yield from pq.ParquetFile(source).iter_batches(rows, columns=columns)

    def footers(self, names: Iterable[str]) -> "Iterator[pq.FileMetaData]":
        """Yield the footer of each of these Parquet files."""
        import pyarrow.parquet as pq

        for name in names:
            with self.open(name) as source:
                yield pq.read_metadata(source)

    def count_rows(self, folder: str) -> int:
        """Return the number of rows in the Parquet files directly in a folder, by their footers."""
        return sum(footer.num_rows for footer in self.footers(self.parquet(folder)))

    def has_rows(self, folder: str) -> bool:
        """Return whether a Parquet file directly in a folder has a row; reads footers up to the first such
        file.
        """
        return any(footer.num_rows for footer in self.footers(self.parquet(folder)))

    def largest(self, folder: str, column: str) -> Any:
        """Return the largest value in a column of the Parquet files directly in a folder, mostly by their footers; None
        if all are null.
        """
        return max((value for value in self._largest(folder, column) if value is not None), default=None)

    def _largest(self, folder: str, column: str) -> "Iterator[Any]":
        """Yield the largest value of each row group."""
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        for name in self.parquet(folder):
            with self.open(name) as source:
                file = pq.ParquetFile(source)
                leaves = [file.metadata.schema.column(leaf).path for leaf in range(file.metadata.num_columns)]
                leaf = leaves.index(column)
                for number in range(file.num_row_groups):
                    found = file.metadata.row_group(number).column(leaf).statistics
                    if found is not None and found.has_min_max:
                        yield found.max
                    else:
                        yield pc.max(file.read_row_group(number, [column])[column]).as_py()

    def total(self, folder: str, column: str) -> int:
        """Return the sum of a column of whole numbers in the Parquet files directly in a folder; nulls count as 0."""
        import pyarrow.compute as pc

        rows = self.record_batches(folder, ROWS_AT_ONCE, [column])
        return sum(pc.sum(batch[column]).as_py() or 0 for batch in rows)

    def folders(self, relative: str) -> list[str]:
        """Return the names of the folders directly in a folder, sorted; an absent folder has none."""
        return sorted(info.base_name for info in self._listed(relative, fs.FileType.Directory))

    def below(self, relative: str) -> list[str]:
        """Return all files below a folder at any depth, relative to the root, sorted; an absent folder has
        none.
        """
        found = (info.path for info in self._listed(relative, fs.FileType.File, recursive=True))
        return sorted(path.removeprefix(f"{self.base}/") for path in found)

    def _listed(self, relative: str, kind: fs.FileType, *, recursive: bool = False) -> list[fs.FileInfo]:
        selector = fs.FileSelector(self.path(relative), allow_not_found=True, recursive=recursive)
        with self._told(relative, "listed"):
            return [info for info in self.filesystem.get_file_info(selector) if info.type == kind]

    def _older(self, relative: str, moment: datetime) -> list[fs.FileInfo]:
        listed = self._listed(relative, fs.FileType.File)
        return [info for info in listed if info.mtime is not None and info.mtime < moment]

    def move(self, relative: str, folder: str) -> None:
        """Move one file to another folder of the same storage."""
        name = relative.rpartition("/")[2]
        with self._told(relative, "moved"):
            self.filesystem.move(self.path(relative), self.path(f"{folder}/{name}"))

    def remove(self, relative: str) -> None:
        """Remove one file, if it is there."""
        with self._told(relative, "removed"), suppress(FileNotFoundError):
            self.filesystem.delete_file(self.path(relative))

    def count_older(self, relative: str, moment: datetime) -> int:
        """Return how many files directly in a folder were last written before a moment."""
        return len(self._older(relative, moment))

    def remove_older(self, relative: str, moment: datetime) -> int:
        """Remove the files directly in a folder that were last written before a moment; return how many."""
        old = self._older(relative, moment)
        for info in old:
            with self._told(relative, "cleared"), suppress(FileNotFoundError):
                self.filesystem.delete_file(info.path)
        return len(old)

    def remove_older_folders(self, relative: str, moment: datetime) -> None:
        """Remove the folders directly in a folder of which every file was last written before a moment."""
        for name in self.folders(relative):
            files = self._listed(folder := f"{relative}/{name}", fs.FileType.File, recursive=True)
            if all(info.mtime is not None and info.mtime < moment for info in files):
                self.remove_folder(folder)

    def remove_attempts(self, pipeline: str, run: int, *, but: str | None = None) -> None:
        """Remove the folders that attempts to seal a finished run have left, except that of the committed
        attempt `but`.
        """
        for name in self.folders(folder := self.folder(pipeline, run)):
            if name.startswith("attempt-") and name != f"attempt-{but}":
                # A process that still writes there can't commit anything. What can't be removed now is
                # removed with the run.
                with suppress(TagmillError):
                    self.remove_folder(f"{folder}/{name}")

    def remove_folder(self, relative: str) -> None:
        """Remove a folder with its content, if it exists."""
        with self._told(relative, "removed"):
            if self.filesystem.get_file_info(self.path(relative)).type == fs.FileType.Directory:
                self.filesystem.delete_dir(self.path(relative))


def _file_system(root: str) -> tuple[fs.FileSystem, str]:
    """Return Arrow's file system for a URL, and the path in it."""
    line = f"storage.root = {without_password(root)!r} can't be opened"
    try:
        # Spark calls the scheme s3a, Arrow s3.
        return cast(tuple[fs.FileSystem, str], fs.FileSystem.from_uri(root.replace("s3a://", "s3://", 1)))
    except ValueError as error:  # Arrow's ArrowInvalid
        raise ConfigurationError(
            f"{line}: {error}. Nothing was done; name a folder, s3a:// or hdfs://"
        ) from None
    except OSError as error:
        if "libjvm" in str(error) or "libhdfs" in str(error):
            raise ConfigurationError(
                f"{line}: {error}. Nothing was done; hdfs:// needs Hadoop's libraries: set JAVA_HOME, HADOOP_HOME "
                "and CLASSPATH"
            ) from None
        raise StoreUnavailable(f"{line}: {error}. Nothing was done; run the same command again") from None
