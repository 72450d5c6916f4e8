"""Files that can't be written or read are reported in one line that names them."""

import errno
import os
import stat
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock, patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tagmill.errors import ConfigurationError, SealedFileDamaged, StoreUnavailable
from tagmill.runs.storage import RunFiles


def test_what_can_t_be_written_is_named(tmp_path: Path) -> None:
    """Name a file that can't be written, and say that nothing was committed."""
    (tmp_path / "p").touch()
    files = RunFiles(str(tmp_path))
    with pytest.raises(
        ConfigurationError,
        match=f"file://{tmp_path}/p/run/one.parquet can't be written: .*Nothing was committed. .*storage.root",
    ):
        files.write("p/run/one.parquet", b"")


@pytest.mark.parametrize("root", ["foo://b/x", "http://[::1"])
def test_root_of_unknown_scheme_is_named(root: str) -> None:
    with pytest.raises(ConfigurationError, match="storage.root = .* can't be opened: .*name a folder"):
        RunFiles(root)


@pytest.mark.parametrize(
    ("said", "kind"),
    [("Unable to load libjvm", ConfigurationError), ("NETWORK_CONNECTION", StoreUnavailable)],
)
def test_root_that_can_t_be_asked_is_named(said: str, kind: type[Exception]) -> None:
    broken = patch("pyarrow.fs.FileSystem", from_uri=Mock(side_effect=OSError(said)))
    with broken, pytest.raises(kind, match=rf"storage.root = 's3a://key:\*\*\*\*@b' can't be opened: {said}"):
        RunFiles("s3a://key:secret@b")


def test_a_disk_that_gets_full_meanwhile_is_named(tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    with (
        pytest.raises(StoreUnavailable, match="full can't be written: .*No space left on device"),
        RunFiles(str(tmp_path)).create("full") as sink,
    ):
        sink.write(b"x")


def test_files_are_kept_from_others(tmp_path: Path) -> None:
    """Hide files from other users whatever the process's umask is: an Airflow worker's is not Tagmill's to
    set.
    """
    before = os.umask(0)
    try:
        RunFiles(str(tmp_path / "root")).write("p/run/one.parquet", b"x")
    finally:
        os.umask(before)
    written = [path for path in (tmp_path / "root", *(tmp_path / "root").rglob("*"))]
    assert [stat.filemode(path.stat().st_mode) for path in written] == ["drwxr-x---"] * 3 + ["-rw-r-----"]


def test_what_is_gone_is_named(tmp_path: Path) -> None:
    """Name a sealed file that is gone, however it is opened."""
    for read in (RunFiles.read, RunFiles.open, lambda files, name: files.open_sealed(name, "0" * 64)):
        with pytest.raises(SealedFileDamaged, match=f"file://{tmp_path}/one is gone"):
            read(RunFiles(str(tmp_path)), "one")


def test_other_bytes_than_were_sealed_are_not_read(tmp_path: Path) -> None:
    files = RunFiles(str(tmp_path))
    sha256 = files.write("one", b"sealed")
    assert files.open_sealed("one", sha256).read() == b"sealed"
    (tmp_path / "one").write_bytes(b"SEALED")
    with pytest.raises(SealedFileDamaged, match="has other bytes than were sealed"):
        files.open_sealed("one", sha256)


def test_column_is_added_up_without_nulls(tmp_path: Path) -> None:
    """Add up all files of a folder; an absent one has the sum 0."""
    files = RunFiles(str(tmp_path))
    for number, values in enumerate(([1, None, 2**40], [], [None], [-3])):
        (tmp_path / "x").mkdir(exist_ok=True)
        pq.write_table(pa.table({"n": pa.array(values, pa.int64())}), tmp_path / "x" / f"{number}.parquet")
    assert (files.total("x", "n"), files.total("y", "n")) == (2**40 - 2, 0)


def test_removing_what_another_removed_is_no_error(tmp_path: Path) -> None:
    """Reports and traces are of no pipeline alone: two cleanups may list the same file."""
    RunFiles(str(tmp_path)).remove("all/reports/gone.json")


NOW = datetime(2100, 1, 1, tzinfo=UTC)
WORK = {
    "write": lambda files: files.write("p/one", b"x"),
    "read": lambda files: files.read("p/one"),
    "open": lambda files: files.open("p/one"),
    "digest": lambda files: files.digest("p/one"),
    "names": lambda files: files.names("p"),
    "folders": lambda files: files.folders("p"),
    "below": lambda files: files.below("p"),
    "remove": lambda files: files.remove("p/one"),
    "count_older": lambda files: files.count_older("p", NOW),
    "remove_older": lambda files: files.remove_older("p", NOW),
    "remove_older_folders": lambda files: files.remove_older_folders("p", NOW),
    "remove_folder": lambda files: files.remove_folder("p"),
}


class BrokenFileSystem:
    """A file system of which every use raises this error, as Arrow does: without a file name."""

    def __init__(self, number: int) -> None:
        self.error = OSError(number, f"Cannot do it. Detail: [errno {number}] {os.strerror(number)}")

    def __getattr__(self, name: str) -> None:
        raise self.error


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, StoreUnavailable), (errno.EIO, StoreUnavailable), (errno.EACCES, ConfigurationError)],
    ids=["disk full", "disk broken", "no right"],
)
def test_file_system_error_names_file(tmp_path: Path, work, number: int, error) -> None:
    """Tell an error of the file system in one line that names the file, whatever is done to it."""
    files = RunFiles(str(tmp_path))
    with (
        patch.object(files, "filesystem", BrokenFileSystem(number)),
        pytest.raises(error, match=rf"^file://{tmp_path}/p(/one)? can't be \w+: .*{os.strerror(number)}"),
    ):
        work(files)
