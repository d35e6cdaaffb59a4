"""The whole door: FastAPI with its routes, and the layers before it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

from fastapi import Depends, FastAPI
from prometheus_client.core import Metric
from starlette.types import ASGIApp

from duckicelake.rest.auth.guard import Guard
from duckicelake.rest.auth.permissions import check_permission
from duckicelake.rest.auth.ready import find_allowed_key
from duckicelake.rest.auth.record import note_error
from duckicelake.rest.door import Door
from duckicelake.rest.errors import build_error_handlers
from duckicelake.rest.layers.commits import CommitLane
from duckicelake.rest.layers.front import Front
from duckicelake.rest.layers.hot import HotLane
from duckicelake.rest.layers.limit import BodyLimit
from duckicelake.rest.layers.paths import RawPaths
from duckicelake.rest.metrics import build_counter, build_gauge
from duckicelake.rest.params import check_query
from duckicelake.rest.router import add_operations
from duckicelake.rest.routes.service import ServiceRoutes

WAREHOUSE = ("warehouse",)
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def build_web(door: Door, lifespan: Lifespan) -> ASGIApp:
    """Return the layers a request passes, outermost first."""
    routes = build_routes(door, lifespan)
    door.metrics.add_state(lambda: read_state(door))
    inner = BodyLimit(RawPaths(CommitLane(routes, routes, door)), door.body_timeout_s)
    if door.accounts is None:
        return Front(HotLane(inner, door), door.metrics)
    return Front(Guard(HotLane(inner, door, find_allowed_key), door.accounts, door), door.metrics)


def build_routes(door: Door, lifespan: Lifespan) -> FastAPI:
    """Return the routes, and the errors they answer with; no page that loads scripts from elsewhere."""
    checks = (check_query,) if door.accounts is None else (check_query, check_permission)
    app = FastAPI(
        title="DuckIceLake",
        summary="An Iceberg REST catalog over DuckLake",
        lifespan=lifespan,
        dependencies=[Depends(check) for check in checks],
        exception_handlers=build_error_handlers(partial(note_error, door)),
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    add_operations(app, door)
    ServiceRoutes(door).add(app)
    return app


def read_state(door: Door) -> list[Metric]:
    """Return the numbers that the cache and the watches keep themselves."""
    checks = {(lake.prefix,): float(lake.watch.check_count) for lake in door.lakes.values()}
    dropped = {(lake.prefix,): float(lake.trail.dropped_count) for lake in door.lakes.values() if lake.trail is not None}
    fetches = {} if door.issuers is None else door.issuers.count_fetches()
    return [
        build_gauge("duckicelake_table_cache_entries", "Table loads that are ready.", len(door.cache)),
        build_gauge("duckicelake_table_cache_bytes", "Bytes of the table loads that are ready.", door.cache.size_bytes),
        build_counter("duckicelake_watch_checks", "Queries that asked whether something changed.", WAREHOUSE, checks),
        build_counter("duckicelake_audit_dropped", "Denials that were told to the log alone: too many at a time.", WAREHOUSE, dropped),
        build_counter("duckicelake_issuer_fetches", "Times that an issuer was asked for its keys.", ("issuer", "outcome"), fetches),
    ]
