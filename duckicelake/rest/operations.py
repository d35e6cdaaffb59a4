"""All operations of the Iceberg REST specification, served here or not, and this server's own operations.

`application` makes the routes from these tables; permissions, layers and audit look operations up in them. No I/O.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

NAMESPACES = "/v1/{prefix}/namespaces"
NAMESPACE = NAMESPACES + "/{namespace}"
TABLE = NAMESPACE + "/tables/{table}"
PLAN = TABLE + "/plan/{plan-id}"
VIEW = NAMESPACE + "/views/{view}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: its `operationId`, its method and its OpenAPI path template."""

    name: str
    method: str
    path: str

    @property
    def endpoint(self) -> str:
        """The operation as the configuration's `endpoints` spell it."""
        return f"{self.method} {self.path}"

    @property
    def route(self) -> str:
        """The path template for the router, which allows no hyphen in a parameter's name."""
        return self.path.replace("{plan-id}", "{plan_id}")


OPERATIONS = (
    Operation("getConfig", "GET", "/v1/config"),
    Operation("getToken", "POST", "/v1/oauth/tokens"),
    Operation("listNamespaces", "GET", NAMESPACES),
    Operation("createNamespace", "POST", NAMESPACES),
    Operation("loadNamespaceMetadata", "GET", NAMESPACE),
    Operation("namespaceExists", "HEAD", NAMESPACE),
    Operation("dropNamespace", "DELETE", NAMESPACE),
    Operation("updateProperties", "POST", NAMESPACE + "/properties"),
    Operation("listTables", "GET", NAMESPACE + "/tables"),
    Operation("createTable", "POST", NAMESPACE + "/tables"),
    Operation("registerTable", "POST", NAMESPACE + "/register"),
    Operation("loadTable", "GET", TABLE),
    Operation("updateTable", "POST", TABLE),
    Operation("dropTable", "DELETE", TABLE),
    Operation("tableExists", "HEAD", TABLE),
    Operation("unregisterTable", "POST", TABLE + "/unregister"),
    Operation("loadCredentials", "GET", TABLE + "/credentials"),
    Operation("signRequest", "POST", TABLE + "/sign"),
    Operation("reportMetrics", "POST", TABLE + "/metrics"),
    Operation("planTableScan", "POST", TABLE + "/plan"),
    Operation("fetchPlanningResult", "GET", PLAN),
    Operation("cancelPlanning", "DELETE", PLAN),
    Operation("fetchScanTasks", "POST", TABLE + "/tasks"),
    Operation("renameTable", "POST", "/v1/{prefix}/tables/rename"),
    Operation("commitTransaction", "POST", "/v1/{prefix}/transactions/commit"),
    Operation("listFunctions", "GET", NAMESPACE + "/functions"),
    Operation("loadFunction", "GET", NAMESPACE + "/functions/{function}"),
    Operation("listViews", "GET", NAMESPACE + "/views"),
    Operation("createView", "POST", NAMESPACE + "/views"),
    Operation("registerView", "POST", NAMESPACE + "/register-view"),
    Operation("loadView", "GET", VIEW),
    Operation("replaceView", "POST", VIEW),
    Operation("dropView", "DELETE", VIEW),
    Operation("viewExists", "HEAD", VIEW),
    Operation("renameView", "POST", "/v1/{prefix}/views/rename"),
)
"""Source: Iceberg open-api/rest-catalog-open-api.yaml, 7f879b11 (21 Aug 2026), the newest copy at hand.

Read restrictions, which the specification has got since, add no operation (docs/decisions/086).
"""

UNLISTED = frozenset({"getConfig", "getToken"})
"""Operations without `{prefix}`, which `endpoints` never lists."""

DUCKLAKE = Operation("loadDucklakeCredentials", "GET", "/v1/{prefix}/ducklake-credentials")

EXTENSIONS = (Operation("getKeys", "GET", "/v1/oauth/jwks"), Operation("signAnywhere", "POST", "/v1/aws/s3/sign"), DUCKLAKE)
"""Operations outside the specification: the public keys of tokens; the path at which older clients request signatures by default, which
names no table; and read-only DuckLake for DuckDB users."""

MANAGEMENT_PATH = "/management/v1/{prefix}"
PRINCIPAL = MANAGEMENT_PATH + "/principals/{principal}"
ROLE = MANAGEMENT_PATH + "/roles/{role}"
MANAGEMENT = (
    Operation("listPrincipals", "GET", MANAGEMENT_PATH + "/principals"),
    Operation("addPrincipal", "POST", MANAGEMENT_PATH + "/principals"),
    Operation("removePrincipal", "DELETE", PRINCIPAL),
    Operation("rotatePrincipal", "POST", PRINCIPAL + "/rotate"),
    Operation("listRoles", "GET", MANAGEMENT_PATH + "/roles"),
    Operation("addRole", "POST", MANAGEMENT_PATH + "/roles"),
    Operation("removeRole", "DELETE", ROLE),
    Operation("addMember", "PUT", ROLE + "/members/{principal}"),
    Operation("removeMember", "DELETE", ROLE + "/members/{principal}"),
    Operation("listGrants", "GET", MANAGEMENT_PATH + "/grants"),
    Operation("grant", "POST", MANAGEMENT_PATH + "/grants"),
    Operation("revoke", "POST", MANAGEMENT_PATH + "/grants/revoke"),
)
"""Operations on principals, roles and grants, outside the specification."""

MANIFESTS = MANAGEMENT_PATH + "/namespaces/{namespace}/tables/{table}/manifests"
MANIFEST_OPERATIONS = (Operation("planManifests", "GET", MANIFESTS), Operation("adoptManifests", "POST", MANIFESTS))
"""Operations of the Spark job `publish`."""

CONDITIONAL_DROP = (Operation("dropUnchangedTable", "DELETE", MANAGEMENT_PATH + "/namespaces/{namespace}/tables/{table}"),)
"""Operation of the Spark job `ingest`."""

UNDROP_OPERATIONS = (
    Operation("listDropped", "GET", MANAGEMENT_PATH + "/dropped"),
    Operation("undrop", "POST", MANAGEMENT_PATH + "/undrop"),
)
"""Operations on dropped tables and namespaces."""

RECORDS = (
    Operation("listEvents", "GET", MANAGEMENT_PATH + "/events"),
    Operation("listReads", "GET", MANAGEMENT_PATH + "/reads"),
    Operation("listReports", "GET", MANAGEMENT_PATH + "/namespaces/{namespace}/tables/{table}/reports"),
)
"""What happened in a lake, who read it, and what clients report of their scans and commits."""

LIST_WAREHOUSES = (Operation("listWarehouses", "GET", "/management/v1/warehouses"),)
"""Lakes and routes; the specification has no list of warehouses."""

REPOSITORY_PATH = "/management/v1/repositories/{prefix}"
REPOSITORIES = (
    Operation("logRef", "GET", REPOSITORY_PATH + "/refs/{ref}/log"),
    Operation("diffRefs", "GET", REPOSITORY_PATH + "/diff"),
    Operation("listBranches", "GET", REPOSITORY_PATH + "/branches"),
    Operation("createBranch", "POST", REPOSITORY_PATH + "/branches"),
    Operation("deleteBranch", "DELETE", REPOSITORY_PATH + "/branches/{branch}"),
    Operation("renameBranch", "POST", REPOSITORY_PATH + "/branches/{branch}/rename"),
    Operation("resetBranch", "POST", REPOSITORY_PATH + "/branches/{branch}/reset"),
    Operation("listTags", "GET", REPOSITORY_PATH + "/tags"),
    Operation("createTag", "POST", REPOSITORY_PATH + "/tags"),
    Operation("deleteTag", "DELETE", REPOSITORY_PATH + "/tags/{tag}"),
    Operation("mergeBranch", "POST", REPOSITORY_PATH + "/merges"),
    Operation("revertSnapshot", "POST", REPOSITORY_PATH + "/reverts"),
    Operation("collectGarbage", "POST", REPOSITORY_PATH + "/gc"),
)
"""Operations on a lake with its branches, outside the specification."""

OWN_OPERATIONS = (*MANAGEMENT, *MANIFEST_OPERATIONS, *CONDITIONAL_DROP, *UNDROP_OPERATIONS, *RECORDS, *LIST_WAREHOUSES, *REPOSITORIES)
ALL_OPERATIONS = (*OPERATIONS, *EXTENSIONS, *OWN_OPERATIONS)


CHANGING = frozenset(
    {
        *("createNamespace", "dropNamespace", "updateProperties", "createTable", "registerTable", "updateTable", "dropTable"),
        *("unregisterTable", "renameTable", "commitTransaction", "createView", "registerView", "replaceView", "dropView", "renameView"),
        *("adoptManifests", "dropUnchangedTable", "undrop"),
    }
)
"""Operations that change a lake; those on accounts and branches do not."""

READS = frozenset(
    {
        *("loadTable", "loadView", "loadFunction", "planTableScan", "fetchPlanningResult", "fetchScanTasks"),
        *("loadCredentials", "signRequest", "signAnywhere", DUCKLAKE.name),
    }
)
"""Operations that the audit of reads has: their answers show what is in a table, view or function, or give access to files."""


@dataclass(frozen=True, slots=True)
class OperationHandler:
    """The function that handles one operation, and the OpenAPI description of its responses, body and headers."""

    endpoint: Callable[..., Any]
    status: int = 200
    responses: dict[int | str, dict[str, Any]] = field(default_factory=dict[int | str, dict[str, Any]])
    body: dict[str, Any] = field(default_factory=dict[str, Any])
