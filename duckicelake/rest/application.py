"""The ASGI application of a server: FastAPI with the routes of all operations, and the layers around it.

`app.build_app` calls `build_web` once per process. The operations that are served here decide the routes, the `endpoints` of
`GET /v1/config` and the table in MISSING.md.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from threading import Lock
from typing import Any, ClassVar

from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute
from prometheus_client.core import Metric
from starlette.routing import Match, compile_path
from starlette.types import ASGIApp, Receive, Scope, Send

from duckicelake.errors import NotServed
from duckicelake.rest.auth.audit import audit_error, note_read
from duckicelake.rest.auth.authentication import AuthenticationLayer
from duckicelake.rest.auth.delegation import find_permitted_key
from duckicelake.rest.auth.permissions import check_permission
from duckicelake.rest.branch_lakes import BranchLakes
from duckicelake.rest.context import ServerContext
from duckicelake.rest.errors import build_error_handlers
from duckicelake.rest.layers.addresses import BasePathLayer, BranchLayer, BranchNameLayer
from duckicelake.rest.layers.body_limit import BodyLimit
from duckicelake.rest.layers.fast_paths import CommitFastPath, LoadFastPath
from duckicelake.rest.layers.forwarding import ForwardingLayer
from duckicelake.rest.layers.request_log import RequestLog
from duckicelake.rest.metrics import build_counter, build_gauge, build_gauges
from duckicelake.rest.operations import ALL_OPERATIONS, DUCKLAKE, MANAGEMENT, OPERATIONS, UNLISTED, Operation, OperationHandler
from duckicelake.rest.params import check_query
from duckicelake.rest.response_bodies import IcebergErrorResponse
from duckicelake.rest.routes.management import ManagementRoutes, RecordRoutes
from duckicelake.rest.routes.manifests import ManifestRoutes
from duckicelake.rest.routes.namespaces import NamespaceChangeRoutes, NamespaceRoutes
from duckicelake.rest.routes.repositories import BranchRoutes, RepositoryRoutes
from duckicelake.rest.routes.scans import ScanRoutes
from duckicelake.rest.routes.server import ConfigRoutes, ServerRoutes
from duckicelake.rest.routes.store_access import DucklakeRoutes, SignRoutes
from duckicelake.rest.routes.table_commits import TableCommitRoutes
from duckicelake.rest.routes.tables import TableChangeRoutes, TableRoutes
from duckicelake.rest.routes.tokens import TokenRoutes
from duckicelake.rest.routes.undrop import UndropRoutes
from duckicelake.rest.routes.views import FunctionRoutes, ViewChangeRoutes, ViewRoutes

WAREHOUSE, REASON = ("warehouse",), ("reason",)
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def build_web(context: ServerContext, lifespan: Lifespan) -> ASGIApp:
    """Return the application: the layers that a request passes, outermost first, around FastAPI."""
    routes = build_routes(context, lifespan)
    context.metrics.add_state(lambda: read_state(context))
    inner = BodyLimit(RawPaths(CommitFastPath(routes, routes, context)), context.body_timeout_s)
    note = partial(note_read, context) if context.audits_reads else None
    if context.accounts is None:
        served = BranchNameLayer(with_branches(with_routes(LoadFastPath(inner, context), context), context), context)
    else:
        loads = with_branches(with_routes(LoadFastPath(inner, context, find_permitted_key), context), context)
        served = AuthenticationLayer(loads, context.accounts, context)
    return RequestLog(BasePathLayer(served, context), context.metrics, note)


def with_branches(app: ASGIApp, context: ServerContext) -> ASGIApp:
    """Return the application behind the layer that opens branches, if branches are served."""
    return BranchLayer(app, context, context.branches) if isinstance(context.branches, BranchLakes) else app


def with_routes(app: ASGIApp, context: ServerContext) -> ASGIApp:
    """Return the application behind the layer that forwards requests to other catalogs, if there are any."""
    return app if context.gateway is None else ForwardingLayer(app, context.gateway, context)


def build_routes(context: ServerContext, lifespan: Lifespan) -> FastAPI:
    """Return the FastAPI application with all routes and error handlers. It serves no page that loads scripts from other hosts."""
    checks = (check_query,) if context.accounts is None else (check_query, check_permission)
    checks = (*checks, build_write_check(context))
    app = FastAPI(
        title="DuckIceLake",
        summary="An Iceberg REST catalog over DuckLake",
        lifespan=lifespan,
        dependencies=[Depends(check) for check in checks],
        exception_handlers=build_error_handlers(partial(audit_error, context)),
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.router.route_class = LateRoute
    add_operations(app, context)
    ServerRoutes(context).add(app)
    return app


def build_write_check(context: ServerContext) -> Callable[[Request], Awaitable[None]]:
    """Return the check that refuses to change what is never changed."""

    async def check_writable(request: Request) -> None:
        prefix = request.path_params.get("prefix")
        if prefix is not None:
            context.check_writable(getattr(request.scope.get("route"), "operation_id", None) or "", prefix)

    return check_writable


def read_state(context: ServerContext) -> list[Metric]:
    """Return the metrics that the cache, the watches, the audit logs and the issuers count themselves.

    Runs on the event loop: at a scrape or, with several workers, within a second after a request. It only reads memory.
    """
    checks = {(lake.prefix,): float(lake.watch.check_count) for lake in context.lakes.values()}
    dropped = {(lake.prefix,): float(lake.audit_log.dropped_count) for lake in context.lakes.values() if lake.audit_log is not None}
    unread = {(lake.prefix,): float(lake.audit_log.reads.dropped_count) for lake in context.lakes.values() if lake.audit_log is not None}
    unkept = {(lake.prefix,): float(lake.audit_log.reports.dropped_count) for lake in context.lakes.values() if lake.audit_log is not None}
    webhooks = {(lake.prefix,): lake.webhook for lake in context.lakes.values() if lake.webhook is not None}
    sent = {name: float(webhook.sent_count) for name, webhook in webhooks.items()}
    unsent = {name: float(webhook.failure_count) for name, webhook in webhooks.items()}
    lags = {name: float(webhook.lag) for name, webhook in webhooks.items()}
    upstreams = {} if context.gateway is None else context.gateway.upstreams
    connections = {(name,): float(upstream.connection_count) for name, upstream in upstreams.items()}
    turns = context.turns
    refused = {("full",): float(turns.full_count), ("late",): float(turns.late_count)}
    grouped: dict[tuple[str, ...], float] = {(): float(turns.grouped_count)}
    fetches = {} if context.issuers is None else context.issuers.count_fetches()
    return [
        build_gauge("duckicelake_commit_queue_length", "Commits that wait for their turn on a table.", turns.waiting_count),
        build_counter(
            "duckicelake_commits_not_queued", "Commits refused because too many waited (full), or too long (late).", REASON, refused
        ),
        build_counter("duckicelake_commits_grouped", "Commits of properties made together with others.", (), grouped),
        build_gauge("duckicelake_table_cache_entries", "Table loads in the cache.", len(context.cache)),
        build_gauge("duckicelake_table_cache_bytes", "Bytes of the table loads in the cache.", context.cache.size_bytes),
        build_counter("duckicelake_watch_checks", "Queries that checked a lake for changes.", WAREHOUSE, checks),
        build_counter("duckicelake_audit_dropped", "Denials that are only in the log: too many at a time.", WAREHOUSE, dropped),
        build_counter("duckicelake_audit_reads_dropped", "Reads that the audit misses.", WAREHOUSE, unread),
        build_counter("duckicelake_client_reports_dropped", "Metrics reports that are not kept.", WAREHOUSE, unkept),
        build_counter("duckicelake_webhook_events", "Events that the webhook has acknowledged.", WAREHOUSE, sent),
        build_counter("duckicelake_webhook_failures", "Requests that the webhook did not acknowledge.", WAREHOUSE, unsent),
        build_gauges("duckicelake_webhook_lag", "Lake snapshots that the webhook has not acknowledged.", WAREHOUSE, lags),
        build_counter("duckicelake_issuer_fetches", "Requests to an issuer for its keys.", ("issuer", "outcome"), fetches),
        build_gauges("duckicelake_route_connections", "Connections in use to other catalogs.", ("route",), connections),
    ]


Responses = Mapping[int | str, dict[str, Any]]

FIRST_RESPONSES: Responses = {
    "4XX": {"model": IcebergErrorResponse, "description": "The request was refused."},
    "5XX": {"model": IcebergErrorResponse, "description": "The server or a part behind it failed."},
}
"""Responses of the one operation that defines the error model in the OpenAPI page. FastAPI builds a validator for every `model`."""
ERROR_CONTENT = {"application/json": {"schema": {"$ref": f"#/components/schemas/{IcebergErrorResponse.__name__}"}}}
ERROR_RESPONSES: Responses = {
    status: {"description": described["description"], "content": ERROR_CONTENT} for status, described in FIRST_RESPONSES.items()
}
BARE_RESPONSES: Responses = {
    status: {"description": f"{described['description']} An answer to HEAD has no body."} for status, described in FIRST_RESPONSES.items()
}


NEEDS_AUTHENTICATION = frozenset(
    {
        *("getToken", "getKeys", "loadCredentials", "signRequest", "signAnywhere", DUCKLAKE.name),
        *(operation.name for operation in MANAGEMENT),
    }
)
"""Operations that are served only with authentication."""


def add_operations(app: FastAPI, context: ServerContext) -> None:
    """Add a route for every operation: its handler, or an answer 501 that names the operation."""
    routes = (NamespaceRoutes(context), NamespaceChangeRoutes(context), TableRoutes(context), TableChangeRoutes(context))
    routes += (ViewRoutes(context), ViewChangeRoutes(context), TokenRoutes(context), SignRoutes(context), ManagementRoutes(context))
    routes += (DucklakeRoutes(context), ManifestRoutes(context), ScanRoutes(context), TableCommitRoutes(context), FunctionRoutes(context))
    routes += (RepositoryRoutes(context), BranchRoutes(context))
    routes += (UndropRoutes(context), RecordRoutes(context))
    served = {name: found for module in routes for name, found in module.operations().items()}
    if context.accounts is None:
        served = {name: found for name, found in served.items() if name not in NEEDS_AUTHENTICATION}
    served |= ConfigRoutes(context, list_endpoints(served)).operations()
    for operation in ALL_OPERATIONS:
        if operation.name in served:
            add_served(app, operation, served[operation.name])
        else:
            app.add_api_route(
                operation.route, build_refusal(operation), methods=[operation.method], operation_id=operation.name, include_in_schema=False
            )


def add_served(app: FastAPI, operation: Operation, served: OperationHandler) -> None:
    """Add the route of one operation that is served here."""
    errors = BARE_RESPONSES if operation.method == "HEAD" else FIRST_RESPONSES if operation is ALL_OPERATIONS[0] else ERROR_RESPONSES
    app.add_api_route(
        operation.route,
        served.endpoint,
        methods=[operation.method],
        operation_id=operation.name,
        status_code=served.status,
        responses={**errors, **served.responses},
        openapi_extra=served.body,
    )


def list_endpoints(served: Mapping[str, OperationHandler]) -> list[str]:
    """Return the `endpoints` of the configuration, spelled like the specification's path templates."""
    return [operation.endpoint for operation in (*OPERATIONS, DUCKLAKE) if operation.name in served and operation.name not in UNLISTED]


def build_refusal(operation: Operation) -> Callable[[], Any]:
    """Return an endpoint that answers 501 and names the operation."""

    async def refuse() -> None:
        if operation.name in NEEDS_AUTHENTICATION:
            raise NotServed(f"{operation.name} ({operation.endpoint}) needs accounts: start the server with `require_auth`.")
        raise NotServed(f"{operation.name} ({operation.endpoint}) is not served here; `endpoints` of /v1/config lists what is.")

    return refuse


class LateRoute(APIRoute):
    """A route that FastAPI analyses when it is first used, on the event loop.

    The analysis of all routes takes 0.1 s of CPU time, which each worker process would spend before it serves anything, and most routes
    are never used.
    """

    _analysing: ClassVar = Lock()
    """FastAPI changes the filters of warnings, which all threads share, while it analyses: event loops of one process take turns."""

    def __init__(self, path: str, endpoint: Callable[..., Any], *, operation_id: str | None = None, **options: Any) -> None:
        self.operation_id = operation_id
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)
        self._analyse = partial(super().__init__, path, endpoint, operation_id=operation_id, **options)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return how the request fits, and what its handler finds in the scope. It is analysed only if the path fits."""
        if scope["type"] != "http" or self.path_regex.match(scope["path"]) is None:
            return Match.NONE, {}
        return super().matches(scope)

    def __getattr__(self, name: str) -> Any:
        """Return what the analysis sets. Called for attributes that are not set yet."""
        analyse = self.__dict__.pop("_analyse", None)
        if analyse is None:
            raise AttributeError(name)
        try:
            with self._analysing:
                analyse()
        except BaseException:
            self._analyse = analyse
            raise
        return getattr(self, name)


class RawPaths:
    """Routes on the percent-encoded path, so that a name may hold `/` (`%2F`) without ending its segment."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its raw path in the place of the decoded one."""
        raw_path: bytes | None = scope.get("raw_path")
        if scope["type"] == "http" and raw_path is not None:
            scope["path"] = raw_path.decode("latin-1")
        await self._app(scope, receive, send)
