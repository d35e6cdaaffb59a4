"""What operators ask: is it alive, is it ready, how is it doing."""

import asyncio
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.concurrency import run_in_threadpool

from duckicelake.catalog.health import check_ready
from duckicelake.errors import CatalogError
from duckicelake.rest.bodies import ReadyResponse
from duckicelake.rest.door import Door, OpenLake

READY: dict[int | str, dict[str, Any]] = {
    200: {"model": ReadyResponse, "description": "Every warehouse can be served."},
    503: {"model": ReadyResponse, "description": "One of them cannot; its reason says why."},
}


class ServiceRoutes:
    """Answers the paths outside the catalog's protocol."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def add(self, app: FastAPI) -> None:
        """Route them."""
        app.add_api_route("/healthz", self.is_alive, operation_id="healthz")
        app.add_api_route("/readyz", self.is_ready, operation_id="readyz", responses=READY)
        app.add_api_route("/metrics", self.show_metrics, operation_id="metrics", response_class=PlainTextResponse)

    async def is_alive(self) -> dict[str, str]:
        """Tell that the server answers."""
        return {"status": "alive"}

    async def is_ready(self) -> Response:
        """Tell of each warehouse whether its Postgres and its object store answer; 503 if one does not."""
        lakes = list(self._door.lakes.values())
        reasons = await asyncio.gather(*(run_in_threadpool(find_reason, lake) for lake in lakes))
        ready = bool(lakes) and not any(reasons)
        warehouses = {lake.prefix: {"ready": reason is None, "reason": reason} for lake, reason in zip(lakes, reasons, strict=True)}
        return JSONResponse({"ready": ready, "warehouses": warehouses}, 200 if ready else 503)

    async def show_metrics(self) -> Response:
        """Return all numbers in Prometheus' text format."""
        return Response(self._door.metrics.format(), media_type=CONTENT_TYPE_LATEST)


def find_reason(lake: OpenLake) -> str | None:
    """Return why a lake cannot be served now, or None."""
    try:
        check_ready(lake.warehouse)
    except CatalogError as error:
        return error.message
    return None
