"""The pages of quality gate and audits (<storage root>/<pipeline>/docs/...): their addresses behind Airflow's
login, and their bytes.
"""

import re
from pathlib import Path, PurePosixPath

from tagmill.airflow.compat import conf
from tagmill.config.settings import Settings
from tagmill.errors import SealedFileDamaged

PREFIX = "/tagmill"
FOLDER = "docs"
_STEP = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


class NoSuchPage(Exception):
    """Not a page of a run, or not there."""


def docs_link(settings: Settings, page: str | None) -> str | None:
    """Return the address at which Airflow's UI serves a page that the gate wrote; any other page is returned
    unchanged.

    `page`: path or URL of a file below <storage root>/<pipeline>/docs/.
    """
    if not page:
        return None
    pipeline, _, path = _below_root(settings, page).partition(f"/{FOLDER}/")
    return f"{base_url()}{PREFIX}/docs/{pipeline}/{path}" if path and pipeline in settings.pipelines else page


def page_of(settings: Settings, pipeline: str, folder: str) -> str | None:
    """Return the address of a run's or an audit's page, relative to the plugin's own; None if it has no
    page.
    """
    from tagmill.runs.storage import RunFiles

    names = RunFiles(settings.storage.root).names(f"{pipeline}/{FOLDER}/{folder}")
    return f"docs/{pipeline}/{folder}/index.html" if "index.html" in names else None


def read_page(settings: Settings, pipeline: str, path: str) -> bytes:
    """Return a page's bytes.

    Raises NoSuchPage for anything but an .html file in the folder of the pipeline's pages, also for a link
    that leads out of it.
    """
    from tagmill.runs.storage import RunFiles

    steps = path.split("/")
    if (
        pipeline not in settings.pipelines
        or not all(map(_STEP.fullmatch, steps))
        or not path.endswith(".html")
    ):
        raise NoSuchPage(path)
    root, relative = settings.storage.root, f"{pipeline}/{FOLDER}/{path}"
    if "://" not in root:
        folder = Path(root, pipeline, FOLDER).resolve()
        if not Path(root, relative).resolve().is_relative_to(folder):
            raise NoSuchPage(path)
    try:
        return RunFiles(root).read(relative)
    except SealedFileDamaged as error:  # the file is gone
        raise NoSuchPage(path) from error


def base_url() -> str:
    """Return Airflow's own address, without a slash at its end."""
    return (conf.get("api", "base_url", fallback="") or "").rstrip("/")


def _below_root(settings: Settings, page: str) -> str:
    """Return a page's path below the storage root, or an empty string if it lies elsewhere."""
    root = settings.storage.root
    if "://" in root:
        return page.removeprefix(f"{root.rstrip('/')}/") if page.startswith(root) else ""
    try:
        return str(
            PurePosixPath(Path(page.removeprefix("file://")).resolve().relative_to(Path(root).resolve()))
        )
    except ValueError:
        return ""
