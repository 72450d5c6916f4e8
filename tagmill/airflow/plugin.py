"""The plugin that registers Tagmill's pages (tagmill.airflow.web) in Airflow's UI: /tagmill/ behind the login, in
the menu under Browse. It also looks after missing pools (tagmill.airflow.pools).

Airflow finds it by the entry point `airflow.plugins` of the installed package.
"""

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from tagmill.airflow import pools
from tagmill.airflow.lazy import LazyApp


def create_app() -> Any:
    """Create the web app; its modules are imported only in a process that serves it."""
    from tagmill.airflow import web

    return web.create_app()


class TagmillPlugin(AirflowPlugin):
    """Plugin that Airflow's plugin manager finds."""

    name = "tagmill"
    fastapi_apps = [{"app": LazyApp(create_app), "url_prefix": "/tagmill", "name": "Tagmill"}]
    external_views = [
        {
            "name": "Tagmill",
            "href": "/tagmill/",
            "url_route": "tagmill",
            "destination": "nav",
            "category": "browse",
        }
    ]
    listeners = [pools]
    fastapi_root_middlewares = [{"middleware": pools.PoolWarnings, "name": "Tagmill's missing pools"}]
