"""Run pytest in the Spark environment and, for the DAG tests, in the Airflow one, four processes at a time;
print the total.

python -m tests.support.run [unit | quick | PATH...] [pytest options]; the exit status is 0 only if all tests passed.
"""

import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "build" / "test-results"
# Each suite runs in a process with its own servers, if it needs any.
SUITES = {
    "servers": ("tests/integration", "tests/faults", "tests/interop"),
    "standalone": ("tests/standalone",),
    "spark": ("tests/unit", "tests/spark"),
    "airflow": ("tests/dags",),
}
# Three leave two processors idle for a fifth of the time.
AT_ONCE = 4
# The suite whose modules several processes share (tests.support.sharing), if a whole folder of it runs. The last
# of these processes comes behind the other suites.
SHARED = "servers"
SHARERS = 3
# What stands for paths: `quick` has the rules, the DAGs' integrity, and one delivery on real servers.
NAMED = {
    "unit": ("tests/unit",),
    "quick": (
        "tests/unit",
        "tests/spark",
        "tests/dags/test_integrity.py",
        "tests/integration/test_batches.py::test_backlog_in_many_runs_is_delivered_once",
    ),
}
MOST_SAID = 400
NO_TESTS = 5  # pytest's exit status when it collected nothing


def chosen(arguments: Sequence[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the paths per process of a suite, and the options for pytest."""
    paths, options = list[str](), list[str]()
    for text in arguments:
        named = NAMED.get(text, (text,))
        exist = all((ROOT / path.split("::")[0]).exists() for path in named)
        (paths if exist else options).extend(named)
    if not paths:
        paths = [path for suite in SUITES.values() for path in suite if (ROOT / path).is_dir()]
    split: dict[str, list[str]] = {suite: [] for suite in SUITES}
    for path in paths:
        suites = (suite for suite, homes in SUITES.items() if path.removeprefix("./").startswith(homes))
        split[next(suites, SHARED)].append(path)
    shared = split.pop(SHARED)
    others = {suite: found for suite, found in split.items() if found}
    if not any((ROOT / path).is_dir() for path in shared):
        return ({SHARED: shared} if shared else {}) | others, options
    *first, last = (f"{SHARED}-{part + 1}" for part in range(SHARERS))
    return dict.fromkeys(first, shared) | others | {last: shared}, options


def count(junit: ET.Element) -> Counter[str]:
    """Return the totals of one suite: tests, failures, errors and skipped tests."""
    found: Counter[str] = Counter()
    for suite in junit.iter("testsuite"):
        for key in ("tests", "failures", "errors", "skipped"):
            found[key] += int(suite.get(key, 0))
    return found


def failed(junit: ET.Element) -> Iterator[str]:
    """Yield one line per failed test, with its error message.

    The suites' output is mixed, so the test's own lines may be far up.
    """
    for case in junit.iter("testcase"):
        for outcome in (*case.findall("failure"), *case.findall("error")):
            yield (
                f"{case.get('classname', '')}::{case.get('name', '')}: "
                f"{' '.join(outcome.get('message', '').split())[:MOST_SAID]}"
            )


def run(options: Sequence[str], taken: str, suite: str, paths: Sequence[str]) -> int:
    """Run one suite, print its lines as they come with its name in front, and return pytest's exit status.

    `taken` is the folder where the processes that share modules note theirs.
    """
    report = RESULTS / f"{suite}.xml"
    report.unlink(missing_ok=True)
    share = ["-p", "tests.support.sharing", f"--share={taken}"] if suite.startswith(f"{SHARED}-") else []
    python = ROOT / "build" / "venvs" / ("airflow" if suite == "airflow" else "spark") / "bin" / "python"
    command: list[str | Path] = [
        python,
        "-m",
        "pytest",
        "-v",
        "--durations=10",
        f"--junit-xml={report}",
        *share,
        *options,
        *paths,
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"{suite:<13} {line}", end="", flush=True)
    return process.returncode


def main(arguments: Sequence[str]) -> int:
    """Run the suites, print the failed tests and the total, and return the exit status."""
    split, options = chosen(arguments)
    RESULTS.mkdir(parents=True, exist_ok=True)
    total: Counter[str] = Counter()
    status, began = 0, time.monotonic()
    with TemporaryDirectory() as taken, ThreadPoolExecutor(AT_ONCE) as pool:
        work = partial(run, options, taken)
        codes = dict(zip(split, pool.map(work, split, split.values()), strict=True))
    for suite, code in codes.items():
        if code not in (0, NO_TESTS):
            status = status or code
        if (report := RESULTS / f"{suite}.xml").exists():
            junit = ET.parse(report).getroot()
            total += count(junit)
            for line in failed(junit):
                print(f"=== failed: {line}")
    bad = total["failures"] + total["errors"]
    passed = total["tests"] - bad - total["skipped"]
    seconds = time.monotonic() - began
    print(
        f"=== total: {passed} passed, {bad} failed, {total['skipped']} skipped in {seconds:.0f} s: "
        f"{'FAILED' if status else 'ok'}"
    )
    return status or (0 if total["tests"] else NO_TESTS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
