"""The Prefect server behind a guard: what a browser sends on behalf of a foreign page is refused.

Prefect itself answers any Host, and runs what a foreign page posts without reading the answer: any web page that is
open on this machine could start runs. uvicorn runs `create_app`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_OWN_NAMES = ("127.0.0.1", "localhost", "::1")


class OwnNamesOnly:
    """ASGI middleware: Host and Origin must name this machine's loopback, and the origin's port must be ours."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] not in ("http", "websocket") or _is_own(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            text = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 403, "headers": text})
            await send({"type": "http.response.body", "body": b"foreign Host or Origin\n"})


def _is_own(scope: Message) -> bool:
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    host, origin = headers.get("host", ""), headers.get("origin")
    if _name_and_port(f"//{host}")[0] not in _OWN_NAMES:
        return False
    if origin is None:
        return True
    name, port = _name_and_port(origin)
    return name in _OWN_NAMES and port == _name_and_port(f"//{host}")[1]


def _name_and_port(url: str) -> tuple[str | None, int | None]:
    try:
        parts = urlsplit(url)
        return parts.hostname, parts.port
    except ValueError:
        return None, None


def create_app() -> Any:
    """Make the server's application."""
    from prefect.server.api.server import create_app as create_prefect_app

    app = create_prefect_app(final=True)
    app.add_middleware(OwnNamesOnly)
    return app
