"""The layers that find the branch of a request: where clients of lakeFS put it, in names like `t@dev`, and in the warehouse.

The first two rewrite a request to the ordinary one before rights are decided and anything is looked up in a cache, so that everything
behind them sees the branch as a warehouse of its own. `rest.branch_names` has the rules. The last one, behind authentication, keeps the
branch open for the request; it opens one that authentication has not opened. They run on the event loop; whether a table `t@dev` or a
branch exists is read from Postgres on worker threads, and large bodies are decoded there.
"""

import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, parse_qsl, quote, urlencode

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duckicelake.catalog.repositories import MAIN
from duckicelake.catalog.tables import Ident, check_table_exists
from duckicelake.catalog.warehouse import Warehouse, find_served_branch, has_served_snapshot, is_snapshot_id
from duckicelake.errors import BadRequest, CatalogError, NoSuchNamespace, NoSuchTable, NoSuchWarehouse
from duckicelake.iceberg.json_reader import as_list, as_object, decode_json
from duckicelake.iceberg.requests.bodies import check_name
from duckicelake.rest.auth.audit import find_operation, parse_prefix
from duckicelake.rest.branch_lakes import SEPARATOR, BranchLakes
from duckicelake.rest.branch_names import (
    NAMESPACE_PART,
    OBJECT_PART,
    PREFIX,
    PREFIX_PART,
    SCHEME,
    WHAT,
    AddressedRequest,
    Answer,
    BaseRef,
    OrdinaryRequest,
    Rewriter,
    find_base,
    read_levels,
    replace_parts,
)
from duckicelake.rest.context import ServerContext, may_read_untagged
from duckicelake.rest.errors import UNROUTED, build_catalog_error
from duckicelake.rest.layers.body_limit import BodyLimit, receive_body, replay
from duckicelake.rest.operations import ALL_OPERATIONS, TABLE, Operation
from duckicelake.rest.params import decode_segment, split_levels

API, RELATIVE = "/iceberg/api", "/iceberg/relative_to/"
CONFIG = "/v1/config"
START = f"/v1/{PREFIX}".encode()
WITHOUT_PREFIX = frozenset(
    parts[PREFIX_PART] for parts in (each.path.split("/") for each in ALL_OPERATIONS) if parts[1] == "v1" and parts[PREFIX_PART][0] != "{"
)
"""What follows `/v1/` in paths like `/v1/config`, where others have a prefix."""
MARKS = (b"@", b"%40")
NAMING = (b"/tables/rename", b"/transactions/commit", b"/tables", b"/register")
"""Ends of the paths of requests whose bodies name tables."""
BODY_OPERATIONS, CREATES = ("renameTable", "commitTransaction"), ("createTable", "registerTable")
LOGGED = ("operation", "route", "session", "bearer", "read_answer")
"""What the layers behind note in the scope for the log and the metrics."""
LARGE_BYTES = 256 * 1024
"""Larger bodies are decoded and encoded in a thread."""


class BasePathLayer:
    """ASGI layer that takes the base paths of lakeFS off: `/iceberg/api` and `/iceberg/relative_to/LAKE.BRANCH/api`."""

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on below `/v1`, with what its base path names in the scope."""
        raw_path = (scope.get("raw_path") or b"").decode("latin-1") if scope["type"] == "http" else ""
        if not raw_path.startswith("/iceberg/"):
            await self._app(scope, receive, send)
            return
        text, path = split_base_path(raw_path)
        base = BaseRef() if text == "" else find_base(self._context.lakes, text or "")
        try:
            if text is None or base is None:
                raise NoSuchWarehouse(f"No lake is served below {raw_path[:64]!r}. The path names one as {RELATIVE}LAKE.BRANCH/api.")
            prefix = path.split("/")[PREFIX_PART]
            if prefix not in WITHOUT_PREFIX:
                check_member(base, decode_segment(prefix, "prefix"))
        except CatalogError as error:
            scope["operation"] = UNROUTED
            await build_catalog_error(scope, error)(scope, receive, send)
            return
        await pass_on(self._app, scope, receive, send, {"raw_path": path.encode("latin-1"), "path": path, "base": base})


def check_member(base: BaseRef, name: str) -> None:
    """Raise BadRequest if a base path names a lake or branch, and a request below it another warehouse or prefix."""
    lake, _, ref = name.removeprefix(SCHEME).partition("@")
    if not base.lake or name in ("", PREFIX) or (lake == base.lake and (not base.ref or (ref or MAIN) == base.ref)):
        return
    member = f"{base.lake}@{base.ref}" if base.ref else base.lake
    raise BadRequest(
        f"The base path is that of {member!r}, and the request names {name[:64]!r}. Use the path {API}, or no other warehouse."
    )


def split_base_path(raw_path: str) -> tuple[str | None, str]:
    """Return what a base path names, and the path behind it. An empty text: nothing; None: it is no base path."""
    if raw_path.startswith(f"{API}/v1/"):
        return "", raw_path[len(API) :]
    name, found, path = raw_path.removeprefix(RELATIVE).partition("/api/v1/")
    if not raw_path.startswith(RELATIVE) or not found or not name:
        return None, raw_path
    try:
        return decode_segment(name, "base path"), f"/v1/{path}"
    except BadRequest:
        return None, raw_path


class BranchNameLayer:
    """ASGI layer that rewrites requests below the prefix `lakefs`, and those for tables like `t@dev`."""

    def __init__(self, app: ASGIApp, context: ServerContext) -> None:
        self._app = app
        self._context = context
        self._tables = TableNames(context)
        # The body of such a request is needed whole; without accounts no layer before this one has received it.
        self._whole = BodyLimit(self._answer, context.body_timeout_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the ordinary request on, and its answer with the client's names; other requests are passed on as they are."""
        app = self._whole if scope["type"] == "http" and may_name_branch(scope) else self._app
        await app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive_body(receive) or b"") if scope["method"] == "POST" else b""
        if scope["method"] == "POST":
            # Also an empty one: the layers behind wait for the message that this layer has received.
            receive = replay(body, receive)
        try:
            rewritten = await self._rewrite(scope, body)
        except CatalogError as error:
            scope["operation"] = get_name(find_operation(scope))
            await build_catalog_error(scope, error)(scope, receive, send)
            return
        if rewritten is None:
            await self._app(scope, receive, send)
            return
        changes: dict[str, Any] = {"raw_path": rewritten.path.encode("latin-1"), "path": rewritten.path}
        if rewritten.method is not None:
            changes["method"] = rewritten.method
        if rewritten.query is not None:
            changes["query_string"] = rewritten.query
        if rewritten.body is not None:
            small = len(body) <= LARGE_BYTES
            body = encode(rewritten.body) if small else await run_in_threadpool(encode, rewritten.body)
            others = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
            changes["headers"] = [*others, (b"content-length", b"%d" % len(body))]
            receive = replay(body, receive)
        if rewritten.answer is None:
            await pass_on(self._app, scope, receive, send, changes)
        else:
            await RenamedAnswer(scope, send, rewritten.answer).pass_on(self._app, receive, changes)

    async def _rewrite(self, scope: Scope, body: bytes) -> OrdinaryRequest | None:
        path = scope["raw_path"].decode("latin-1")
        if path == CONFIG:
            return self._rewrite_config(scope)
        operation = find_operation(scope)
        if operation is None:
            return None
        base = self._find_base(scope, path)
        if base is None:
            return await self._tables.rewrite(operation, path, body)
        rewriter = Rewriter(self._context.lakes, base)
        request = AddressedRequest(operation, path.split("/"), scope["query_string"], lambda: decode_json(body))
        return rewriter.rewrite(request) if len(body) <= LARGE_BYTES else await run_in_threadpool(rewriter.rewrite, request)

    def _find_base(self, scope: Scope, path: str) -> BaseRef | None:
        """Return what the prefix of a request names in front of its namespaces; None: it is another prefix."""
        prefix = decode_segment(path.split("/")[PREFIX_PART], "prefix")
        if prefix.startswith(SCHEME):
            return find_base(self._context.lakes, prefix.removeprefix(SCHEME))
        if prefix != PREFIX or not self._context.lakes:
            return None
        return scope.get("base") or (BaseRef() if self._is_prefix_free() else None)

    def _is_prefix_free(self) -> bool:
        """True if neither a lake nor a route to another catalog has the prefix `lakefs`."""
        gateway = self._context.gateway
        return PREFIX not in self._context.lakes and (gateway is None or (PREFIX not in gateway.upstreams and gateway.catch_all is None))

    def _rewrite_config(self, scope: Scope) -> OrdinaryRequest | None:
        """Rewrite the request for the configuration of `lakefs://LAKE`, or of what the base path names."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        warehouse, base = next((text for key, text in pairs if key == "warehouse"), ""), scope.get("base")
        prefix = PREFIX
        if base is not None:
            check_member(base, warehouse)
        if warehouse.startswith(SCHEME):
            named = find_base(self._context.lakes, warehouse.removeprefix(SCHEME))
            if named is None:
                return None
            is_short = not named.ref and len(self._context.lakes) == 1 and (base == BaseRef() or (base is None and self._is_prefix_free()))
            base, prefix = named, PREFIX if is_short else quote(warehouse, safe="")
        elif base is None or warehouse not in ("", PREFIX):
            return None
        lake = base.lake or self._get_only_lake()
        member = lake if base.ref in ("", MAIN) else f"{lake}@{base.ref}"
        query = urlencode([*((key, text) for key, text in pairs if key != "warehouse"), ("warehouse", member)])

        def answer(node: Any) -> Any:
            return {**node, "overrides": {**node["overrides"], "prefix": prefix}}

        return OrdinaryRequest(CONFIG, query=query.encode(), answer=answer)

    def _get_only_lake(self) -> str:
        lakes = sorted(self._context.lakes)
        if len(lakes) == 1:
            return lakes[0]
        raise BadRequest(f"Several lakes are served; name one as the warehouse {SCHEME}LAKE: {', '.join(lakes)}.")


def may_name_branch(scope: Scope) -> bool:
    """True if a request may name a branch in a way that is to be rewritten. It decides without the lakes, so it may be wrong."""
    path: bytes = scope.get("raw_path") or b""
    if path == b"/v1/config":
        return b"lakefs" in scope["query_string"] or "base" in scope
    if path.startswith(START) or path.endswith(NAMING):
        return True
    return path.startswith(b"/v1/") and any(mark in path.rpartition(b"/tables/")[2] for mark in MARKS)


def get_name(operation: Operation | None) -> str:
    """Return the name under which logs and metrics have an operation."""
    return UNROUTED if operation is None else operation.name


async def pass_on(app: ASGIApp, scope: Scope, receive: Receive, send: Send, changes: Mapping[str, Any]) -> None:
    """Pass a changed request on. The client's own stays for the log, with what the layers behind have found out."""
    inner = {**scope, **changes}

    async def send_on(message: Message) -> None:
        scope.update({key: inner[key] for key in LOGGED if key in inner and key not in scope})
        # The audit of reads names what was read, however the client named it.
        scope["served"] = inner.get("served") or {key: inner[key] for key in ("method", "raw_path")}
        await send(message)

    await app(inner, receive, send_on)


class RenamedAnswer:
    """An answer in JSON that is sent with other names than the ordinary one has."""

    def __init__(self, scope: Scope, send: Send, answer: Answer) -> None:
        self._scope = scope
        self._send = send
        self._answer = answer
        self._start: Message = {}
        self._parts: list[bytes] = []

    async def pass_on(self, app: ASGIApp, receive: Receive, changes: Mapping[str, Any]) -> None:
        """Pass the ordinary request on, and send its answer."""
        self._scope["operation"] = get_name(find_operation(self._scope))
        headers = [(name, value) for name, value in changes.get("headers", self._scope["headers"]) if name != b"accept-encoding"]
        await pass_on(app, self._scope, receive, self._collect, {**changes, "headers": headers})

    async def _collect(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        self._parts.append(message.get("body", b""))
        if not message.get("more_body"):
            await self._send_renamed(b"".join(self._parts))

    async def _send_renamed(self, body: bytes) -> None:
        status, content = self._start["status"], body
        if status < 300:
            try:
                renamed = self._rename(body) if len(body) <= LARGE_BYTES else await run_in_threadpool(self._rename, body)
            except CatalogError as error:
                refusal = build_catalog_error(self._scope, error)
                status, content = refusal.status_code, bytes(refusal.body)
            else:
                status, content = (204, b"") if renamed is None else (status, renamed)
        others = [(name, value) for name, value in self._start["headers"] if name.lower() not in (b"content-length", b"etag")]
        sized = others if status == 204 else [*others, (b"content-length", b"%d" % len(content))]
        await self._send({"type": "http.response.start", "status": status, "headers": sized})
        await self._send({"type": "http.response.body", "body": b"" if self._scope["method"] == "HEAD" else content})

    def _rename(self, body: bytes) -> bytes | None:
        node = self._answer(json.loads(body))
        return None if node is None else encode(node)


@dataclass(frozen=True, slots=True)
class TableAddress:
    """A table as a request names it, and the warehouse and name that are meant."""

    warehouse: str
    levels: tuple[str, ...]
    name: str


class TableNames:
    """Rewrites requests for `t@dev`: the table t on the branch dev, if no table has that name itself."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def rewrite(self, operation: Operation, path: str, body: bytes) -> OrdinaryRequest | None:
        """Return the ordinary request, None if the request is one. Raises: BadRequest: it names tables on several branches."""
        parts = path.split("/")
        warehouse = decode_segment(parts[PREFIX_PART], "prefix")
        if warehouse.partition("@")[0] not in self._context.lakes:
            # A route to another catalog has names of its own.
            return None
        if operation.name in BODY_OPERATIONS:
            return await self._rewrite_identifiers(operation, parts, warehouse, body) if b"@" in body else None
        if operation.name in CREATES:
            return await self._rewrite_new(parts, warehouse, body) if b"@" in body else None
        if not operation.path.startswith(TABLE):
            return None
        levels = split_levels(decode_segment(parts[NAMESPACE_PART], "namespace"))
        found = await self._find(TableAddress(warehouse, levels, decode_segment(parts[OBJECT_PART], "table")))
        if found is None:
            return None
        parts[OBJECT_PART] = quote(found.name, safe="")
        node = None
        if operation.name == "updateTable" and b'"identifier"' in body:
            node = await decode(body)
            if node.get("identifier") is not None:
                node["identifier"] = {**as_object(node["identifier"], WHAT), "name": found.name}
        return OrdinaryRequest(replace_parts(parts, found.warehouse), body=node)

    async def _rewrite_new(self, parts: list[str], warehouse: str, body: bytes) -> OrdinaryRequest | None:
        node = await decode(body)
        levels = split_levels(decode_segment(parts[NAMESPACE_PART], "namespace"))
        found = await self._find(TableAddress(warehouse, levels, str(node.get("name"))), is_new=True)
        return None if found is None else OrdinaryRequest(replace_parts(parts, found.warehouse), body={**node, "name": found.name})

    async def _rewrite_identifiers(self, operation: Operation, parts: list[str], warehouse: str, body: bytes) -> OrdinaryRequest | None:
        node, warehouses, is_changed = await decode(body), dict[str, None](), False

        async def rename(identifier: object, *, is_new: bool = False) -> dict[str, object]:
            nonlocal is_changed
            named = as_object(identifier, WHAT)
            table = TableAddress(warehouse, read_levels(named.get("namespace")), str(named.get("name")))
            found = await self._find(table, is_new=is_new)
            is_changed = is_changed or found is not None
            warehouses[(found or table).warehouse] = None
            return {**named, "name": (found or table).name}

        if operation.name == "commitTransaction":
            changes = [as_object(change, WHAT) for change in as_list(node.get("table-changes"), WHAT)]
            node["table-changes"] = [{**change, "identifier": await rename(change.get("identifier"))} for change in changes]
        else:
            node |= {"source": await rename(node.get("source")), "destination": await rename(node.get("destination"), is_new=True)}
        if not is_changed:
            return None
        if len(warehouses) > 1:
            raise BadRequest(f"The request names tables on {' and '.join(map(repr, warehouses))}; one request changes one branch.")
        return OrdinaryRequest(replace_parts(parts, next(iter(warehouses))), body=node)

    async def _find(self, table: TableAddress, *, is_new: bool = False) -> TableAddress | None:
        """Return the table that a name like `t@dev` means, None if it means itself. `is_new`: it is to be made, so in no snapshot.

        Raises: BadRequest: a name is not valid
        """
        plain, _, ref = table.name.rpartition("@")
        lake = self._context.lakes.get(table.warehouse.partition("@")[0])
        if not plain or not ref or lake is None:
            return None
        check_name(table.name, "table")
        for level in table.levels:
            check_name(level, "namespace")
        member = lake if table.warehouse == lake.prefix else await self._context.find_member(table.warehouse, opens_snapshots=False)
        if member is None or await run_in_threadpool(has_table, member.warehouse, Ident(table.levels, table.name)):
            return None
        if ref == MAIN:
            return TableAddress(lake.prefix, table.levels, plain)
        if is_snapshot_id(ref):
            is_there = not is_new and await run_in_threadpool(has_served_snapshot, lake.warehouse, int(ref))
        else:
            is_there = await run_in_threadpool(find_served_branch, lake.warehouse, ref) is not None
        if not is_there:
            return None
        return TableAddress(f"{lake.prefix}@{ref}", table.levels, plain)


def has_table(warehouse: Warehouse, ident: Ident) -> bool:
    """Return True if a table has that name."""
    try:
        check_table_exists(warehouse, ident)
    except (NoSuchTable, NoSuchNamespace):
        return False
    return True


def encode(node: object) -> bytes:
    """Return JSON as a body."""
    return json.dumps(node, separators=(",", ":")).encode()


async def decode(body: bytes) -> dict[str, object]:
    """Return the object of a body. Raises: BadRequest."""
    node = decode_json(body) if len(body) <= LARGE_BYTES else await run_in_threadpool(decode_json, body)
    return dict(as_object(node, WHAT))


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
    if raw_path == CONFIG.encode():
        if not any(mark in query for mark in MARKS):
            return ""
        return parse_qs(query.decode("latin-1"), keep_blank_values=True).get("warehouse", [""])[0]
    return parse_prefix(raw_path) if any(mark in raw_path for mark in MARKS) else ""
