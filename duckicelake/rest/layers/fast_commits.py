"""The short way of commits to one table: what FastAPI does for them, and no more of it.

Law: the answer is the one of FastAPI's own route, which stays for the OpenAPI page and for whoever asks otherwise. The same functions
read the same parts of a request, in the same order.
"""

from collections.abc import Mapping

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from duckicelake.errors import CatalogError
from duckicelake.iceberg.requests.attribution import SUMMARY_HEADER
from duckicelake.rest.auth.audit import audit_error
from duckicelake.rest.auth.permissions import check_permission
from duckicelake.rest.auth.target import read_target
from duckicelake.rest.context import ServerContext
from duckicelake.rest.errors import build_catalog_error
from duckicelake.rest.params import check_query, read_levels, read_table_name
from duckicelake.rest.request_bodies import KEY_HEADER, read_body, read_key

COMMIT = "updateTable"
SUMMARY = SUMMARY_HEADER.lower().encode()


class CommitFastPath:
    """Stands before FastAPI and answers commits to one table; all else is FastAPI's."""

    def __init__(self, app: ASGIApp, routes: FastAPI, context: ServerContext) -> None:
        self._app = app
        self._context = context
        self._route = next(route for route in routes.routes if isinstance(route, APIRoute) and route.operation_id == COMMIT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a commit, or pass the request on."""
        found = self._route.path_regex.match(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        scope["route"], scope["path_params"] = self._route, found.groupdict()
        try:
            response = await self._answer(Request(scope, receive), scope["path_params"])
        except CatalogError as error:
            audit_error(self._context, scope, error)
            response = build_catalog_error(scope, error)
        await response(scope, receive, send)

    async def _answer(self, request: Request, named: Mapping[str, str]) -> Response:
        await check_query(request)
        if self._context.accounts is not None:
            await check_permission(request)
        target = await read_target(request, named["prefix"])
        levels, name = await read_levels(named["namespace"]), await read_table_name(named["table"])
        headers = (find_header(request.scope, header) for header in (KEY_HEADER, SUMMARY))
        body, key = await read_body(request), await read_key(request, *headers)
        return await run_in_threadpool(self._route.endpoint, target, levels, name, body, key)


def find_header(scope: Scope, wanted: bytes) -> str | None:
    """Return the first header of that name."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), None)
