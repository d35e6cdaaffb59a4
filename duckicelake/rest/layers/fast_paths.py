"""The hot lane: a table load that is ready is sent without entering FastAPI, if nothing happened since.

Law: an answer leaves this lane only after a check that began when the request was here already, so it
shows every commit acknowledged before the request arrived.
"""

import asyncio
import os
import time
from collections.abc import Callable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from duckicelake.errors import CatalogError
from duckicelake.rest.cache import CachedLoad, TableKey, find_table_key
from duckicelake.rest.cached_response import read_conditional_headers
from duckicelake.rest.context import ServerContext
from duckicelake.rest.errors import build_catalog_error

OPERATIONS_SERVED: Mapping[str, str] = {"GET": "loadTable", "HEAD": "tableExists"}


class LoadFastPath:
    """Stands before FastAPI and sends what is ready."""

    def __init__(self, app: ASGIApp, context: ServerContext, find_key: Callable[[Scope], TableKey | None] = find_table_key) -> None:
        self._app = app
        self._context = context
        self._find_key = find_key
        self._loading: dict[TableKey, asyncio.Event] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the ready answer, or let FastAPI make it."""
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
            await send_ready(entry, scope, send)
        elif scope["method"] == "GET":
            await self._load(key, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _find_current(self, key: TableKey, *, is_checked: bool = False) -> CachedLoad | None:
        """Return what is ready and current; `is_checked`: the guard has had the lake looked at for this request."""
        entry = self._context.cache.find(key)
        lake = entry and self._context.lakes.get(entry.prefix)
        if entry is None or lake is None:
            self._context.metrics.count_load("miss")
            return None
        if not is_checked:
            await lake.watch.position()
        is_there = entry.local_file is None or os.path.exists(entry.local_file)
        # keys open folders that were the table's alone when they were cut
        is_fresh = entry.fresh_until_s is None or (time.time() < entry.fresh_until_s and lake.watch.is_placed(entry.position))
        if is_there and is_fresh and lake.watch.is_current(entry.table_id, entry.position):
            self._context.metrics.count_load("hit")
            return entry
        self._context.metrics.count_load("stale")
        return None

    async def _wait_for_other_load(self, key: TableKey) -> CachedLoad | None:
        """When another request is loading the same table, let it finish and look again."""
        loading = self._loading.get(key)
        if loading is None:
            return None
        await loading.wait()
        return await self._find_current(key)

    async def _load(self, key: TableKey, scope: Scope, receive: Receive, send: Send) -> None:
        """Let FastAPI load the table, which fills the cache, and wake those who wait for it."""
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
    """Send a table's ready answer; HEAD only learns that the table is there."""
    if scope["method"] == "HEAD":
        status, headers, body = 204, [], b""
    else:
        status, headers, body = entry.answer.choose(*read_conditional_headers(scope["headers"]))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
