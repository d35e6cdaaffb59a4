"""Handlers for the server itself: index, health, readiness and metrics for operators, and the configuration for clients.

They run on the event loop. Checks of lakes run on worker threads: they read Postgres and ask for the bucket of each lake. Required routes
are asked for their configuration over the network. `getConfig` reads Postgres if keys are vended.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool

from duckicelake.catalog.credentials.ducklake import may_vend_ducklake
from duckicelake.catalog.health import check_ready
from duckicelake.errors import BadRequest, CatalogError
from duckicelake.gateway.upstream import Upstream
from duckicelake.rest.auth.route_permissions import build_unknown_warehouse, list_visible
from duckicelake.rest.context import OpenLake, ServerContext
from duckicelake.rest.operations import DUCKLAKE, OperationHandler
from duckicelake.rest.params import ADVERTISED_SEPARATOR
from duckicelake.rest.response_bodies import CatalogConfig, ReadyResponse, WarehouseEntry, WarehousesResponse

READY: dict[int | str, dict[str, Any]] = {
    200: {"model": ReadyResponse, "description": "Every warehouse can be served."},
    503: {"model": ReadyResponse, "description": "One of them cannot; its reason says why."},
}

SERVICE = frozenset({"index", "healthz", "readyz", "metrics"})
INDEX = {
    "name": "DuckIceLake",
    "what": "an Iceberg REST catalog over DuckLake",
    "config": "/v1/config",
    "openapi": "/openapi.json",
    "health": "/healthz",
    "readiness": "/readyz",
    "metrics": "/metrics",
}
"""The body of `GET /`, for people who open the server's address in a browser."""

CHECK_INTERVAL_S = 1.0
"""How long a readiness check is reused. `/readyz` is public, and each check takes a thread and a connection."""

Reasons = Mapping[str, str | None]
"""For each warehouse, the reason why it is not ready, or None."""


class ReadinessChecks:
    """Checks of all lakes, and of the routes that are required, whose results are reused for a second."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._last: tuple[float, Reasons] | None = None
        self._running_check: asyncio.Task[Reasons] | None = None

    async def get_reasons(self) -> Reasons:
        """Return the last check's result if it began within CHECK_INTERVAL_S, else that of a new check, which concurrent requests share."""
        if self._last is not None and time.monotonic() < self._last[0] + CHECK_INTERVAL_S:
            return self._last[1]
        if self._running_check is None:
            self._running_check = asyncio.create_task(self._check_all())
        # `shield`: a request that is cancelled must not cancel the check for the others.
        return await asyncio.shield(self._running_check)

    async def _check_all(self) -> Reasons:
        began, lakes, gateway = time.monotonic(), list(self._context.lakes.values()), self._context.gateway
        required = [] if gateway is None else [each for each in gateway.upstreams.values() if each.route.required]
        try:
            found = await asyncio.gather(
                *(run_in_threadpool(find_reason, lake) for lake in lakes), *(upstream.find_reason() for upstream in required)
            )
            names = [*(lake.prefix for lake in lakes), *(upstream.route.name for upstream in required)]
            reasons = dict(zip(names, found, strict=True))
            self._last = began, reasons
            return reasons
        finally:
            self._running_check = None


class ServerRoutes:
    """Handlers of the paths outside the REST catalog's specification."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._checks = ReadinessChecks(context)

    def add(self, app: FastAPI) -> None:
        """Add the routes to an application."""
        app.add_api_route("/", self.show_index, operation_id="index")
        app.add_api_route("/healthz", self.is_alive, operation_id="healthz")
        app.add_api_route("/readyz", self.is_ready, operation_id="readyz", responses=READY)
        app.add_api_route("/metrics", self.show_metrics, operation_id="metrics", response_class=PlainTextResponse)
        # Load balancers send HEAD. The OpenAPI page lists each operation once, so the HEAD routes are left out of it.
        for route in [route for route in app.routes if isinstance(route, APIRoute) and route.operation_id in SERVICE]:
            app.add_api_route(route.path, route.endpoint, methods=["HEAD"], operation_id=route.operation_id, include_in_schema=False)

    async def show_index(self) -> dict[str, str]:
        """Return the name of the server and its main paths."""
        return INDEX

    async def is_alive(self) -> dict[str, str]:
        """Report that the server responds."""
        return {"status": "alive"}

    async def is_ready(self) -> Response:
        """Report for each warehouse if its Postgres and its object store respond, and for required routes the other catalog; 503 if not."""
        reasons = await self._checks.get_reasons()
        ready = bool(reasons) and not any(reasons.values())
        warehouses = {prefix: {"ready": reason is None, "reason": reason} for prefix, reason in reasons.items()}
        return JSONResponse({"ready": ready, "warehouses": warehouses}, 200 if ready else 503)

    async def show_metrics(self) -> Response:
        """Return all metrics in Prometheus' text format."""
        return Response(self._context.metrics.format(), media_type=CONTENT_TYPE_LATEST)


def find_reason(lake: OpenLake) -> str | None:
    """Return the reason why a lake is not ready, or None."""
    try:
        check_ready(lake.warehouse)
    except CatalogError as error:
        return error.message
    return None


def build_entry(name: str, kind: str, reason: str | None) -> WarehouseEntry:
    """Return one warehouse of the list."""
    return {"name": name, "kind": kind, "state": "ready" if reason is None else "unavailable", "reason": reason}


def find_failure(upstream: Upstream) -> str | None:
    """Return the reason why requests to a catalog are refused at present, None if they are sent."""
    return None if upstream.state == "closed" else "The catalog failed several times in a row."


KEY_LIFETIME = "PT30M"
CREDENTIALS = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"
"""Listed in `endpoints` only if credentials are vended, because DuckDB calls it whenever it is listed."""


class ConfigRoutes:
    """Handlers of getConfig and listWarehouses."""

    def __init__(self, context: ServerContext, endpoints: Sequence[str]) -> None:
        self._context = context
        self._endpoints = endpoints
        self._checks = ReadinessChecks(context)

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {"getConfig": OperationHandler(self.get_config), "listWarehouses": OperationHandler(self.list_warehouses)}

    async def list_warehouses(self, request: Request) -> WarehousesResponse:
        """List the lakes, and the routes to other catalogs on which the caller has a right, with their states."""
        reasons = await self._checks.get_reasons()
        lakes = [build_entry(name, "lake", reasons.get(name)) for name in sorted(self._context.lakes)]
        visible = await list_visible(self._context, request.scope.get("bearer"))
        return {"warehouses": [*lakes, *(build_entry(each.route.name, "route", find_failure(each)) for each in visible)]}

    async def get_config(
        self,
        request: Request,
        warehouse: Annotated[str, Query(description="The warehouse's name; needed when several are served.")] = "",
    ) -> CatalogConfig:
        """List all catalog configuration settings."""
        name = warehouse or self._get_only_name()
        lake = self._context.find_lake(name)
        if lake is None:
            raise await build_unknown_warehouse(self._context, request.scope.get("bearer"), name)
        absent = {CREDENTIALS, DUCKLAKE.endpoint} if lake.warehouse.vendor is None else set[str]()
        if DUCKLAKE.endpoint not in absent and not await self._may_read_ducklake(lake):
            absent.add(DUCKLAKE.endpoint)
        return {
            "defaults": dict(lake.warehouse.client_properties),
            "overrides": {"prefix": quote(name, safe=""), "namespace-separator": ADVERTISED_SEPARATOR},
            "endpoints": [endpoint for endpoint in self._endpoints if endpoint not in absent],
            "idempotency-key-lifetime": KEY_LIFETIME,
        }

    async def _may_read_ducklake(self, lake: OpenLake) -> bool:
        """True if DuckDB users can get credentials now. If Postgres does not respond, the answer is False."""
        try:
            return DUCKLAKE.endpoint in self._endpoints and await run_in_threadpool(may_vend_ducklake, lake.warehouse)
        except CatalogError:
            return False

    def _get_only_name(self) -> str:
        names = list(self._context.lakes)
        if len(names) != 1:
            raise BadRequest("Several warehouses are served here; name one of them with the parameter `warehouse`.")
        return names[0]
