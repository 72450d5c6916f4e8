"""An ASGI app that is created at its first request: every Airflow process imports the plugins, each task too,
but few serve them.
"""

from collections.abc import Callable
from typing import Any


class LazyApp:
    """Calls `create` once, when the first request comes."""

    def __init__(self, create: Callable[[], Any]) -> None:
        self.create = create
        self.app: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request to the app, which the first request creates."""
        if self.app is None:
            self.app = self.create()
        await self.app(scope, receive, send)
