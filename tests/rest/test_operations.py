"""What works, what is advertised and what is missing are the same three lists everywhere."""

import re
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from duckicelake.access.tokens import Accounts, make_signer
from duckicelake.rest.application import add_operations, build_routes, build_web
from duckicelake.rest.cached_response import ResponseCache
from duckicelake.rest.context import ServerContext
from duckicelake.rest.metrics import Metrics
from duckicelake.rest.operations import ALL_OPERATIONS, OPERATIONS, UNLISTED, Operation
from tests.rest.serving import open_nothing

ROOT = Path(__file__).parents[2]
METRIC = re.compile(r"\| `(duckicelake_\w+)` \|")
ROW = re.compile(r"\| `(\w+)` \| `(\w+) (\S+)` \|")


@pytest.fixture
def app() -> FastAPI:
    """The routes of a guarded door without lakes."""
    app = FastAPI()
    add_operations(app, ServerContext(ResponseCache(0), Metrics(), Accounts({}, make_signer(["k" * 32]), 60)))
    return app


def find_served(app: FastAPI) -> set[str]:
    """The operations that something other than a refusal answers."""
    names = {operation.name for operation in ALL_OPERATIONS}
    return {
        route.operation_id for route in app.routes if isinstance(route, APIRoute) and route.include_in_schema and route.operation_id
    } & names


def test_every_operation_of_the_specification_has_a_route(app: FastAPI) -> None:
    """What is not served is refused by name, never by a 404 that looks like a missing table."""
    routed = {
        (method, route.path, route.operation_id) for route in app.routes if isinstance(route, APIRoute) for method in route.methods or ()
    }
    assert {(operation.method, operation.route, operation.name) for operation in OPERATIONS} <= routed


def test_missing_md_lists_what_is_not_served(app: FastAPI) -> None:
    """MISSING.md = the specification's operations minus the router."""
    missing = {Operation(*found) for found in ROW.findall((ROOT / "MISSING.md").read_text())}
    served = find_served(app)
    assert missing == {operation for operation in OPERATIONS if operation.name not in served}


def test_the_specification_is_whole() -> None:
    """35 operations at 7f879b11, each once."""
    assert (
        len(OPERATIONS) == len({operation.name for operation in OPERATIONS}) == len({operation.endpoint for operation in OPERATIONS}) == 35
    )


def test_the_openapi_page_shows_exactly_what_is_served(app: FastAPI) -> None:
    """Every served operation under its own name, no other, and none with FastAPI's own error shape."""
    shown = [found for methods in app.openapi()["paths"].values() for found in methods.values()]
    assert {found["operationId"] for found in shown} == find_served(app)
    assert all("422" not in found["responses"] for found in shown)
    assert UNLISTED <= find_served(app)


def test_event_loops_of_one_process_analyse_routes_in_turn() -> None:
    """FastAPI adds a filter of warnings meanwhile. All threads share the filters, and two at once would leave it there."""

    def use_all(_: int) -> int:
        app = build_routes(ServerContext(ResponseCache(0), Metrics()), open_nothing)
        return sum(len(route.dependant.path_params) for route in app.routes if isinstance(route, APIRoute))

    filters, interval = list(warnings.filters), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(use_all, range(8)))) == 1
    finally:
        sys.setswitchinterval(interval)
    assert list(warnings.filters) == filters


def test_every_metric_is_documented() -> None:
    """docs/metrics.md names exactly what /metrics shows beside the process's own numbers."""
    context = ServerContext(ResponseCache(0), Metrics())
    build_web(context, open_nothing)
    shown = {family.name for family in context.metrics.registry.collect() if family.name.startswith("duckicelake_")}
    assert set(METRIC.findall((ROOT / "docs" / "metrics.md").read_text())) == shown
