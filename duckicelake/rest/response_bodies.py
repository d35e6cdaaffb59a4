"""The shapes of the JSON bodies that the routes answer with, as the OpenAPI page shows them."""

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

CatalogConfig = TypedDict(
    "CatalogConfig",
    {"defaults": dict[str, str], "overrides": dict[str, str], "endpoints": list[str], "idempotency-key-lifetime": str},
)
"""What a client needs to know before anything else."""

ListNamespacesResponse = TypedDict("ListNamespacesResponse", {"namespaces": list[list[str]], "next-page-token": str | None})


class GetNamespaceResponse(TypedDict):
    """A namespace and its properties."""

    namespace: list[str]
    properties: dict[str, str]


class UpdatePropertiesResponse(TypedDict):
    """What became of the properties that a client named."""

    updated: list[str]
    removed: list[str]
    missing: list[str]


class TableIdentifier(TypedDict):
    """A table's name."""

    namespace: list[str]
    name: str


ListTablesResponse = TypedDict("ListTablesResponse", {"identifiers": list[TableIdentifier], "next-page-token": str | None})


class StorageCredential(TypedDict):
    """Keys for what lies under a prefix."""

    prefix: str
    config: dict[str, str]


class JsonWebKeys(TypedDict):
    """Public keys of tokens (RFC 7517)."""

    keys: list[dict[str, str]]


class RemoteSignResult(TypedDict):
    """Where to send a signed request, and the headers to add to it."""

    uri: str
    headers: dict[str, list[str]]


LoadCredentialsResponse = TypedDict("LoadCredentialsResponse", {"storage-credentials": list[StorageCredential]})
LoadTableResult = TypedDict(
    "LoadTableResult",
    {
        "metadata-location": NotRequired[str],
        "metadata": dict[str, Any],
        "config": dict[str, str],
        "storage-credentials": NotRequired[list[StorageCredential]],
    },
)
"""A table that is only staged has no metadata file yet."""


LoadViewResult = TypedDict("LoadViewResult", {"metadata-location": str, "metadata": dict[str, Any], "config": dict[str, str]})
CommitTableResponse = TypedDict("CommitTableResponse", {"metadata-location": str, "metadata": dict[str, Any]})


class OAuthToken(TypedDict):
    """A token, in RFC 6749's words."""

    access_token: str
    token_type: str
    expires_in: int
    issued_token_type: str
    scope: str


class OAuthError(TypedDict):
    """Why there is no token, in RFC 6749's words."""

    error: str
    error_description: str


Principal = TypedDict("Principal", {"name": str, "has-secret": bool})


class PrincipalsResponse(TypedDict):
    """The principals that a lake keeps."""

    principals: list[Principal]


class PrincipalSecret(TypedDict):
    """A principal with the secret it was just given; none when it has none here."""

    name: str
    secret: str | None


class Role(TypedDict):
    """A role and its members."""

    name: str
    members: list[str]


class RolesResponse(TypedDict):
    """The roles that a lake keeps."""

    roles: list[Role]


class GivenGrant(TypedDict):
    """Privileges on something, and whose they are."""

    privileges: list[str]
    on: str
    to: str


class GrantsResponse(TypedDict):
    """What is granted in a lake."""

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
"""What DuckDB reads a lake with: `statements` are ready to run, the others what they are made of."""


class Readiness(TypedDict):
    """Whether a warehouse can be served, and why not."""

    ready: bool
    reason: str | None


class ReadyResponse(TypedDict):
    """Whether all warehouses can be served."""

    ready: bool
    warehouses: dict[str, Readiness]


class ErrorModel(TypedDict):
    """What went wrong: a sentence, Iceberg's word for it, and the status."""

    message: str
    type: str
    code: int


class IcebergErrorResponse(TypedDict):
    """Every refusal's body."""

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
"""Manifests that there are to be made, and what they are made of; `obstacle`: why nobody but the server may."""


AdoptedManifests = TypedDict("AdoptedManifests", {"adopted": int, "looked-at": int})
"""How many manifests were taken over, and how many need not be looked at again."""


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
