"""Folders of jobs: a dead job's folder goes, a living one's stays, whichever process holds its lock."""

import os
import signal
import subprocess
import sys

import pytest

from tagmill.errors import ConfigurationError
from tagmill.runs.temporary_folders import own_folder

JOB = """
import subprocess, sys, time
from tagmill.runs.temporary_folders import own_folder
with own_folder(sys.argv[1]) as own:
    (own.path / "spark-1").mkdir()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], pass_fds=[own.lock])
    print(own.path, child.pid, flush=True)
    time.sleep(60)
"""


def test_own_folder_is_private_and_gone_afterwards(tmp_path):
    with own_folder(str(tmp_path)) as own:
        assert own.path.is_relative_to(tmp_path) and own.path.stat().st_mode & 0o077 == 0
        (own.path / "blockmgr").mkdir()
        with own_folder(str(tmp_path)) as other:
            assert own.path.exists() and other.path != own.path
    assert not own.path.exists() and not other.path.exists()


def test_own_folder_of_killed_job_is_swept(tmp_path):
    """Keep the folder as long as the JVM that inherited the lock runs; then the next job removes it."""
    job = subprocess.Popen([sys.executable, "-c", JOB, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert job.stdout
    path, child = job.stdout.readline().split()
    job.kill()
    job.wait()
    with own_folder(str(tmp_path)):
        assert os.path.exists(f"{path}/spark-1")
    os.kill(int(child), signal.SIGKILL)
    job.stdout.read()  # The pipe ends with the child, which has it open.
    with own_folder(str(tmp_path)):
        assert not os.path.exists(path)


def test_own_folder_in_folder_of_others_is_refused(tmp_path):
    (tmp_path / f"tagmill-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"tagmill-{os.getuid()}").chmod(0o777)
    with (
        pytest.raises(ConfigurationError, match="not a folder of this user alone"),
        own_folder(str(tmp_path)),
    ):
        pass
