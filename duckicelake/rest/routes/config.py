"""The configuration that every client asks for first."""

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import quote

from fastapi import Query
from starlette.concurrency import run_in_threadpool

from duckicelake.catalog.keys.ducklake import may_vend_ducklake
from duckicelake.errors import BadRequest, CatalogError
from duckicelake.rest.context import OpenLake, ServerContext
from duckicelake.rest.operation import OperationHandler
from duckicelake.rest.operations import DUCKLAKE
from duckicelake.rest.params import ADVERTISED_SEPARATOR
from duckicelake.rest.response_bodies import CatalogConfig

KEY_LIFETIME = "PT30M"
CREDENTIALS = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"
"""Advertised only where keys are vended: DuckDB asks for them as soon as it sees this."""


class ConfigRoutes:
    """Tells clients their prefix, the client settings and what works here."""

    def __init__(self, context: ServerContext, endpoints: Sequence[str]) -> None:
        self._context = context
        self._endpoints = endpoints

    def operations(self) -> dict[str, OperationHandler]:
        """Return what this module serves."""
        return {"getConfig": OperationHandler(self.get_config)}

    async def get_config(
        self, warehouse: Annotated[str, Query(description="The warehouse's name; needed when several are served.")] = ""
    ) -> CatalogConfig:
        """List all catalog configuration settings."""
        name = warehouse or self._get_only_name()
        lake = self._context.get_lake_by_name(name)
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
        """Tell whether DuckDB users get keys now. What Postgres does not say is no."""
        try:
            return DUCKLAKE.endpoint in self._endpoints and await run_in_threadpool(may_vend_ducklake, lake.warehouse)
        except CatalogError:
            return False

    def _get_only_name(self) -> str:
        names = list(self._context.lakes)
        if len(names) != 1:
            raise BadRequest("Several warehouses are served here; name one of them with the parameter `warehouse`.")
        return names[0]
