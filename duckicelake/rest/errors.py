"""The mapping of errors to HTTP statuses and Iceberg error types, and FastAPI's error handlers.

`application` installs the handlers. They and the layers build error responses on the event loop. No I/O.
"""

import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from duckicelake.errors import (
    AlreadyExists,
    BadRequest,
    BadRouteAnswer,
    CatalogError,
    CommitFailed,
    CommitGaveUp,
    CommitStateUnknown,
    Damaged,
    DropProtected,
    Forbidden,
    IllegalArgument,
    LakeBusy,
    LakeMoved,
    MergeConflicts,
    NamespaceNotEmpty,
    NoSuchFunction,
    NoSuchNamespace,
    NoSuchPlanId,
    NoSuchPlanTask,
    NoSuchRef,
    NoSuchTable,
    NoSuchView,
    NoSuchWarehouse,
    NotAuthorized,
    NotFound,
    NotServed,
    PostgresRefused,
    RouteLoop,
    RouteRefused,
    RouteStateUnknown,
    RouteTimeout,
    RouteUnavailable,
    ServiceUnavailable,
    TableVanished,
    TooManyRequests,
    Unprocessable,
    Unsupported,
)

DAMAGED = "DamagedLakeException"
"""An error type of this server alone. Clients decide by the status; our Spark jobs report a damaged table and skip an unsupported one."""

STATUS_AND_TYPE: Mapping[type[CatalogError], tuple[int, str]] = {
    BadRequest: (400, "BadRequestException"),
    IllegalArgument: (400, "IllegalArgumentException"),
    NotAuthorized: (401, "NotAuthorizedException"),
    Forbidden: (403, "NotAuthorizedException"),
    DropProtected: (403, "NotAuthorizedException"),
    NoSuchWarehouse: (404, "NoSuchWarehouseException"),
    NoSuchNamespace: (404, "NoSuchNamespaceException"),
    NoSuchTable: (404, "NoSuchTableException"),
    NoSuchView: (404, "NoSuchViewException"),
    NoSuchFunction: (404, "NoSuchFunctionException"),
    NoSuchPlanId: (404, "NoSuchPlanIdException"),
    NoSuchPlanTask: (404, "NoSuchPlanTaskException"),
    NotFound: (404, "NotFoundException"),
    NoSuchRef: (404, "NotFoundException"),
    AlreadyExists: (409, "AlreadyExistsException"),
    NamespaceNotEmpty: (409, "NamespaceNotEmptyException"),
    CommitFailed: (409, "CommitFailedException"),
    CommitGaveUp: (409, "CommitFailedException"),
    MergeConflicts: (409, "MergeConflictException"),
    Unprocessable: (422, "UnprocessableEntityException"),
    TooManyRequests: (429, "SlowDownException"),
    CatalogError: (500, "InternalServerError"),
    CommitStateUnknown: (500, "CommitStateUnknownException"),
    Unsupported: (406, "UnsupportedOperationException"),
    Damaged: (406, DAMAGED),
    PostgresRefused: (406, DAMAGED),
    NotServed: (501, "UnsupportedOperationException"),
    ServiceUnavailable: (503, "SlowDownException"),
    LakeBusy: (503, "SlowDownException"),
    RouteUnavailable: (503, "SlowDownException"),
    RouteRefused: (503, "SlowDownException"),
    RouteTimeout: (504, "InternalServerError"),
    RouteStateUnknown: (504, "CommitStateUnknownException"),
    BadRouteAnswer: (502, "InternalServerError"),
    RouteLoop: (508, "BadRequestException"),
    LakeMoved: (503, "SlowDownException"),
    TableVanished: (503, "SlowDownException"),
}
"""`NotFoundException` and `IllegalArgumentException` are not in the specification; Java's client recognizes these names.

406 is the specification's status for `UnsupportedOperationException`; 501 is reserved for operations that are not served at all.
"""

HTTP_TYPES: Mapping[int, str] = {404: "NotFoundException", 405: "UnsupportedOperationException"}
"""Error types for statuses that Starlette itself returns; any other such status is a BadRequestException."""

UNROUTED = "unrouted"
"""The operation name, in logs and metrics, of requests that match no operation."""

NOT_FOUND_BY_PARAMETER: Mapping[str, type[CatalogError]] = {"table": NoSuchTable, "view": NoSuchView, "namespace": NoSuchNamespace}
"""The error for a missing object by the path parameter that names it, innermost first."""

EMPTY_NAME = "\0"
"""Placeholder for an empty path segment while routes are matched; no client's path contains it."""

READS = frozenset({"GET", "HEAD"})
RETRY_AFTER_S = "1"
CHALLENGE = 'Bearer realm="duckicelake"'
MAX_SHOWN_PATH = 200

ErrorHandler = Callable[[Request, Any], Coroutine[Any, Any, Response]]


def get_status_and_type(kind: type[CatalogError]) -> tuple[int, str]:
    """Return the status and Iceberg error type of the nearest base class in `STATUS_AND_TYPE`."""
    return next(STATUS_AND_TYPE[base] for base in kind.__mro__ if base in STATUS_AND_TYPE)


def build_error(scope: Scope, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response in Iceberg's error format; without a body for HEAD."""
    if scope["method"] == "HEAD":
        return Response(status_code=status, headers=headers)
    body = json.dumps({"error": {"message": message, "type": kind, "code": status}}, ensure_ascii=False)
    return Response(body.encode("utf-8", "replace"), status, headers, "application/json")


def build_catalog_error(scope: Scope, error: CatalogError) -> Response:
    """Return the response to an error of the catalog.

    Only 503 responses to reads, and to writes that did not begin, have a `Retry-After`: with that header, clients repeat even a commit
    without the user (source: Java's ExponentialHttpRequestRetryStrategy). A 401 names the authentication scheme (RFC 9110, 11.6.1;
    RFC 6750, 3).
    """
    status, kind = get_status_and_type(type(error))
    headers: dict[str, str] = {}
    if isinstance(error, NotAuthorized):
        headers["WWW-Authenticate"] = CHALLENGE
    elif isinstance(error, TooManyRequests):
        headers["Retry-After"] = str(error.retry_after_s)
    elif status == 503 and (scope["method"] in READS or isinstance(error, LakeBusy | RouteUnavailable)):
        headers["Retry-After"] = RETRY_AFTER_S
    return build_error(scope, status, kind, error.message, headers)


def build_server_error(scope: Scope) -> Response:
    """Return the response to an unexpected error. It holds only the request id under which the log has the traceback."""
    message = f"The server failed on this request; its log says why under the request id {scope['request_id']}."
    return build_error(scope, 500, "InternalServerError", message)


def build_error_handlers(note: Callable[[Scope, CatalogError], None]) -> dict[int | type[Exception], ErrorHandler]:
    """Return FastAPI's exception handlers by type. `note` is called for each CatalogError, for the audit log."""

    async def answer_catalog_error(request: Request, error: CatalogError) -> Response:
        note(request.scope, error)
        return build_catalog_error(request.scope, error)

    async def answer_invalid_request(request: Request, error: RequestValidationError) -> Response:
        return build_error(request.scope, 400, "BadRequestException", describe_invalid(error))

    async def answer_http_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            # The router has stored the route of the same path with another method, which must not be counted.
            request.scope["operation"] = UNROUTED
        return build_http_error(request.scope, error)

    async def answer_unexpected(request: Request, error: Exception) -> Response:
        return build_server_error(request.scope)

    return {
        CatalogError: answer_catalog_error,
        RequestValidationError: answer_invalid_request,
        HTTPException: answer_http_error,
        Exception: answer_unexpected,
    }


def build_http_error(scope: Scope, error: HTTPException) -> Response:
    """Return the response to a request that Starlette itself refuses: unknown route, wrong method, broken body."""
    status = error.status_code
    nameless = find_empty_name_error(scope) if status == 404 else None
    if nameless is not None:
        return build_catalog_error(scope, nameless)
    headers = {"Allow": ", ".join(list_methods(scope))} if status == 405 else error.headers
    shown = f"{scope['method']} {scope['path'][:MAX_SHOWN_PATH]}"
    message = {404: f"There is no route {shown}.", 405: f"The method does not fit the path: {shown}."}.get(status, error.detail)
    return build_error(scope, status, HTTP_TYPES.get(status, "BadRequestException"), message, headers)


def find_empty_name_error(scope: Scope) -> CatalogError | None:
    """Return the not-found error of a path that matches an operation except for an empty name; None if it matches none.

    Spark probes for tables in a namespace with an empty name, and expects NoSuchTableException rather than an unknown route.
    """
    first, *parts = scope["path"].split("/")
    filled = {**scope, "path": "/".join([first, *(part or EMPTY_NAME for part in parts)])}
    for route in scope["app"].routes:
        match, found = route.matches(filled)
        if match is Match.FULL:
            named: Mapping[str, str] = found["path_params"]
            empty = {name for name, value in named.items() if value == EMPTY_NAME}
            kind = next((kind for name, kind in NOT_FOUND_BY_PARAMETER.items() if name in named), None)
            is_nameless = bool(empty) and empty <= NOT_FOUND_BY_PARAMETER.keys()
            return kind(f"Nothing has an empty name: {scope['path'][:MAX_SHOWN_PATH]}") if kind and is_nameless else None
    return None


def list_methods(scope: Scope) -> list[str]:
    """Return every method that the path allows; Starlette itself lists those of one route only."""
    fitting = (route for route in scope["app"].routes if route.matches(scope)[0] is not Match.NONE)
    return sorted({method for route in fitting for method in route.methods})


def describe_invalid(error: RequestValidationError) -> str:
    """Return the message for a request that FastAPI's validation refuses: each wrong parameter and the reason."""
    reasons = (f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}" for found in error.errors())
    return "The request is not valid: " + "; ".join(reasons) + "."
