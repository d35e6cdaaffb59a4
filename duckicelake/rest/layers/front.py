"""The outermost layer: every request gets an id, a log line, its numbers, and an answer whatever happens."""

import logging
import re
import secrets
from itertools import count
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duckicelake.rest.errors import UNROUTED, build_server_error
from duckicelake.rest.metrics import Metrics

SENT_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Front:
    """Wraps the whole application."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._access = logging.getLogger("duckicelake.access")
        self._errors = logging.getLogger("duckicelake.errors")
        self._first_id = secrets.token_hex(4).encode()
        self._ids = count(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or pass the application's lifespan through."""
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = perf_counter()
        status = 0
        request_id = find_request_id(scope) or b"%b-%x" % (self._first_id, next(self._ids))
        scope["request_id"] = request_id.decode()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id)]
            elif not message.get("more_body"):
                self._note(scope, status, perf_counter() - started)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:  # noqa: BLE001 - the outermost door: nothing may reach the client but a request id
            self._errors.error("request %s failed", scope["request_id"], exc_info=error)
            if status == 0:
                await build_server_error(scope)(scope, receive, send_with_id)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        operation = find_operation(scope)
        self._metrics.count_request(operation, status, seconds)
        if self._access.isEnabledFor(logging.INFO):
            path = scope.get("raw_path", b"").decode("ascii", "backslashreplace")
            self._access.info("%s %s %d %.1f ms %s %s", scope["method"], path, status, seconds * 1000, operation, scope["request_id"])


def find_request_id(scope: Scope) -> bytes | None:
    """Return the id the client sent along, if it is one that a log can hold."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return value if SENT_ID.fullmatch(value) else None
    return None


def find_operation(scope: Scope) -> str:
    """Return the specification's name of what was asked, as the hot lane or the router found it."""
    ready: str | None = scope.get("operation")
    if ready is not None:
        return ready
    return getattr(scope.get("route"), "operation_id", None) or UNROUTED
