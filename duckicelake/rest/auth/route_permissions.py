"""Permissions on the objects of another catalog: the permission table, applied to the names of a request that is to be forwarded.

The forwarding layer calls it on the event loop: before it sends a request, and to filter lists and credentials out of answers.
`rest/routes/server.py` lists the routes that a caller sees. Reading policies may query Postgres on a worker thread.
Of a principal with every right on a route only changes are checked, if the route is read only.
Law: the names that are checked are those that the upstream reads. So a JSON key that occurs twice is refused, and a path that servers read
in different ways must be permitted in each of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, unquote_to_bytes

from duckicelake.access.grants import Levels, Rights
from duckicelake.access.policy import TABLE, VIEW, LakePolicy
from duckicelake.access.sessions import ANONYMOUS, Bearer, Session
from duckicelake.errors import BadRequest, Forbidden, NoSuchNamespace, NoSuchTable, NoSuchView, NoSuchWarehouse
from duckicelake.gateway.route import Route
from duckicelake.gateway.upstream import Upstream
from duckicelake.iceberg.json_reader import as_object, decode_json, find_list, get_text
from duckicelake.rest.auth.permissions import (
    PERMISSIONS,
    READ,
    WRITE,
    PermissionRule,
    check_commit,
    check_creates_namespace,
    check_rename,
    check_rule,
    deny,
)
from duckicelake.rest.context import ServerContext
from duckicelake.rest.operations import OPERATIONS, Operation
from duckicelake.rest.params import BROKEN_ESCAPE, SEPARATOR

KEYED = READ | WRITE
HEAD_PARTS = 3
"""The parts of a template in front of what follows the prefix: `/v1/{prefix}/`."""
WHAT = "request"
READING = frozenset({"planTableScan", "fetchScanTasks", "cancelPlanning", "reportMetrics"})
"""Operations with POST or DELETE that change nothing."""
CREATED = frozenset({"createTable", "registerTable", "createView", "registerView"})


@dataclass(frozen=True, slots=True)
class ForwardedNames:
    """The operation of a request to another catalog, and the names in its path. `spellings`: the ways to read the path."""

    operation: Operation | None
    spellings: tuple[tuple[Levels, str | None], ...] = ()

    @property
    def name(self) -> str:
        """The operation's name; that of unknown operations is none of the specification."""
        return "forwarded" if self.operation is None else self.operation.name

    @property
    def levels(self) -> Levels:
        """The namespace in the path."""
        return self.spellings[0][0] if self.spellings else ()

    @property
    def object_name(self) -> str | None:
        """The table or view in the path."""
        return self.spellings[0][1] if self.spellings else None


def index_templates() -> Mapping[tuple[str, int], list[tuple[Operation, list[str]]]]:
    """Return the operations behind a prefix by method and number of segments, with the segments of their templates."""
    found: dict[tuple[str, int], list[tuple[Operation, list[str]]]] = {}
    for operation in OPERATIONS:
        parts = operation.path.split("/")[HEAD_PARTS:]
        if "{prefix}" in operation.path:
            found.setdefault((operation.method, len(parts)), []).append((operation, parts))
    return found


TEMPLATES = index_templates()


def find_forwarded_operation(method: str, rest: str) -> tuple[Operation | None, dict[str, str]]:
    """Return the operation of a path behind its prefix, and the path's parameters, percent-encoded; None for an unknown one."""
    parts = rest.split("/")
    for operation, wanted in TEMPLATES.get((method, len(parts)), ()):
        if all(want == part or want[:1] == "{" for want, part in zip(wanted, parts, strict=True)):
            return operation, {want[1:-1]: part for want, part in zip(wanted, parts, strict=True) if want[:1] == "{"}
    return None, {}


def read_names(method: str, rest: str, separator: str) -> ForwardedNames:
    """Return the operation and the names of a path. `separator`: the upstream's, percent-encoded.

    Raises: BadRequest: a part of the path is not UTF-8, or empty
    """
    operation, named = find_forwarded_operation(method, rest)
    if operation is None or "namespace" not in named:
        return ForwardedNames(operation)
    name = named.get("table", named.get("view", named.get("function")))
    spaces = [split_namespace(text, separator) for text in list_spellings(named["namespace"])]
    names = [None] if name is None else list_spellings(name)
    return ForwardedNames(operation, tuple((levels, name) for levels in spaces for name in names))


def list_spellings(segment: str) -> list[str]:
    """Return what servers read from a segment of a path: some take `+` for a space. Raises: BadRequest."""
    if BROKEN_ESCAPE.search(segment):
        raise BadRequest("The path has a broken percent escape.")
    try:
        plain = unquote_to_bytes(segment.encode("latin-1")).decode()
        return [plain, unquote_to_bytes(segment.replace("+", " ").encode("latin-1")).decode()] if "+" in segment else [plain]
    except UnicodeError as error:
        raise BadRequest("A name in the path is not UTF-8.") from error


def split_namespace(text: str, separator: str) -> Levels:
    """Return the levels of a decoded namespace. Raises: BadRequest: a level is empty, or there are two kinds of separators."""
    wanted = unquote(separator) or SEPARATOR
    if wanted != SEPARATOR and SEPARATOR in text:
        if wanted in text:
            raise BadRequest("The namespace in the path has two kinds of separators; use the one that /v1/config names.")
        wanted = SEPARATOR
    levels = tuple(text.split(wanted))
    if not all(levels):
        raise BadRequest("A level of the namespace in the path is empty.")
    return levels


def changes_something(method: str, names: ForwardedNames) -> bool:
    """True if a request may change something in the upstream."""
    return method not in ("GET", "HEAD") and names.name not in READING and names.name != "signRequest"


def check_read_only(route: str, method: str, names: ForwardedNames, body: bytes) -> None:
    """Raise Forbidden if a request would change something, or sign a change."""
    if changes_something(method, names) or (names.name == "signRequest" and signs_change(body)):
        raise Forbidden(f"The route {route!r} is read only, by this server's settings.")


def signs_change(body: bytes) -> bool:
    """True if the request to be signed changes an object. Raises: BadRequest."""
    return get_text(as_object(decode_json(body), WHAT), "method", WHAT).upper() not in ("GET", "HEAD")


def check_forwarded(session: Session, names: ForwardedNames, body: bytes) -> None:
    """Raise unless the session has the rights that the permission table requires for the operation on the names of the request.

    Raises: NoSuchTable, NoSuchView, NoSuchNamespace: the object is hidden. Forbidden: a right is missing. BadRequest
    """
    operation = names.operation
    rule = None if operation is None else PERMISSIONS.get(operation.name)
    if operation is None or rule is None or rule.is_whole:
        raise Forbidden(f"The principal {session.client_id!r} has no right to do this. It needs `all` on the route.")
    if rule.is_open:
        check_names_in_body(session, operation.name, body)
        return
    for levels, name in names.spellings:
        check_rule(session, rule, levels, name)
        if operation.name == "updateTable":
            node = as_object(decode_json(body), WHAT)
            creates = makes_table(node)
            check_commit(session, levels, name or "", creates=creates)
            if node.get("identifier") is not None:
                # The path says which table it is, but a server may read the body's.
                *named, in_body = read_identifier(node["identifier"])
                check_commit(session, tuple(named), in_body, creates=creates)
        elif operation.name == "replaceView":
            if (found := as_object(decode_json(body), WHAT).get("identifier")) is not None:
                *named, in_body = read_identifier(found)
                check_rule(session, rule, tuple(named), in_body)
        elif operation.name == "signRequest":
            check_rule(session, PermissionRule(WRITE if signs_change(body) else READ), levels, name)


def check_names_in_body(session: Session, operation: str, body: bytes) -> None:
    """Raise unless the session has the rights on the names that only the body has; lists have none and are filtered."""
    if operation == "listNamespaces":
        return
    node = as_object(decode_json(body), WHAT)
    if operation == "createNamespace":
        check_creates_namespace(session, read_levels(node.get("namespace")))
    elif operation in ("renameTable", "renameView"):
        source, destination = (read_identifier(node.get(each)) for each in ("source", "destination"))
        check_rename(session, source, destination, NoSuchTable if operation == "renameTable" else NoSuchView)
    elif operation == "commitTransaction":
        for change in find_list(node, "table-changes", WHAT) or ():
            each = as_object(change, WHAT)
            *levels, name = read_identifier(each.get("identifier"))
            check_commit(session, tuple(levels), name, creates=makes_table(each))
    else:
        raise Forbidden(f"The principal {session.client_id!r} has no right to do this. It needs `all` on the route.")


def makes_table(node: Mapping[str, Any]) -> bool:
    """True if a commit makes its table: it asserts that there is none. Raises: BadRequest."""
    return any(as_object(each, WHAT).get("type") == "assert-create" for each in find_list(node, "requirements", WHAT) or ())


def read_identifier(node: object) -> Levels:
    """Return namespace and name of an identifier in a body as levels. Raises: BadRequest."""
    named = as_object(node, "identifier")
    return (*read_levels(named.get("namespace")), get_text(named, "name", "identifier"))


def read_levels(node: object) -> Levels:
    """Return the levels of a namespace in a body. Raises: BadRequest."""
    each = cast(list[object], node) if isinstance(node, list) else []
    found = tuple(level for level in each if isinstance(level, str) and level)
    if not found or len(found) != len(each):
        raise BadRequest("A namespace in the request is not a list of texts; send one level as one text.")
    return found


def may_have_keys(session: Session, names: ForwardedNames) -> bool:
    """True if the session may read and write the table that an answer's storage keys are for."""
    if names.name in CREATED or names.object_name is None:
        return KEYED in session.rights_on(names.levels)
    return all(name is not None and KEYED in session.rights_at(TABLE, levels, name) for levels, name in names.spellings)


def is_shown_object(session: Session, kind: str, levels: Levels, name: str) -> bool:
    """True if a list of tables or views shows an object to the session."""
    return session.rights_at(kind, levels, name) is not Rights.NONE


def check_parent(session: Session, parent: str, separator: str) -> None:
    """Raise NoSuchNamespace if the session sees nothing below the parent of a list of namespaces."""
    if parent and not session.shows(levels := split_namespace(parent, separator)):
        raise deny(NoSuchNamespace(f"Namespace does not exist: {'.'.join(levels)}"), levels)


async def build_route_session(context: ServerContext, bearer: Bearer | None, route: Route) -> Session:
    """Return a caller's rights in the catalog behind a route. `bearer` None: the server requires no authentication.

    Raises: ServiceUnavailable: the grants of the route's lake cannot be read
    """
    session = ANONYMOUS
    if bearer is not None:
        session = bearer.within_route(route.name, await list_policies(context, route), route.lake_name)
    return session if route.namespaces is None else session.limited_to(route.namespaces)


async def list_policies(context: ServerContext, route: Route) -> tuple[LakePolicy, ...]:
    """Return what gives rights over a route: the settings, and the grants of the route's lake."""
    lake = context.lakes.get(route.lake_name)
    found = None if lake is None or lake.policies is None else (await lake.policies.get()).routes.get(route.name)
    return (route.grants,) if found is None else (route.grants, found)


async def list_visible(context: ServerContext, bearer: Bearer | None) -> list[Upstream]:
    """Return the routes on which a caller has any right, by name. Raises: ServiceUnavailable."""
    upstreams = [] if context.gateway is None else [upstream for _, upstream in sorted(context.gateway.upstreams.items())]
    return [upstream for upstream in upstreams if sees_anything(await build_route_session(context, bearer, upstream.route))]


async def build_unknown_warehouse(context: ServerContext, bearer: Bearer | None, name: str) -> NoSuchWarehouse:
    """Return the error for a warehouse that is not served, or not to this caller. It names those that the caller may use."""
    names = sorted([*context.lakes, *(upstream.route.name for upstream in await list_visible(context, bearer))])
    return NoSuchWarehouse(f"Warehouse does not exist: {name[:64]!r}. You may use: {', '.join(names) or 'none'}.")


def sees_anything(session: Session) -> bool:
    """True if the session has any right in the catalog."""
    return any(grant.rights is not Rights.NONE for grant in session.grants.each) or bool(session.objects)


LISTED_KINDS: Mapping[str, str] = {"listTables": TABLE, "listViews": VIEW}
