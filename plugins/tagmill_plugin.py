"""Registers Tagmill's pages (tagmill.airflow.web) in Airflow's UI: /tagmill/ behind the login, in the menu under Browse."""

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from tagmill.airflow.lazy import LazyApp


def create_app() -> Any:
    """Import the web app only where it is served."""
    from tagmill.airflow import web

    return web.create_app()


class TagmillPlugin(AirflowPlugin):
    """What the plugin manager looks for."""

    name = "tagmill"
    fastapi_apps = [{"app": LazyApp(create_app), "url_prefix": "/tagmill", "name": "Tagmill"}]
    external_views = [
        {"name": "Tagmill", "href": "/tagmill/", "url_route": "tagmill", "destination": "nav", "category": "browse"}
    ]
