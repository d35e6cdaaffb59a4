"""The layer that opens the branch which a request names, before the request is handled like one for any lake.

It runs on the event loop, behind authentication. `BranchLakes` asks Postgres for the branch in a thread.
"""

from contextlib import AsyncExitStack
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from duckicelake.errors import CatalogError
from duckicelake.rest.auth.audit import find_operation, parse_prefix
from duckicelake.rest.branch_lakes import SEPARATOR, BranchLakes
from duckicelake.rest.context import ServerContext, may_read_untagged
from duckicelake.rest.errors import UNROUTED, build_catalog_error

CONFIG = b"/v1/config"
MARKS = (b"@", b"%40")


class BranchLayer:
    """ASGI layer. It sees a branch by the `@` in the prefix or in the parameter `warehouse`."""

    def __init__(self, app: ASGIApp, context: ServerContext, branches: BranchLakes) -> None:
        self._app = app
        self._context = context
        self._branches = branches

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open the branch if the request names one, and pass the request on; answer if there is no such branch."""
        name = parse_member(scope) if scope["type"] == "http" else ""
        parent = self._context.lakes.get(name.partition(SEPARATOR)[0]) if SEPARATOR in name else None
        if parent is None:
            await self._app(scope, receive, send)
            return
        async with AsyncExitStack() as using:
            try:
                if not scope.get("has_branch"):
                    may_open = await may_read_untagged(self._context, scope.get("bearer"), name)
                    await self._branches.check(parent, name, opens_snapshots=may_open)
                await using.enter_async_context(self._branches.using(name))
            except CatalogError as error:
                operation = find_operation(scope)
                scope["operation"] = UNROUTED if operation is None else operation.name
                await build_catalog_error(scope, error)(scope, receive, send)
                return
            await self._app(scope, receive, send)


def parse_member(scope: Scope) -> str:
    """Return the warehouse that a request names, if it may be a branch; else an empty string."""
    raw_path: bytes = scope.get("raw_path") or b""
    query: bytes = scope["query_string"]
    if raw_path == CONFIG:
        if not any(mark in query for mark in MARKS):
            return ""
        return parse_qs(query.decode("latin-1"), keep_blank_values=True).get("warehouse", [""])[0]
    return parse_prefix(raw_path) if any(mark in raw_path for mark in MARKS) else ""
