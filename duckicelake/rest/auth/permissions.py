"""The permission table: the rights that each operation needs, and the errors for missing rights.

Law: an object on which a principal has no right at all is hidden (404, as if it did not exist). If the principal has some right on it, the
error is 403 and names the missing privilege. An operation without a row in the table is denied to every principal. If the server requires
authentication, FastAPI and `CommitFastPath` call `check_permission` on the event loop before each operation that they handle; for loads
from the cache, `auth.delegation.find_permitted_key` decides. Routes and `route_permissions` call the other checks, on the event loop or a
worker thread, when the names are in the body. No I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import Request

from duckicelake.access.grants import Levels, Rights, format_name, format_object
from duckicelake.access.policy import NAMESPACE, PRIVILEGES, TABLE, VIEW, get_branch_rights
from duckicelake.access.sessions import Session
from duckicelake.errors import CatalogError, CommitStateUnknown, Forbidden, NoSuchNamespace, NoSuchTable, NoSuchView, NotAuthorized
from duckicelake.rest.operations import ALL_OPERATIONS, CHANGING, MANAGEMENT, REPOSITORIES
from duckicelake.rest.params import decode_segment, split_levels

READ, WRITE, MANAGE, ALL, ANY = Rights.READ, Rights.WRITE, Rights.MANAGE, Rights.ALL, Rights.NONE
CREATE, DROP = Rights.CREATE, Rights.DROP
CARRIED = READ | WRITE | DROP | MANAGE
"""Rights on a namespace that also apply to tables and views in it, and so to those moved into it."""


Hidden = type[NoSuchTable] | type[NoSuchView] | type[NoSuchNamespace]


@dataclass(frozen=True, slots=True)
class PermissionRule:
    """The rights that an operation needs on the object of its path. `hides`: the error for a principal without any right on it.

    `need` NONE: any right. `is_public`: no token. `is_open`: any principal; the route checks the names in the body.
    `shown`: a right on an object in the namespace, at any depth, is enough; `lists`: a right on a table or view directly in it is.
    `is_whole`: needs `manage` on the warehouse. `either`: one of these is needed; the body decides which.
    """

    need: Rights = ANY
    hides: Hidden = NoSuchTable
    is_public: bool = False
    is_open: bool = False
    shown: bool = False
    lists: bool = False
    is_whole: bool = False
    either: Rights = ANY


PUBLIC, OPEN, MANAGE_WAREHOUSE = PermissionRule(is_public=True), PermissionRule(is_open=True), PermissionRule(is_whole=True)

PERMISSIONS: Mapping[str, PermissionRule] = {
    "index": PUBLIC,
    "healthz": PUBLIC,
    "readyz": PUBLIC,
    "metrics": PUBLIC,
    "getToken": PUBLIC,
    "getKeys": PUBLIC,
    "getConfig": OPEN,
    "listNamespaces": OPEN,
    "createNamespace": OPEN,
    "loadNamespaceMetadata": PermissionRule(ANY, NoSuchNamespace),
    "namespaceExists": PermissionRule(ANY, NoSuchNamespace, shown=True),
    "dropNamespace": PermissionRule(MANAGE, NoSuchNamespace),
    "updateProperties": PermissionRule(MANAGE, NoSuchNamespace),
    "listTables": PermissionRule(ANY, NoSuchNamespace, lists=True),
    "createTable": PermissionRule(CREATE, NoSuchNamespace),
    "registerTable": PermissionRule(ALL, NoSuchNamespace),
    "loadTable": PermissionRule(READ),
    "updateTable": PermissionRule(either=WRITE | CREATE),
    "dropTable": PermissionRule(DROP),
    "tableExists": PermissionRule(ANY),
    "unregisterTable": PermissionRule(DROP),
    "loadCredentials": PermissionRule(READ),
    "signRequest": PermissionRule(ANY),
    "signAnywhere": OPEN,
    "loadDucklakeCredentials": OPEN,
    "reportMetrics": PermissionRule(ANY),
    "planTableScan": PermissionRule(READ),
    "fetchPlanningResult": PermissionRule(READ),
    "cancelPlanning": PermissionRule(READ),
    "fetchScanTasks": PermissionRule(READ),
    "renameTable": OPEN,
    "commitTransaction": OPEN,
    "listFunctions": PermissionRule(ANY, NoSuchNamespace),
    "loadFunction": PermissionRule(READ, NoSuchNamespace),
    "listViews": PermissionRule(ANY, NoSuchNamespace, lists=True),
    "createView": PermissionRule(CREATE, NoSuchNamespace),
    "registerView": PermissionRule(ALL, NoSuchNamespace),
    "loadView": PermissionRule(READ, NoSuchView),
    "replaceView": PermissionRule(WRITE, NoSuchView),
    "dropView": PermissionRule(DROP, NoSuchView),
    "viewExists": PermissionRule(ANY, NoSuchView),
    "renameView": OPEN,
    **{operation.name: MANAGE_WAREHOUSE for operation in (*MANAGEMENT, *REPOSITORIES)},
    "planManifests": PermissionRule(READ | WRITE | MANAGE),
    "adoptManifests": PermissionRule(READ | WRITE | MANAGE),
    "dropUnchangedTable": PermissionRule(DROP),
    "listWarehouses": OPEN,
    "listDropped": OPEN,
    "listEvents": MANAGE_WAREHOUSE,
    "listReads": MANAGE_WAREHOUSE,
    "listReports": PermissionRule(MANAGE),
    "undrop": OPEN,
    "listBranches": OPEN,
    "mergeBranch": OPEN,
    "createBranch": OPEN,
    "deleteBranch": OPEN,
    "renameBranch": OPEN,
    "resetBranch": OPEN,
    "listTags": OPEN,
    "createTag": OPEN,
    "deleteTag": OPEN,
    "grant": OPEN,
    "revoke": OPEN,
}

UNGUARDED = frozenset({"/", "/healthz", "/readyz", "/metrics", "/openapi.json"})
PUBLIC_OPERATIONS = tuple(operation for operation in ALL_OPERATIONS if PERMISSIONS.get(operation.name, OPEN).is_public)
PUBLIC_PATHS = frozenset(path.encode() for path in (*UNGUARDED, *(operation.path for operation in PUBLIC_OPERATIONS)))
"""Paths as clients spell them; another spelling of such a path is not public."""

KINDS: Mapping[Hidden, str] = {NoSuchTable: TABLE, NoSuchView: VIEW}
OBJECT_NOUNS: Mapping[Hidden, str] = {NoSuchTable: "Table", NoSuchView: "View", NoSuchNamespace: "Namespace"}


async def check_permission(request: Request) -> None:
    """Raise unless the session has the rights that the table requires for the request's operation.

    Raises: NoSuchTable, NoSuchView, NoSuchNamespace: the object is hidden. Forbidden: a right is missing. NotAuthorized: there is no token
    """
    operation: str = getattr(request.scope.get("route"), "operation_id", None) or ""
    rule = PERMISSIONS.get(operation)
    if rule is not None and rule.is_public:
        return
    session: Session | None = request.scope.get("session")
    if session is None:
        raise NotAuthorized("The request has no token; ask POST /v1/oauth/tokens for one.")
    if rule is None:
        raise Forbidden(f"The operation {operation} has no row in the permission table, so it is denied to every principal.")
    prefix = request.path_params.get("prefix")
    if session.lake_name and prefix is not None and decode_segment(prefix, "prefix") != session.lake_name:
        raise Forbidden(f"What {session.client_id!r} may do in one warehouse is nothing in another.")
    if session.read_only and operation in CHANGING:
        raise Forbidden(session.read_only)
    if rule.is_whole:
        check_manages_warehouse(session)
    elif not rule.is_open:
        levels = split_levels(decode_segment(request.path_params["namespace"], "namespace"))
        name = request.path_params.get("table") or request.path_params.get("view")
        check_rule(session, rule, levels, None if name is None else decode_segment(name, "name"))


def check_rule(session: Session, rule: PermissionRule, levels: Levels, name: str | None = None) -> None:
    """Raise the rule's error unless the session has its rights on the namespace, or on the table or view `name` in it."""
    kind = None if name is None else KINDS.get(rule.hides)
    rights = session.rights_on(levels) if kind is None or name is None else session.rights_at(kind, levels, name)
    if rights is not Rights.NONE and rule.need in rights and (rule.either is ANY or rights & rule.either):
        return
    is_shown = session.shows(levels)
    if (rule.shown and is_shown) or (rule.lists and session.lists(levels)):
        return
    shown = ".".join(levels)
    if rights is Rights.NONE and not (is_shown and rule.hides is NoSuchNamespace):
        whole = shown if name is None or rule.hides is NoSuchNamespace else f"{shown}.{name}"
        raise deny(rule.hides(f"{OBJECT_NOUNS[rule.hides]} does not exist: {whole}"), levels, name)
    needed = format_needed(rule, rights, kind, levels, name)
    error = Forbidden(f"The principal {session.client_id!r} has no right to do this in the namespace {shown!r}. It needs {needed}.")
    raise deny(error, levels, name)


def format_needed(rule: PermissionRule, rights: Rights, kind: str | None, levels: Levels, name: str | None) -> str:
    """Return the privileges that a principal lacks for an operation, and the objects on which they can be granted."""
    if Rights.ALL in rule.need and Rights.ALL not in rights:
        return "`manage` on `warehouse`"
    lacked = [f"`{word}`" for word, right in PRIVILEGES.items() if right in rule.need & ~rights]
    either = [f"`{word}`" for word, right in PRIVILEGES.items() if rule.either is not ANY and right in rule.either]
    words = " and ".join([*lacked, *([" or ".join(either)] if either else [])])
    places = [f"`{NAMESPACE}:{format_name(levels)}`", "a namespace above it", "`warehouse`"]
    if kind is not None and name is not None:
        places.insert(0, f"`{kind}:{format_name((*levels, name))}`")
    return f"{words or 'any privilege'} on {', '.join(places[:-1])} or {places[-1]}"


def deny(error: CatalogError, levels: Levels, name: str | None = None) -> CatalogError:
    """Return the error, marked for the audit log as a denial of that object."""
    error.denied = format_object(levels if name is None else (*levels, name))
    return error


def check_manages_warehouse(session: Session) -> None:
    """Raise Forbidden unless the session may manage the warehouse."""
    if not session.may_choose_locations:
        raise Forbidden(f"The principal {session.client_id!r} has no right to manage the warehouse. It needs `manage` on `warehouse`.")


def check_merge(session: Session, into: str) -> None:
    """Raise Forbidden unless the session may manage the warehouse, or may merge branches into the lake (`main`) or into that branch.

    A pattern with stars is no right to merge: a merge changes all that the other side changed, and may leave out changes of a branch.
    """
    grants = tuple(grant for grant in session.branches if grant.pattern == into)
    if not session.may_choose_locations and WRITE not in get_branch_rights(grants, into):
        named = f"The principal {session.client_id!r} has no right to merge into {into[:64]!r}."
        raise Forbidden(f"{named} It needs `write` on `branch:{into[:64]}`, or `manage` on `warehouse`.")


def check_branch(session: Session, name: str, need: Rights) -> None:
    """Raise Forbidden unless the session may manage the warehouse, or has a right on branches of that name."""
    if session.may_choose_locations or need in get_branch_rights(session.branches, name):
        return
    word = next(word for word, right in PRIVILEGES.items() if right is need)
    named = f"The principal {session.client_id!r} has no right to do this with the branch {name[:64]!r}."
    raise Forbidden(f"{named} It needs `{word}` on `branch:{name[:64]}`, on a pattern that matches it, or `manage` on `warehouse`.")


def check_sees_branches(session: Session) -> None:
    """Raise Forbidden unless the session has any right in the warehouse."""
    if not (session.branches or session.objects or any(grant.rights is not Rights.NONE for grant in session.grants.each)):
        raise Forbidden(f"The principal {session.client_id!r} has no right in the warehouse.")


def check_reads_anything(session: Session) -> None:
    """Raise Forbidden unless the session may read at least one object."""
    rights = [*(grant.rights for grant in session.grants.each), *session.objects.values()]
    if not any(READ in each for each in rights):
        named = f"The principal {session.client_id!r} has no right to read anything in the warehouse."
        raise Forbidden(f"{named} It needs `read` on something in it.")


def check_commit(session: Session, levels: Levels, name: str, *, creates: bool) -> None:
    """Raise unless the session may commit to a table; `creates`: unless it may create a table in the namespace."""
    check_rule(session, PermissionRule(CREATE if creates else WRITE), levels, name)


def check_moved(session: Session, kind: str, moved_to: Levels | None) -> None:
    """Raise CommitStateUnknown if the changed table or view was renamed meanwhile (`moved_to`) and the session has no right on it there."""
    if moved_to is not None and not session.rights_at(kind, moved_to[:-1], moved_to[-1]) & (READ | WRITE):
        raise CommitStateUnknown(
            f"The commit is done. The table or view was renamed since, and the principal {session.client_id!r} has no right on it there."
        )


def check_rename(session: Session, source: Levels, destination: Levels, hides: Hidden) -> None:
    """Raise unless the session may rename a table or view from `source` to `destination`.

    Law: a rename gives its principal no new rights on the object, unless the principal manages it.
    """
    check_rule(session, PermissionRule(DROP, hides), source[:-1], source[-1])
    check_rule(session, PermissionRule(CREATE, NoSuchNamespace), destination[:-1])
    mine = session.rights_at(KINDS[hides], source[:-1], source[-1])
    if MANAGE not in mine and session.rights_on(destination[:-1]) & CARRIED & ~mine:
        place = ".".join(destination[:-1])
        error = Forbidden(f"The principal {session.client_id!r} would have rights on it in the namespace {place!r} that it has not here.")
        raise deny(error, source[:-1], source[-1])


def check_creates_namespace(session: Session, levels: Levels) -> None:
    """Raise Forbidden unless the session may create that namespace, whether it exists or not."""
    if Rights.MANAGE not in session.rights_on(levels):
        named = f"The principal {session.client_id!r} has no right to create the namespace {'.'.join(levels)!r}."
        error = Forbidden(f"{named} It needs {format_needed(PermissionRule(MANAGE), Rights.NONE, None, levels, None)}.")
        raise deny(error, levels)
