"""The pages of the gate and of audits, kept per run: index.html (verdict, offending rows), expectations.html
(Data Docs), verdict.json.

Pages load nothing from elsewhere: opening one reaches no foreign host, and it looks the same without the
internet. Names come from applications, so every page escapes them and forbids scripts.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tagmill.domain import timeuuid
from tagmill.errors import StoreUnavailable
from tagmill.quality.model import Check, Severity
from tagmill.runs.storage import RunFiles

if TYPE_CHECKING:
    from jinja2 import Environment

INDEX, EXPECTATIONS, VERDICT, RUNS = "index.html", "expectations.html", "verdict.json", "runs.json"
# Runs in the list, which each run rewrites; the pages of older ones stay.
LISTED_RUNS = 1000
CONTENT_SECURITY_POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; img-src data:\">"
)
_FOREIGN = re.compile(
    r"<script\b.*?</script>|<link\b[^>]*>|<style\b.*?</style>|<img\b[^>]*>|<iframe\b.*?</iframe>",
    re.DOTALL | re.IGNORECASE,
)
_TEMPLATES = Path(__file__).parent / "templates"


def worst(checks: Iterable[Check]) -> Severity:
    """Return the severity of a run: that of its worst failed check, or ok."""
    failed = {check.severity for check in checks if not check.success}
    return "stop" if "stop" in failed else "warn" if failed else "ok"


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a run's page besides its checks: the template, its values, figures for the list of runs,
    and all of it as JSON.
    """

    template: str
    values: Mapping[str, Any]
    figures: Mapping[str, int]
    record: Mapping[str, Any]


def write(docs_dir: str, run_name: str, page: Page, checks: tuple[Check, ...], expectations: str) -> str:
    """Write the pages of one run and the list of all runs.

    Args:
        docs_dir: folder or URL of the pipeline's pages.
        run_name: folder of the run below it; what it held before is replaced.
        page: what the run's own page shows.
        checks: what was judged.
        expectations: the page that Great Expectations drew.

    Returns:
        The run's page: a path, or a URL if docs_dir is one.
    """
    files = RunFiles(docs_dir)
    summary = {
        "run": run_name,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "severity": worst(checks),
        **page.figures,
        "failures": sum(not check.success for check in checks),
    }
    values = {"summary": summary, **page.values, "checks": sorted(checks, key=lambda check: check.success)}
    record = {**summary, "checks": [asdict(check) for check in checks], **page.record}
    files.write(f"{run_name}/{VERDICT}", json.dumps(record, indent=1, ensure_ascii=False).encode())
    files.write(f"{run_name}/{EXPECTATIONS}", _alone(expectations).encode())
    files.write(f"{run_name}/{INDEX}", _templates().get_template(page.template).render(values).encode())
    _list_runs(files, summary)
    name = f"{run_name}/{INDEX}"
    return files.url(name) if "://" in docs_dir else files.path(name)


def forget(docs_dir: str, run_names: Iterable[str]) -> None:
    """Remove the pages of these runs, and their lines in the list of runs."""
    files = RunFiles(docs_dir)
    for name in run_names:
        files.remove_folder(name)
    _list_runs(files)


def _list_runs(files: RunFiles, *added: dict[str, Any]) -> None:
    """Write the list of runs, newest first, with the lines in `added`.

    Folders that the list doesn't know are linked without a verdict.
    """
    known = {run["run"]: run for run in (*_runs(files), *added)}
    names = sorted(set(files.folders("")), reverse=True)[:LISTED_RUNS]
    runs = [known.get(name, {"run": name}) for name in names]
    files.write(RUNS, json.dumps(runs, indent=1).encode())
    files.write(INDEX, _templates().get_template("runs.html.j2").render(runs=runs).encode())


def _runs(files: RunFiles) -> list[dict[str, Any]]:
    """Return the list of runs as the last run left it, or an empty one if it is missing or half-written."""
    if RUNS not in files.names(""):
        return []
    try:
        runs = json.loads(files.read(RUNS))
        return [run for run in runs if isinstance(run, dict) and "run" in run]
    except (StoreUnavailable, ValueError, TypeError):
        return []


def _alone(page: str) -> str:
    """Return a page of Great Expectations with our style, and without scripts, style sheets and pictures from
    foreign hosts.
    """
    style = f"<style>{(_TEMPLATES / 'style.css').read_text(encoding='utf-8')}</style>"
    return _FOREIGN.sub("", page).replace("<head>", f"<head>{CONTENT_SECURITY_POLICY}{style}", 1)


@cache
def _templates() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    templates = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    templates.filters["ticks"] = lambda value: "" if value is None else _moment(value)
    templates.filters["bucket"] = lambda value: (
        "" if value is None else _moment(value * timeuuid.TICKS_PER_MILLISECOND)
    )
    return templates


def _moment(ticks: int) -> str:
    """Return a moment in UTC as text, or the number of ticks if it is beyond the calendar."""
    try:
        return timeuuid.to_datetime(ticks).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return f"{ticks} ticks"
