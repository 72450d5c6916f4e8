"""Check this machine: Python, Java, Spark, its jars, and the folders that jobs write to."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from uuid import uuid4

import tagmill
from tagmill.config.settings import Settings
from tagmill.doctor.model import Checked, Finding, Level, fine, said_of, warning, wrong
from tagmill.errors import TagmillError
from tagmill.runs.storage import RunFiles
from tagmill.spark import job_environment
from tagmill.spark.session import require_python, spark_conf

# Versions of Java that a major version of Spark is made for.
JAVA = {3: (8, 11, 17), 4: (17, 21)}
# The version that a plain installation has.
USUAL_SPARK = "3.5"
# Seconds for an interpreter or a Java to say its version.
ANSWER_SECONDS = 10
# Bytes of the file that is written for a trial, and bytes that a folder should have left.
TRIAL_BYTES, ROOM_BYTES = 1024**2, 1024**3
MINOR = "import sys; print('%d.%d' % sys.version_info[:2])"


def programs(environment: Path | None = None) -> Checked[bool]:
    """Check Python, Java and Spark; return whether a Spark job can be started here.

    `environment`: the configured folder of the environment for jobs.
    """
    spark, pyspark = _spark(environment)
    found = (_python(), _java(pyspark), spark)
    yield from found
    return all(finding.level is not Level.WRONG for finding in found)


def files(settings: Settings) -> Checked[bool]:
    """Check the jars, and the folders that jobs write to; return whether the jars are there."""
    jars = _jars(settings)
    yield jars
    yield _storage(settings)
    yield _temporary_files(settings)
    return jars.level is not Level.WRONG


def this_python() -> tuple[int, ...]:
    """Return the version of this Python, without its patch level."""
    return sys.version_info[:2]


def own_minor() -> str:
    """Return the version of this Python as text, without its patch level."""
    return "{}.{}".format(*this_python())


def _python() -> Finding:
    """Compare this Python with the one that Spark's local workers run."""
    check, other = "python", os.environ.get("PYSPARK_PYTHON")
    if not other:
        return fine(check, f"Python {own_minor()} here, and for Spark's workers on this machine")
    cure = f"unset PYSPARK_PYTHON, or name a Python {own_minor()} with this package"
    try:
        said = _output([other, "-c", MINOR])
    except (OSError, subprocess.SubprocessError) as error:
        return wrong(check, f"PYSPARK_PYTHON={other} does not run: {said_of(error)}", cure)
    if said != own_minor():
        return wrong(check, f"PYSPARK_PYTHON={other} is Python {said}, this one is {own_minor()}", cure)
    return fine(check, f"Python {said} here and as PYSPARK_PYTHON")


def _java(pyspark: str) -> Finding:
    """Judge the Java that jobs start by the version of PySpark."""
    check, home = "java", os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    cure = "install Java 17, and set JAVA_HOME"
    if java is None:
        return wrong(check, "there is no java on PATH, and JAVA_HOME is not set", cure)
    try:
        said = _output([java, "-version"])
    except (OSError, subprocess.SubprocessError) as error:
        return wrong(check, f"{java} does not run: {said_of(error)}", cure)
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    if match is None:
        return wrong(check, f"{java} is no Java: {said[:100]}", cure)
    major, from_ = int(match[1]), "JAVA_HOME" if home else "PATH"
    suitable = JAVA.get(_major(pyspark), (17,))
    if major < min(suitable):
        return wrong(check, f"Java {major} ({from_}: {java}) is too old for Spark {pyspark}", cure)
    if major not in suitable:
        return warning(
            check, f"Java {major} ({from_}: {java}) is not one that Spark {pyspark} is made for", cure
        )
    return fine(check, f"Java {major} ({from_}: {java})")


def _output(command: list[str]) -> str:
    """Return what a command says, on either stream; raises OSError or SubprocessError."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True)
    return (done.stdout or done.stderr).strip()


def _major(pyspark: str) -> int:
    return int(pyspark.partition(".")[0])


def _spark(environment: Path | None) -> tuple[Finding, str]:
    """Look for Spark in this Python; Airflow's starts jobs in an environment of their own. Return its version, too:
    the one that a plain installation has if it isn't known.
    """
    check = "spark-submit"
    if find_spec("pyspark") is not None:
        with suppress(PackageNotFoundError):
            pyspark = version("pyspark")
            said = f"pyspark {pyspark} in this Python"
            return _for_python(fine(check, said), this_python(), pyspark), pyspark
    cure = f"install tagmill[spark] in {job_environment.DEFAULT}, or set spark.environment"
    try:
        folder = job_environment.find(environment)
    except TagmillError as error:
        return wrong(check, said_of(error), cure), USUAL_SPARK
    if folder is not None:
        return _environment(check, folder, cure)
    home = os.environ.get("SPARK_HOME")
    submit = shutil.which("spark-submit") or (home and shutil.which("spark-submit", path=f"{home}/bin"))
    if submit:
        return fine(check, f"{submit}; commands that need Spark run in its own Python"), USUAL_SPARK
    missing = (
        f"no pyspark is in this Python or in {job_environment.DEFAULT}, and no spark-submit on PATH or below "
        "SPARK_HOME"
    )
    return wrong(check, missing, cure), USUAL_SPARK


def _for_python(finding: Finding, python: tuple[int, ...], pyspark: str) -> Finding:
    """Return the finding, or what is wrong if this version of PySpark does not support a Python."""
    try:
        require_python(python, pyspark)
    except TagmillError as error:
        return wrong(finding.check, said_of(error), "install Spark where its jobs have such a Python")
    return finding


def _environment(check: str, folder: Path, cure: str) -> tuple[Finding, str]:
    """Ask the Python of an environment for its versions."""
    ask = f"{MINOR}; from importlib.metadata import version; print(version('pyspark'), version('tagmill'))"
    try:
        minor, *versions = _output([str(folder / "bin" / "python"), "-P", "-c", ask]).split()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return wrong(check, f"{folder} has no tagmill[spark] that runs: {said_of(error)}", cure), USUAL_SPARK
    if len(versions) != 2:
        return wrong(check, f"{folder} has no tagmill[spark] that runs", cure), USUAL_SPARK
    pyspark, own = versions
    if own != tagmill.__version__:
        return wrong(
            check, f"{folder} has Tagmill {own}, this Python has {tagmill.__version__}", cure
        ), pyspark
    finding = fine(check, f"jobs run in {folder}: Python {minor}, pyspark {pyspark}")
    return _for_python(finding, tuple(map(int, minor.split("."))), pyspark), pyspark


def _jars(settings: Settings) -> Finding:
    check = "jars"
    try:
        conf = spark_conf(settings)
    except TagmillError as error:
        return wrong(check, said_of(error), "correct spark.jars")
    jars = [
        name for key in ("spark.jars", "spark.jars.packages") for name in conf.get(key, "").split(",") if name
    ]
    return fine(
        check, f"{len(jars)} besides those of PySpark" if jars else "none needed besides those of PySpark"
    )


def _storage(settings: Settings) -> Finding:
    check, root = "storage root", settings.storage.root
    cure = "correct storage.root, its rights, or make room there"
    try:
        with _removed_again(root):
            try_storage(root)
    except TagmillError as error:
        return wrong(check, said_of(error), cure)
    except (OSError, ValueError) as error:  # of a URL that Arrow can't open
        return wrong(check, f"{root}: {said_of(error)}", cure)
    return _room(check, root, f"{root}: written, read and removed a file", cure)


def try_storage(root: str) -> None:
    """Write a file below the storage root, read it back and remove it; raises TagmillError."""
    files, name, content = RunFiles(root), f".doctor-{uuid4().hex}", os.urandom(TRIAL_BYTES)
    try:
        files.write(name, content)
        if files.read(name) != content:
            raise TagmillError(f"{files.url(name)} has other bytes than were written")
    finally:
        with suppress(TagmillError):
            files.remove(name)


@contextmanager
def _removed_again(root: str) -> Iterator[None]:
    """Remove the folders of a root that did not exist before."""
    made = []
    if "://" not in root:
        path = Path(root).absolute()
        while not path.exists():
            made.append(path)
            path = path.parent
    try:
        yield
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def _room(check: str, folder: str, said: str, cure: str) -> Finding:
    """Return a warning if the disk of a folder is nearly full."""
    path = Path(folder)
    if "://" in folder:
        return fine(check, said)
    while not path.exists():
        path = path.parent
    free = shutil.disk_usage(path).free
    if free < ROOM_BYTES:
        return warning(check, f"{said}, but only {free // 1024**2} MiB are left", cure)
    return fine(check, said)


def _temporary_files(settings: Settings) -> Finding:
    check, cure = "temporary files", "set TMPDIR or spark.local.dir to a folder with room"
    parent = settings.spark.conf.get("spark.local.dir", "").partition(",")[0] or tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(dir=parent) as file:
            file.write(bytes(TRIAL_BYTES))
            file.flush()
    except OSError as error:
        return wrong(check, f"{parent} can't be written: {error.strerror}", cure)
    return _room(check, parent, parent, cure)
