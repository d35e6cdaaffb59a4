"""How much a client may send."""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duckicelake.rest.errors import build_error

MAX_BODY_BYTES = 32 * 1024 * 1024
TOO_LARGE = f"The request's body is larger than {MAX_BODY_BYTES} bytes."


class BodyLimit:
    """Refuses bodies that are too large: by the length they announce, or while they arrive."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with a counted body."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif find_announced_length(scope) > MAX_BODY_BYTES:
            await build_error(scope, 413, "BadRequestException", TOO_LARGE)(scope, receive, send)
        else:
            await self._app(scope, count_body(receive), send)


def find_announced_length(scope: Scope) -> int:
    """Return the Content-Length, 0 when there is none that could be too large."""
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    return max((int(value) for value in lengths if value.isdigit() and len(value) < 20), default=0)


def count_body(receive: Receive) -> Receive:
    """Return a `receive` that raises when the body gets too large."""
    received_bytes = 0

    async def receive_counted() -> Message:
        nonlocal received_bytes
        message = await receive()
        received_bytes += len(message.get("body", b""))
        if received_bytes > MAX_BODY_BYTES:
            raise HTTPException(413, TOO_LARGE)
        return message

    return receive_counted
