"""The whole door: FastAPI with its routes, and the layers before it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

from fastapi import Depends, FastAPI
from prometheus_client.core import Metric
from starlette.types import ASGIApp

from duckicelake.rest.auth.audit import audit_error
from duckicelake.rest.auth.authentication import AuthenticationLayer
from duckicelake.rest.auth.delegation import find_permitted_key
from duckicelake.rest.auth.permissions import check_permission
from duckicelake.rest.context import ServerContext
from duckicelake.rest.errors import build_error_handlers
from duckicelake.rest.layers.body_limit import BodyLimit
from duckicelake.rest.layers.fast_commits import CommitFastPath
from duckicelake.rest.layers.fast_paths import LoadFastPath
from duckicelake.rest.layers.paths import RawPaths
from duckicelake.rest.layers.request_log import RequestLog
from duckicelake.rest.metrics import build_counter, build_gauge
from duckicelake.rest.params import check_query
from duckicelake.rest.router import add_operations
from duckicelake.rest.routes.server import ServerRoutes

WAREHOUSE = ("warehouse",)
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def build_web(context: ServerContext, lifespan: Lifespan) -> ASGIApp:
    """Return the layers a request passes, outermost first."""
    routes = build_routes(context, lifespan)
    context.metrics.add_state(lambda: read_state(context))
    inner = BodyLimit(RawPaths(CommitFastPath(routes, routes, context)), context.body_timeout_s)
    if context.accounts is None:
        return RequestLog(LoadFastPath(inner, context), context.metrics)
    return RequestLog(AuthenticationLayer(LoadFastPath(inner, context, find_permitted_key), context.accounts, context), context.metrics)


def build_routes(context: ServerContext, lifespan: Lifespan) -> FastAPI:
    """Return the routes, and the errors they answer with; no page that loads scripts from elsewhere."""
    checks = (check_query,) if context.accounts is None else (check_query, check_permission)
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
    add_operations(app, context)
    ServerRoutes(context).add(app)
    return app


def read_state(context: ServerContext) -> list[Metric]:
    """Return the numbers that the cache and the watches keep themselves."""
    checks = {(lake.prefix,): float(lake.watch.check_count) for lake in context.lakes.values()}
    dropped = {(lake.prefix,): float(lake.audit_log.dropped_count) for lake in context.lakes.values() if lake.audit_log is not None}
    fetches = {} if context.issuers is None else context.issuers.count_fetches()
    return [
        build_gauge("duckicelake_table_cache_entries", "Table loads that are ready.", len(context.cache)),
        build_gauge("duckicelake_table_cache_bytes", "Bytes of the table loads that are ready.", context.cache.size_bytes),
        build_counter("duckicelake_watch_checks", "Queries that asked whether something changed.", WAREHOUSE, checks),
        build_counter("duckicelake_audit_dropped", "Denials that were told to the log alone: too many at a time.", WAREHOUSE, dropped),
        build_counter("duckicelake_issuer_fetches", "Times that an issuer was asked for its keys.", ("issuer", "outcome"), fetches),
    ]
