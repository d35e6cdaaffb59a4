"""Types of the JSON bodies in responses, as the OpenAPI page shows them. FastAPI shows their docstrings to users."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

CatalogConfig = TypedDict(
    "CatalogConfig",
    {"defaults": dict[str, str], "overrides": dict[str, str], "endpoints": list[str], "idempotency-key-lifetime": str},
)
"""The body of getConfig, which every client requests first."""

ListNamespacesResponse = TypedDict("ListNamespacesResponse", {"namespaces": list[list[str]], "next-page-token": str | None})


class GetNamespaceResponse(TypedDict):
    """A namespace and its properties."""

    namespace: list[str]
    properties: dict[str, str]


class UpdatePropertiesResponse(TypedDict):
    """The outcome for each property of the request."""

    updated: list[str]
    removed: list[str]
    missing: list[str]


class TableIdentifier(TypedDict):
    """A table's name."""

    namespace: list[str]
    name: str


ListTablesResponse = TypedDict("ListTablesResponse", {"identifiers": list[TableIdentifier], "next-page-token": str | None})


class StorageCredential(TypedDict):
    """Credentials for the objects under a prefix."""

    prefix: str
    config: dict[str, str]


class LogResponse(TypedDict):
    """Lake snapshots, newest first, with author, message, time, and operations by object."""

    entries: list[dict[str, Any]]


BranchResponse = TypedDict(
    "BranchResponse",
    {"name": str, "from": str | None, "snapshot-id": int, "created-at": str, "warehouse": str, "metadata-schema": str},
)
"""A branch: what it was made from (null: a deleted branch), at which snapshot, and how Iceberg clients and DuckDB reach it."""


class BranchesResponse(TypedDict):
    """The branches of a lake, oldest first."""

    branches: list[BranchResponse]


class TagsResponse(TypedDict):
    """The tags of a lake, oldest first."""

    tags: list[BranchResponse]


class JsonWebKeys(TypedDict):
    """Public keys of tokens (RFC 7517)."""

    keys: list[dict[str, str]]


class RemoteSignResult(TypedDict):
    """The URI and the headers of a signed request."""

    uri: str
    headers: dict[str, list[str]]


LoadCredentialsResponse = TypedDict("LoadCredentialsResponse", {"storage-credentials": list[StorageCredential]})


class RemoteSigningConfig(TypedDict):
    properties: NotRequired[dict[str, str]]
    headers: NotRequired[dict[str, list[str]]]


LoadTableResult = TypedDict(
    "LoadTableResult",
    {
        "metadata-location": NotRequired[str],
        "metadata": dict[str, Any],
        "config": dict[str, str],
        "storage-credentials": NotRequired[list[StorageCredential]],
        "remote-signing-config": NotRequired[RemoteSigningConfig],
    },
)
"""A table that is only staged has no metadata file yet."""


LoadViewResult = TypedDict("LoadViewResult", {"metadata-location": str, "metadata": dict[str, Any], "config": dict[str, str]})
ListFunctionsResponse = TypedDict("ListFunctionsResponse", {"identifiers": list[list[str]], "next-page-token": str | None})
"""Each identifier is the levels of the namespace and the function's name."""


class LoadFunctionResult(TypedDict):
    """A function. It has no metadata file: every load derives its metadata from the lake."""

    metadata: dict[str, Any]


CommitTableResponse = TypedDict("CommitTableResponse", {"metadata-location": str, "metadata": dict[str, Any]})


class OAuthToken(TypedDict):
    """A token response (RFC 6749, 5.1)."""

    access_token: str
    token_type: str
    expires_in: int
    issued_token_type: str
    scope: str


class OAuthError(TypedDict):
    """A token error (RFC 6749, 5.2)."""

    error: str
    error_description: str


ListEventsResponse = TypedDict("ListEventsResponse", {"events": list[dict[str, Any]], "cursor": str, "is-last": bool})
"""CloudEvents in order. `cursor`: what the next request sends as `after`. `is-last`: there is nothing newer now."""
ListReadsResponse = TypedDict("ListReadsResponse", {"reads": list[dict[str, Any]], "next-page-token": str | None})
"""Equal reads of some seconds are one entry with their `count`."""


ListReportsResponse = TypedDict(
    "ListReportsResponse", {"summary": dict[str, Any] | None, "reports": list[dict[str, Any]], "next-page-token": str | None}
)
"""The newest reports that are kept of a table. `summary`: sums over all of them, on the first page."""


DroppedEntry = TypedDict(
    "DroppedEntry",
    {
        "type": Literal["table", "namespace"],
        "namespace": list[str],
        "name": str | None,
        "uuid": str,
        "dropped-at-ms": int | None,
        "lake-snapshot-id": int,
        "obstacle": str | None,
    },
)
"""A dropped table or namespace (`name` null). `obstacle`: why it cannot come back; null if nothing in the lake's rows is in the way."""
ListDroppedResponse = TypedDict("ListDroppedResponse", {"dropped": list[DroppedEntry], "next-page-token": str | None})


class LeftOutTable(TypedDict):
    """A table that stays dropped when its namespace comes back."""

    name: str
    obstacle: str


UndropResponse = TypedDict(
    "UndropResponse",
    {
        "type": Literal["table", "namespace"],
        "namespace": list[str],
        "name": str | None,
        "uuid": str,
        "tables": list[str],
        "left-out": list[LeftOutTable],
    },
)
"""A table or namespace that is back. `tables`: those that came back with a namespace; `left-out`: those that could not."""


Principal = TypedDict("Principal", {"name": str, "has-secret": bool})


class PrincipalsResponse(TypedDict):
    """The principals that are stored in a lake."""

    principals: list[Principal]


class PrincipalSecret(TypedDict):
    """A principal with its new secret; null if it has no secret here."""

    name: str
    secret: str | None


class Role(TypedDict):
    """A role and its members."""

    name: str
    members: list[str]


class RolesResponse(TypedDict):
    """The roles that are stored in a lake."""

    roles: list[Role]


class GivenGrant(TypedDict):
    """Privileges on a warehouse, namespace, table or view, and the grantee."""

    privileges: list[str]
    on: str
    to: str


class GrantsResponse(TypedDict):
    """All grants of a lake."""

    grants: list[GivenGrant]


class DucklakeKeys(TypedDict):
    prefixes: list[str]
    config: dict[str, str]


DucklakeCredentialsResponse = TypedDict(
    "DucklakeCredentialsResponse",
    {
        "expires-at-ms": int,
        "dsn": str,
        "metadata-schema": str,
        "attach": str,
        "statements": list[str],
        "storage-credentials": list[DucklakeKeys],
    },
)
"""Credentials for reading a lake with DuckDB: `statements` can be run as they are; the other members are their parts."""


class Readiness(TypedDict):
    """A warehouse's readiness, with the reason if it is not ready."""

    ready: bool
    reason: str | None


class ReadyResponse(TypedDict):
    """The readiness of all warehouses."""

    ready: bool
    warehouses: dict[str, Readiness]


class WarehouseEntry(TypedDict):
    """A warehouse: a lake or a route. `state`: `ready` or `unavailable`, then with the reason."""

    name: str
    kind: str
    state: str
    reason: str | None


class WarehousesResponse(TypedDict):
    """The warehouses that the caller may use."""

    warehouses: list[WarehouseEntry]


class ErrorModel(TypedDict):
    """An error: message, Iceberg error type and status."""

    message: str
    type: str
    code: int


class IcebergErrorResponse(TypedDict):
    """The body of every error response."""

    error: ErrorModel


PlannedManifests = TypedDict(
    "PlannedManifests",
    {
        "lake-snapshot-id": int,
        "change-id": int,
        "obstacle": str,
        "adopted": int,
        "recipe": dict[str, Any],
        "manifests": list[dict[str, Any]],
    },
)
"""The manifests that a job can write, and their contents. `obstacle`: why only the server may write them; empty if a job may."""


AdoptedManifests = TypedDict("AdoptedManifests", {"adopted": int, "looked-at": int})
"""The number of manifests that were adopted, and of those that need no further verification."""


class CountMap(TypedDict):
    keys: list[int]
    values: list[int]


class ValueMap(TypedDict):
    keys: list[int]
    values: list[str]


ScannedDataFile = TypedDict(
    "ScannedDataFile",
    {
        "spec-id": int,
        "content": Literal["data"],
        "file-path": str,
        "file-format": str,
        "partition": list[bool | int | float | str | None],
        "file-size-in-bytes": int,
        "record-count": int,
        "split-offsets": NotRequired[list[int]],
        "sort-order-id": NotRequired[int],
        "first-row-id": NotRequired[int],
        "column-sizes": NotRequired[CountMap],
        "value-counts": NotRequired[CountMap],
        "null-value-counts": NotRequired[CountMap],
        "nan-value-counts": NotRequired[CountMap],
        "lower-bounds": NotRequired[ValueMap],
        "upper-bounds": NotRequired[ValueMap],
    },
)
ScannedDeleteFile = TypedDict(
    "ScannedDeleteFile",
    {
        "spec-id": int,
        "content": Literal["position-deletes", "equality-deletes"],
        "file-path": str,
        "file-format": str,
        "partition": list[bool | int | float | str | None],
        "file-size-in-bytes": int,
        "record-count": int,
        "split-offsets": NotRequired[list[int]],
        "sort-order-id": NotRequired[int],
        "equality-ids": NotRequired[list[int]],
        "referenced-data-file": NotRequired[str],
        "content-offset": NotRequired[int],
        "content-size-in-bytes": NotRequired[int],
    },
)
FileScanTask = TypedDict(
    "FileScanTask",
    {"data-file": ScannedDataFile, "delete-file-references": NotRequired[list[int]], "residual-filter": bool | dict[str, Any]},
)
CompletedPlanningResult = TypedDict(
    "CompletedPlanningResult",
    {
        "status": Literal["completed"],
        "plan-id": str,
        "plan-tasks": NotRequired[list[str]],
        "delete-files": NotRequired[list[ScannedDeleteFile]],
        "file-scan-tasks": list[FileScanTask],
        "storage-credentials": NotRequired[list[StorageCredential]],
    },
)
FetchScanTasksResult = TypedDict(
    "FetchScanTasksResult",
    {
        "plan-tasks": NotRequired[list[str]],
        "delete-files": NotRequired[list[ScannedDeleteFile]],
        "file-scan-tasks": list[FileScanTask],
    },
)
