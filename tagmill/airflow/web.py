"""Tagmill's pages inside Airflow's UI, all behind its login: pipelines, tags and runs from the ledger, the
quality gate's pages.

A plugin's FastAPI app is public unless its routes depend on get_user, and FastAPI's own /docs and
/openapi.json stay public unless they are switched off.
"""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.api_fastapi.core_api.security import get_user
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.exception_handlers import http_exception_handler
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from tagmill.airflow import connections
from tagmill.airflow.overview import overview
from tagmill.airflow.pages import NoSuchPage, base_url, read_page
from tagmill.errors import TagmillError

if TYPE_CHECKING:
    from jinja2 import Environment

log = logging.getLogger(__name__)
# Pages show names and rows of applications, so none of them may run a script, or load anything from
# elsewhere.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
    "frame-ancestors 'self'; "
    "base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def create_app() -> FastAPI:
    """Create the app, which Airflow mounts under pages.PREFIX."""
    app = FastAPI(
        title="Tagmill", dependencies=[Depends(get_user)], docs_url=None, redoc_url=None, openapi_url=None
    )
    app.add_api_route("/", pipelines_page, response_class=HTMLResponse)
    app.add_api_route("/api/pipelines", pipelines)
    app.add_api_route("/docs/{pipeline}/{path:path}", page, response_class=HTMLResponse)
    app.add_exception_handler(TagmillError, _explained)
    app.add_exception_handler(HTTPException, _login_first)
    return app


def pipelines(count_view: bool = False) -> list[dict[str, Any]]:
    """Return the pipelines with their tags and newest runs; `count_view` counts the rows of the applications'
    views, too.
    """
    return [asdict(view) for view in overview(connections.load_settings(), count_view=count_view)]


def pipelines_page(count_view: bool = False) -> HTMLResponse:
    """Render the pipelines as a page, or the reason (status 503) why ledger or ClickHouse can't be read."""
    status, values = 200, dict[str, Any]()
    try:
        values["pipelines"] = overview(connections.load_settings(), count_view=count_view)
    except TagmillError as error:
        status, values["problem"] = 503, str(error)
    return HTMLResponse(templates().get_template("pipelines.html.j2").render(values), status, HEADERS)


def page(pipeline: str, path: str) -> Response:
    """Serve a page of the quality gate; status 404 if there is none."""
    try:
        content = read_page(connections.load_settings(), pipeline, path)
    except NoSuchPage:
        raise HTTPException(404, "There is no such page") from None
    return HTMLResponse(content, 200, HEADERS)


async def _login_first(request: Request, error: Exception) -> Response:
    """Send a browser without a login to the login page, which leads back; any other request gets the
    status.
    """
    assert isinstance(error, HTTPException)  # noqa: S101 - what it is registered for
    if error.status_code == 401 and "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(f"{base_url()}/api/v2/auth/login?next={quote(request.url.path)}", 302)
    return await http_exception_handler(request, error)


async def _explained(_: Request, error: Exception) -> Response:
    log.warning("%s", error)
    return JSONResponse({"detail": str(error)}, 503)


def templates() -> "Environment":
    """Return the environment with the page's templates."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
    )
