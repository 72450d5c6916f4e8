"""Temporary files of a real Spark driver: they stay in its folder, and the next start removes a
killed driver's.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from local.layout import ROOT

JOB = """
import sys, time
from tagmill.config.settings import Settings
from tagmill.spark.session import session
spark = session(Settings.load(sys.argv[1]))
spark.range(10).write.parquet(sys.argv[2])
print(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
time.sleep(float(sys.argv[3]))
spark.stop()
"""


@pytest.fixture
def start(tmp_path):
    """Yield start(out, seconds), which runs a job whose temporary files go below `temporary`.

    It returns the job's process and the JVM's pid.
    """
    (tmp_path / "temporary").mkdir()
    config = tmp_path / "tagmill.toml"
    config.write_text('[spark]\ndriver_memory = "1g"\n')
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary"), "TAGMILL_CASSANDRA__USERNAME": "u"}
    environment["PYTHONPATH"] = str(ROOT)
    started = []

    def begin(out, seconds):
        command = [sys.executable, "-c", JOB, str(config), str(tmp_path / out), str(seconds)]
        job = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, umask=0o022)
        started.append(job)
        return job, int(job.stdout.readline())

    yield begin
    for job in started:
        job.kill()


def left(folder: Path) -> list[str]:
    """Return the names of the files below a folder, except the lock of all jobs."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def test_killed_driver_leaves_nothing_to_next(start, tmp_path):
    """Kill driver and JVM so that neither can tidy up; the next job removes their files.

    Spark's own files are hidden from other users, too.
    """
    temporary = tmp_path / "temporary"
    job, jvm = start("first", 60)
    assert left(temporary)
    (own,) = temporary.glob("tagmill-*/job-*")
    assert list(own.glob("spark-*")) and not list(temporary.glob("spark-*"))
    os.kill(jvm, signal.SIGKILL)
    job.kill()
    job.wait()
    assert own.exists()
    job, jvm = start("second", 0)
    assert job.wait(60) == 0 and not own.exists()
    psutil.wait_procs([psutil.Process(jvm)] if psutil.pid_exists(jvm) else [], timeout=60)
    assert left(temporary) == []
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "second").glob("*.parquet")} == {0o640}
