"""Layers that handle cached table loads and commits to one table without FastAPI's routing. They run on the event loop.

`LoadFastPath` asks `lake.watch`, which checks Postgres for all requests that wait, and looks for the metadata file of a lake on the local
disk. `find_key` also decides about rights: without the right there is no key, and the route refuses the request. `CommitFastPath` calls
the handler `update_table` and the checks before it, with arguments by position.

Law of `LoadFastPath`: a cached response is sent only after a check for changes that began after the request arrived. So it shows every
commit that was acknowledged before.
Law of `CommitFastPath`: the response equals that of FastAPI's own route, which stays for the OpenAPI page. The same functions read the
same parts of a request in the same order.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from duckicelake.errors import CatalogError
from duckicelake.iceberg.requests.bodies import SUMMARY_HEADER
from duckicelake.rest.auth.audit import audit_error, note_answer
from duckicelake.rest.auth.permissions import check_permission
from duckicelake.rest.cached_response import CachedLoad, TableKey, find_table_key, read_conditional_headers
from duckicelake.rest.context import ServerContext, read_target
from duckicelake.rest.errors import build_catalog_error
from duckicelake.rest.params import check_query, read_levels, read_table_name
from duckicelake.rest.request_bodies import KEY_HEADER, read_body, read_key

OPERATIONS_SERVED: Mapping[str, str] = {"GET": "loadTable", "HEAD": "tableExists"}


class LoadFastPath:
    """ASGI layer that sends cached table loads."""

    def __init__(self, app: ASGIApp, context: ServerContext, find_key: Callable[[Scope], TableKey | None] = find_table_key) -> None:
        self._app = app
        self._context = context
        self._find_key = find_key
        self._loading: dict[TableKey, asyncio.Event] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the cached response, or pass the request on."""
        key = self._find_key(scope) if scope["type"] == "http" else None
        if key is None:
            await self._app(scope, receive, send)
            return
        try:
            entry = await self._find_current(key, is_checked="looked" in scope)
            if entry is None and scope["method"] == "GET":
                entry = await self._wait_for_other_load(key)
        except CatalogError as error:
            scope["operation"] = OPERATIONS_SERVED[scope["method"]]
            await build_catalog_error(scope, error)(scope, receive, send)
            return
        if entry is not None:
            scope["operation"] = OPERATIONS_SERVED[scope["method"]]
            note_answer(scope, entry.read)
            await send_ready(entry, scope, send)
        elif scope["method"] == "GET":
            await self._load(key, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _find_current(self, key: TableKey, *, is_checked: bool = False) -> CachedLoad | None:
        """Return the cached load if it is current. `is_checked`: the authentication layer has checked the lake for this request."""
        entry = self._context.cache.find(key)
        lake = entry and self._context.find_lake(entry.prefix)
        if entry is None or lake is None:
            self._context.metrics.count_load("miss")
            return None
        if not is_checked:
            await lake.watch.position()
        is_there = entry.local_file is None or os.path.exists(entry.local_file)
        # Credentials cover folders that belonged to this table alone when they were vended; a newer table may share a folder.
        is_fresh = entry.fresh_until_s is None or (time.time() < entry.fresh_until_s and lake.watch.are_locations_current(entry.position))
        if is_there and is_fresh and lake.watch.is_current(entry.table_id, entry.position):
            self._context.metrics.count_load("hit")
            return entry
        self._context.metrics.count_load("stale")
        return None

    async def _wait_for_other_load(self, key: TableKey) -> CachedLoad | None:
        """Wait for another request that loads the same table, then return its cached load if it is current."""
        loading = self._loading.get(key)
        if loading is None:
            return None
        await loading.wait()
        return await self._find_current(key)

    async def _load(self, key: TableKey, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on to FastAPI, which fills the cache, then wake the requests that wait for this load."""
        scope["table_key"] = key
        mine = asyncio.Event()
        first = self._loading.setdefault(key, mine) is mine
        try:
            await self._app(scope, receive, send)
        finally:
            if first:
                del self._loading[key]
                mine.set()


async def send_ready(entry: CachedLoad, scope: Scope, send: Send) -> None:
    """Send a cached load; a HEAD request gets 204."""
    if scope["method"] == "HEAD":
        status, headers, body = 204, [], b""
    else:
        status, headers, body = entry.answer.choose(*read_conditional_headers(scope["headers"]))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


COMMIT = "updateTable"
SUMMARY = SUMMARY_HEADER.lower().encode()


class CommitFastPath:
    """ASGI layer that handles commits to one table and passes other requests on."""

    def __init__(self, app: ASGIApp, routes: FastAPI, context: ServerContext) -> None:
        self._app = app
        self._context = context
        self._route = next(route for route in routes.routes if isinstance(route, APIRoute) and route.operation_id == COMMIT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a commit, or pass the request on."""
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
        self._context.check_writable(COMMIT, named["prefix"])
        target = await read_target(request, named["prefix"])
        levels, name = await read_levels(named["namespace"]), await read_table_name(named["table"])
        headers = (find_header(request.scope, header) for header in (KEY_HEADER, SUMMARY))
        body, key = await read_body(request), await read_key(request, *headers)
        return await self._route.endpoint(target, levels, name, body, key)


def find_header(scope: Scope, wanted: bytes) -> str | None:
    """Return the first header of that name."""
    return next((value.decode("latin-1") for name, value in scope["headers"] if name == wanted), None)
