"""The error contract on one screen: which error is which status and Iceberg type, and how it is written."""

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
    CatalogError,
    CommitFailed,
    CommitStateUnknown,
    Damaged,
    Forbidden,
    IllegalArgument,
    LakeBusy,
    LakeMoved,
    NamespaceNotEmpty,
    NoSuchNamespace,
    NoSuchPlanId,
    NoSuchPlanTask,
    NoSuchTable,
    NoSuchView,
    NoSuchWarehouse,
    NotAuthorized,
    NotFound,
    NotServed,
    PostgresRefused,
    ServiceUnavailable,
    TableVanished,
    TooManyRequests,
    Unprocessable,
    Unsupported,
)

DAMAGED = "DamagedLakeException"
"""Ours alone. Clients go by the status; jobs over many tables tell by it what is to be mended from what is to be passed over."""

STATUS_AND_TYPE: Mapping[type[CatalogError], tuple[int, str]] = {
    BadRequest: (400, "BadRequestException"),
    IllegalArgument: (400, "IllegalArgumentException"),
    NotAuthorized: (401, "NotAuthorizedException"),
    Forbidden: (403, "NotAuthorizedException"),
    NoSuchWarehouse: (404, "NoSuchWarehouseException"),
    NoSuchNamespace: (404, "NoSuchNamespaceException"),
    NoSuchTable: (404, "NoSuchTableException"),
    NoSuchView: (404, "NoSuchViewException"),
    NoSuchPlanId: (404, "NoSuchPlanIdException"),
    NoSuchPlanTask: (404, "NoSuchPlanTaskException"),
    NotFound: (404, "NotFoundException"),
    AlreadyExists: (409, "AlreadyExistsException"),
    NamespaceNotEmpty: (409, "NamespaceNotEmptyException"),
    CommitFailed: (409, "CommitFailedException"),
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
    LakeMoved: (503, "SlowDownException"),
    TableVanished: (503, "SlowDownException"),
}
"""`NotFoundException` and `IllegalArgumentException` are not in the specification; Java's client knows them by these words.

406 is the specification's status for `UnsupportedOperationException`; 501 is kept for operations that are not there at all.
"""

HTTP_TYPES: Mapping[int, str] = {404: "NotFoundException", 405: "UnsupportedOperationException"}
"""What Starlette refuses before a route is found; any other such refusal is a bad request."""

UNROUTED = "unrouted"
"""What requests are counted as that belong to no operation."""

NOT_FOUND_BY_PARAMETER: Mapping[str, type[CatalogError]] = {"table": NoSuchTable, "view": NoSuchView, "namespace": NoSuchNamespace}
"""What a path names by each of its parameters; the first that it has is what it is about."""

EMPTY_NAME = "\0"
"""Stands for an empty name where routes are looked for: no path that a client sends holds it."""

READS = frozenset({"GET", "HEAD"})
RETRY_AFTER_S = "1"
CHALLENGE = 'Bearer realm="duckicelake"'
MAX_SHOWN_PATH = 200

ErrorHandler = Callable[[Request, Any], Coroutine[Any, Any, Response]]


def get_status_and_type(kind: type[CatalogError]) -> tuple[int, str]:
    """Return status and Iceberg type of the nearest class that the table names."""
    return next(STATUS_AND_TYPE[base] for base in kind.__mro__ if base in STATUS_AND_TYPE)


def build_error(scope: Scope, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer in Iceberg's error shape; without a body for HEAD."""
    if scope["method"] == "HEAD":
        return Response(status_code=status, headers=headers)
    body = json.dumps({"error": {"message": message, "type": kind, "code": status}}, ensure_ascii=False)
    return Response(body.encode("utf-8", "replace"), status, headers, "application/json")


def build_catalog_error(scope: Scope, error: CatalogError) -> Response:
    """Return the answer to an error of the catalog.

    Only a read that found the catalog out of reach, and a write that was never begun, are told to come again: a client may
    send a commit with `Retry-After` again by itself (reference: Java's ExponentialHttpRequestRetryStrategy). A 401 says what it
    wants instead (RFC 9110, 11.6.1; RFC 6750, 3).
    """
    status, kind = get_status_and_type(type(error))
    headers: dict[str, str] = {}
    if isinstance(error, NotAuthorized):
        headers["WWW-Authenticate"] = CHALLENGE
    elif isinstance(error, TooManyRequests):
        headers["Retry-After"] = str(error.retry_after_s)
    elif status == 503 and (scope["method"] in READS or isinstance(error, LakeBusy)):
        headers["Retry-After"] = RETRY_AFTER_S
    return build_error(scope, status, kind, error.message, headers)


def build_server_error(scope: Scope) -> Response:
    """Return the answer to an error that nobody foresaw: where to look it up, and nothing else."""
    message = f"The server failed on this request; its log says why under the request id {scope['request_id']}."
    return build_error(scope, 500, "InternalServerError", message)


def build_error_handlers(note: Callable[[Scope, CatalogError], None]) -> dict[int | type[Exception], ErrorHandler]:
    """Return the handlers FastAPI finds by an error's type; `note` is told of each error of the catalog."""

    async def answer_catalog_error(request: Request, error: CatalogError) -> Response:
        note(request.scope, error)
        return build_catalog_error(request.scope, error)

    async def answer_invalid_request(request: Request, error: RequestValidationError) -> Response:
        return build_error(request.scope, 400, "BadRequestException", describe_invalid(error))

    async def answer_http_error(request: Request, error: HTTPException) -> Response:
        if error.status_code == 405:
            # the router remembers a route of the same path, for another method
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
    """Return the answer to what Starlette itself refuses: unknown routes, wrong methods, broken bodies."""
    status = error.status_code
    nameless = find_empty_name_error(scope) if status == 404 else None
    if nameless is not None:
        return build_catalog_error(scope, nameless)
    headers = {"Allow": ", ".join(list_methods(scope))} if status == 405 else error.headers
    shown = f"{scope['method']} {scope['path'][:MAX_SHOWN_PATH]}"
    message = {404: f"There is no route {shown}.", 405: f"The method does not fit the path: {shown}."}.get(status, error.detail)
    return build_error(scope, status, HTTP_TYPES.get(status, "BadRequestException"), message, headers)


def find_empty_name_error(scope: Scope) -> CatalogError | None:
    """Return the error of a path that fits an operation but for an empty name, None when it fits none.

    Spark looks for a table in the namespace without a name, and takes only an error that the table is not there for an answer.
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
    """Return every method that the path takes; Starlette itself names those of one route only."""
    fitting = (route for route in scope["app"].routes if route.matches(scope)[0] is not Match.NONE)
    return sorted({method for route in fitting for method in route.methods})


def describe_invalid(error: RequestValidationError) -> str:
    """Say which parameters or fields are wrong and why."""
    reasons = (f"{'.'.join(str(part) for part in found['loc'])}: {found['msg']}" for found in error.errors())
    return "The request is not valid: " + "; ".join(reasons) + "."
