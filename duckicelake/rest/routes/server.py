"""What operators ask: is it alive, is it ready, how is it doing."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool

from duckicelake.catalog.health import check_ready
from duckicelake.errors import CatalogError
from duckicelake.rest.context import OpenLake, ServerContext
from duckicelake.rest.response_bodies import ReadyResponse

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
"""What a person finds who opens the server's address in a browser."""

CHECK_INTERVAL_S = 1.0
"""A look at what the server needs answers for so long: strangers may ask, and each look costs a thread and a connection."""

Reasons = Mapping[str, str | None]
"""Why each warehouse cannot be served, None where it can."""


class ServerRoutes:
    """Answers the paths outside the catalog's protocol."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._last: tuple[float, Reasons] | None = None
        self._running_check: asyncio.Task[Reasons] | None = None

    def add(self, app: FastAPI) -> None:
        """Route them."""
        app.add_api_route("/", self.show_index, operation_id="index")
        app.add_api_route("/healthz", self.is_alive, operation_id="healthz")
        app.add_api_route("/readyz", self.is_ready, operation_id="readyz", responses=READY)
        app.add_api_route("/metrics", self.show_metrics, operation_id="metrics", response_class=PlainTextResponse)
        # load balancers ask by HEAD; an OpenAPI page has each operation once
        for route in [route for route in app.routes if isinstance(route, APIRoute) and route.operation_id in SERVICE]:
            app.add_api_route(route.path, route.endpoint, methods=["HEAD"], operation_id=route.operation_id, include_in_schema=False)

    async def show_index(self) -> dict[str, str]:
        """Tell what this is, and where to go on."""
        return INDEX

    async def is_alive(self) -> dict[str, str]:
        """Tell that the server answers."""
        return {"status": "alive"}

    async def is_ready(self) -> Response:
        """Tell of each warehouse whether its Postgres and its object store answer; 503 if one does not. Up to a second old."""
        reasons = await self._get_reasons()
        ready = bool(reasons) and not any(reasons.values())
        warehouses = {prefix: {"ready": reason is None, "reason": reason} for prefix, reason in reasons.items()}
        return JSONResponse({"ready": ready, "warehouses": warehouses}, 200 if ready else 503)

    async def _get_reasons(self) -> Reasons:
        """Return what the last look found, if it began less than a second ago; else of the next one, which all who ask meanwhile share."""
        if self._last is not None and time.monotonic() < self._last[0] + CHECK_INTERVAL_S:
            return self._last[1]
        if self._running_check is None:
            self._running_check = asyncio.create_task(self._check_all())
        # who goes away takes the look from nobody else
        return await asyncio.shield(self._running_check)

    async def _check_all(self) -> Reasons:
        began, lakes = time.monotonic(), list(self._context.lakes.values())
        try:
            found = await asyncio.gather(*(run_in_threadpool(find_reason, lake) for lake in lakes))
            reasons = {lake.prefix: reason for lake, reason in zip(lakes, found, strict=True)}
            self._last = began, reasons
            return reasons
        finally:
            self._running_check = None

    async def show_metrics(self) -> Response:
        """Return all numbers in Prometheus' text format."""
        return Response(self._context.metrics.format(), media_type=CONTENT_TYPE_LATEST)


def find_reason(lake: OpenLake) -> str | None:
    """Return why a lake cannot be served now, or None."""
    try:
        check_ready(lake.warehouse)
    except CatalogError as error:
        return error.message
    return None
