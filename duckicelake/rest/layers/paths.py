"""Routing on the path as the client wrote it."""

from starlette.types import ASGIApp, Receive, Scope, Send


class RawPaths:
    """Routes on the percent-encoded path, so that a name may hold `/` (`%2F`) without ending its segment."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its raw path in the place of the decoded one."""
        raw_path: bytes | None = scope.get("raw_path")
        if scope["type"] == "http" and raw_path is not None:
            scope["path"] = raw_path.decode("latin-1")
        await self._app(scope, receive, send)
