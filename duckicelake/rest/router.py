"""Which operations are served: the routes, the configuration's `endpoints` and MISSING.md follow from here."""

from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI

from duckicelake.errors import NotServed
from duckicelake.rest.context import ServerContext
from duckicelake.rest.operation import OperationHandler
from duckicelake.rest.operations import ALL_OPERATIONS, DUCKLAKE, MANAGEMENT, OPERATIONS, UNLISTED, Operation
from duckicelake.rest.response_bodies import IcebergErrorResponse
from duckicelake.rest.routes.config import ConfigRoutes
from duckicelake.rest.routes.ducklake import DucklakeRoutes
from duckicelake.rest.routes.management import ManagementRoutes
from duckicelake.rest.routes.manifests import ManifestRoutes
from duckicelake.rest.routes.namespace_changes import NamespaceChangeRoutes
from duckicelake.rest.routes.namespaces import NamespaceRoutes
from duckicelake.rest.routes.signing import SignRoutes
from duckicelake.rest.routes.table_changes import TableChangeRoutes
from duckicelake.rest.routes.tables import TableRoutes
from duckicelake.rest.routes.tokens import TokenRoutes
from duckicelake.rest.routes.view_changes import ViewChangeRoutes
from duckicelake.rest.routes.views import ViewRoutes
from duckicelake.rest.scans.routes import ScanRoutes

Responses = Mapping[int | str, dict[str, Any]]

FIRST_RESPONSES: Responses = {
    "4XX": {"model": IcebergErrorResponse, "description": "The request was refused."},
    "5XX": {"model": IcebergErrorResponse, "description": "The server or a part behind it failed."},
}
"""Of the one operation that has the OpenAPI page define the model: FastAPI builds a validator of its own wherever it is told of one."""
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
"""What is served only where it is known who asks."""


def add_operations(app: FastAPI, context: ServerContext) -> None:
    """Route every operation of the specification: to what serves it, or to an answer that says nothing does."""
    routes = (NamespaceRoutes(context), NamespaceChangeRoutes(context), TableRoutes(context), TableChangeRoutes(context))
    routes += (ViewRoutes(context), ViewChangeRoutes(context), TokenRoutes(context), SignRoutes(context), ManagementRoutes(context))
    routes += (DucklakeRoutes(context), ManifestRoutes(context), ScanRoutes(context))
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
    """Route one operation to what serves it."""
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
    """Return what clients may call, in the words of the specification's templates, and what DuckDB users may."""
    return [operation.endpoint for operation in (*OPERATIONS, DUCKLAKE) if operation.name in served and operation.name not in UNLISTED]


def build_refusal(operation: Operation) -> Callable[[], Any]:
    """Return an endpoint that answers 501 and names the operation."""

    async def refuse() -> None:
        raise NotServed(f"{operation.name} ({operation.endpoint}) is not served here; `endpoints` of /v1/config lists what is.")

    return refuse
