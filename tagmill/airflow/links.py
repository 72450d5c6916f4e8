"""Addresses of Data Docs behind Airflow's login."""

from pathlib import Path, PurePosixPath

from airflow.sdk.configuration import conf

from tagmill.settings import Settings

PREFIX = "/tagmill"


def docs_link(settings: Settings, page: str | None) -> str | None:
    """Where Airflow's UI serves a page of Data Docs; a page outside the storage root stays as it is.

    `page`: a file below <storage root>/<pipeline>/, or any other path or address.
    """
    if not page:
        return None
    relative = below_root(settings, page)
    return page if relative is None else f"{base_url()}{PREFIX}/docs/{relative}"


def below_root(settings: Settings, page: str) -> PurePosixPath | None:
    """The page's path below the storage root; None if it isn't there."""
    root = Path(settings.storage.root).resolve()
    try:
        return PurePosixPath(Path(page).resolve().relative_to(root))
    except ValueError:
        return None


def base_url() -> str:
    """Airflow's own address, without a slash at its end."""
    return (conf.get("api", "base_url", fallback="") or "").rstrip("/")
