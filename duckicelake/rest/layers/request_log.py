"""The outermost layer: request ids, access log, metrics, and a response to every request, even after an unexpected error.

It runs on the event loop, and counts reads for the audit of reads when the response is sent. It uses neither Postgres nor the object store.
"""

import logging
import re
import secrets
from collections.abc import Callable
from itertools import count
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duckicelake.access.sessions import Bearer, Session
from duckicelake.rest.errors import UNROUTED, build_server_error
from duckicelake.rest.metrics import Metrics
from duckicelake.rest.operations import READS

PROBES = frozenset({"healthz", "readyz", "metrics"})
"""Operations that orchestrators and Prometheus call every few seconds: logged at level debug unless they fail."""
SHOWN = frozenset({200, 304})
"""The statuses of reads that the audit has."""
NoteRead = Callable[[Scope, str | None, str | None], None]
"""Counts an answered read: the request, its principal and the client's address."""
SENT_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class RequestLog:
    """ASGI layer around the whole application."""

    def __init__(self, app: ASGIApp, metrics: Metrics, note_read: NoteRead | None = None) -> None:
        self._app = app
        self._note_read = note_read
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
                self._record(scope, status, perf_counter() - started)
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:  # noqa: BLE001  the outermost layer: the client gets the request id and nothing else
            self._errors.error("request %s failed", scope["request_id"], exc_info=error)
            if status == 0:
                await build_server_error(scope)(scope, receive, send_with_id)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        operation = get_operation_name(scope)
        self._metrics.count_request(operation, status, seconds)
        if self._note_read is not None and operation in READS and status in SHOWN:
            self._note_read(scope, find_principal(scope), find_client(scope))
        level = logging.DEBUG if operation in PROBES and status < 400 else logging.INFO
        if self._access.isEnabledFor(level):
            path, ms = scope.get("raw_path", b"").decode("ascii", "backslashreplace"), seconds * 1000
            fields = {
                "method": scope["method"],
                "path": path,
                "status": status,
                "ms": round(ms, 1),
                "operation": operation,
                "request_id": scope["request_id"],
                "principal": find_principal(scope),
                "client": find_client(scope),
            }
            arguments = (fields["method"], path, status, ms, operation, scope["request_id"])
            self._access.log(level, "%s %s %d %.1f ms %s %s", *arguments, extra={"fields": fields})


def find_principal(scope: Scope) -> str | None:
    """Return the principal of a request, None if it has no valid token."""
    session: Session | None = scope.get("session")
    bearer: Bearer | None = scope.get("bearer")
    if session is None and bearer is not None:
        session = bearer.session
    return None if session is None else session.client_id


def find_client(scope: Scope) -> str | None:
    """Return the client's address: behind a proxy on this machine, the address that the proxy names."""
    client = scope.get("client")
    return None if client is None else client[0]


def find_request_id(scope: Scope) -> bytes | None:
    """Return the client's X-Request-Id header, None if it is missing or unfit for a log."""
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            return value if SENT_ID.fullmatch(value) else None
    return None


def get_operation_name(scope: Scope) -> str:
    """Return the operation's name in the specification, as a fast path or the router has stored it in the scope."""
    ready: str | None = scope.get("operation")
    if ready is not None:
        return ready
    return getattr(scope.get("route"), "operation_id", None) or UNROUTED
