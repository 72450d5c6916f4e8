"""Fetch the jars of local/jars/ivy.xml with the Ivy that PySpark ships: no Maven is needed and no registry is
named here.

    python -m local.jars            # build/jars/cassandra and kafka; does nothing if they are complete

The cache is ~/.cache/tagmill-jars, or $JARS_CACHE.
"""

import hashlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from local.errors import one_line
from local.java import SPARK, find_java
from local.layout import ROOT
from tagmill.errors import ConfigurationError, TransientError

HERE = Path(__file__).resolve().parent / "jars"
CONFIGURATIONS = ("cassandra", "kafka")
UNREACHABLE = (
    "UnknownHostException",
    "ConnectException",
    "Connection refused",
    "SocketTimeoutException",
    "NoRouteToHost",
)


def fetch(target: Path, configurations: tuple[str, ...] = CONFIGURATIONS) -> list[str]:
    """Make target/CONF/*.jar match ivy.xml; return the configurations that had to be fetched.

    Raises:
        TransientError: the network or the repository didn't answer.
        ConfigurationError: Ivy failed for another reason, or there is no Java or PySpark.
    """
    missing = [name for name in configurations if not complete(target, name)]
    for name in missing:
        _retrieve(target, name)
    return missing


def complete(target: Path, configuration: str) -> bool:
    """Return whether the folder still holds the jars that were fetched for the current ivy.xml and
    ivysettings.xml.
    """
    try:
        stamp = json.loads(_stamp(target, configuration).read_text())
    except (OSError, ValueError):
        return False
    return bool(stamp == {"ivy": _wanted(), "jars": _names(target / configuration)})


def _wanted() -> str:
    files = (HERE / name for name in ("ivy.xml", "ivysettings.xml"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.jar"))


def _stamp(target: Path, configuration: str) -> Path:
    return target / f"{configuration}.complete.json"


def _retrieve(target: Path, configuration: str) -> None:
    # Ivy runs once per configuration, since -sync empties everything below the first variable part of the
    # pattern.
    folder, log = target / configuration, target / f"{configuration}.log"
    folder.mkdir(parents=True, exist_ok=True)
    cache = os.environ.get("JARS_CACHE")
    command = [find_java(SPARK), *([f"-Djars.cache={cache}"] if cache else []), "-jar", str(_ivy()), "-warn"]
    command += [
        "-settings",
        str(HERE / "ivysettings.xml"),
        "-ivy",
        str(HERE / "ivy.xml"),
        "-confs",
        configuration,
    ]
    command += [
        "-retrieve",
        f"{folder}/[artifact]-[revision](-[classifier]).[ext]",
        "-types",
        "jar",
        "bundle",
        "-sync",
    ]
    with open(log, "wb") as out:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out).returncode
    if code:
        text = log.read_text(errors="replace")
        if any(word in text for word in UNREACHABLE):
            raise TransientError(
                f"the jars for {configuration} can't be fetched: no network, or the repository doesn't "
                "answer. "
                f"What was in {folder} stays; run it again with a network. Details: {log}"
            )
        raise ConfigurationError(
            f"the jars for {configuration} can't be fetched: {one_line(text)}. Details: {log}"
        )
    _stamp(target, configuration).write_text(json.dumps({"ivy": _wanted(), "jars": _names(folder)}))


def _ivy() -> Path:
    spec = importlib.util.find_spec("pyspark")  # find_spec doesn't import PySpark, so no JVM starts
    found = sorted(Path(spec.origin).parent.glob("jars/ivy-*.jar")) if spec and spec.origin else []
    if not found:
        raise ConfigurationError(
            f"{sys.executable} has no PySpark, whose Ivy fetches the jars. Nothing was fetched; run bin/setup"
        )
    return found[-1]


def main() -> int:
    """Fetch the missing jars; print one line per fetched configuration, and one line on failure."""
    try:
        for name in fetch(ROOT / "build" / "jars"):
            print(f"jars: {name}, {len(_names(ROOT / 'build' / 'jars' / name))} files")
    except (ConfigurationError, TransientError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
