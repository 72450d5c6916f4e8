"""Runs pytest in the Spark environment and, for the DAG tests, in the Airflow one; adds the two up.

python -m tests.support.run [unit | PATH...] [pytest options]; the exit status is 0 only if both passed.
"""

import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "test-results"
# a process each: the small Spark sessions of tests/spark and the one with the connector don't share a JVM
SUITES = {
    "spark": ("tests/unit", "tests/spark"),
    "servers": ("tests/standalone", "tests/integration", "tests/faults", "tests/interop"),
    "airflow": ("tests/dags",),
}
ENVIRONMENT = {"spark": "spark", "servers": "spark", "airflow": "airflow"}
NO_TESTS = 5  # pytest's exit status when it collected nothing


def chosen(arguments: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Paths per environment, and the options for pytest."""
    named = {"unit": "tests/unit"}
    paths = [named.get(text, text) for text in arguments if (ROOT / named.get(text, text).split("::")[0]).exists()]
    options = [text for text in arguments if named.get(text, text) not in paths]
    if not paths:
        paths = [path for suite in SUITES.values() for path in suite if (ROOT / path).is_dir()]
    split: dict[str, list[str]] = {suite: [] for suite in SUITES}
    for path in paths:
        suites = (suite for suite, homes in SUITES.items() if path.removeprefix("./").startswith(homes))
        split[next(suites, "servers")].append(path)
    return {name: found for name, found in split.items() if found}, options


def count(file: Path) -> Counter[str]:
    """Totals of one junit file."""
    found: Counter[str] = Counter()
    for suite in ET.parse(file).getroot().iter("testsuite"):
        for key in ("tests", "failures", "errors", "skipped"):
            found[key] += int(suite.get(key, 0))
    return found


def main(arguments: Sequence[str]) -> int:
    """Run both environments one after the other and print the total."""
    split, options = chosen(arguments)
    RESULTS.mkdir(parents=True, exist_ok=True)
    total: Counter[str] = Counter()
    status, began = 0, time.monotonic()
    for name, paths in split.items():
        report = RESULTS / f"{name}.xml"
        report.unlink(missing_ok=True)
        python = ROOT / "build" / "venvs" / ENVIRONMENT[name] / "bin" / "python"
        print(f"--- environment {ENVIRONMENT[name]}: {' '.join(paths)}", flush=True)
        code = subprocess.run([python, "-m", "pytest", f"--junit-xml={report}", *options, *paths], cwd=ROOT).returncode
        if code not in (0, NO_TESTS):
            status = status or code
        if report.exists():
            total += count(report)
    bad = total["failures"] + total["errors"]
    passed = total["tests"] - bad - total["skipped"]
    seconds = time.monotonic() - began
    print(
        f"=== total: {passed} passed, {bad} failed, {total['skipped']} skipped in {seconds:.0f} s: {'FAILED' if status else 'ok'}"
    )
    return status or (0 if total["tests"] else NO_TESTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
