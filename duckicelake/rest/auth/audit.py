"""Audit data of a request: principal, operation and object; the entries for denied requests, in the log and in the lakes; and reads.

The layers and error handlers call it on the event loop, also for requests that never reach the router; handlers call `describe_request`
and `note_answer` there and on worker threads. Denials are logged at once; those and counted reads stay in memory until a thread of the
audit log writes them to Postgres.
"""

from dataclasses import replace

from starlette.types import Scope

from duckicelake.access.grants import format_object
from duckicelake.access.sessions import Session
from duckicelake.catalog.audit_log import DENIED, HIDDEN, UNPROVEN, AuditContext, AuditLine, log_line
from duckicelake.catalog.records.reads import ReadAnswer, ReadContext
from duckicelake.errors import BadRequest, CatalogError, Forbidden, NotAuthorized
from duckicelake.rest.context import ServerContext
from duckicelake.rest.errors import UNROUTED
from duckicelake.rest.operations import ALL_OPERATIONS, Operation
from duckicelake.rest.params import decode_segment, split_levels

NAMING = ("{namespace}", "{table}", "{view}", "{function}")
TEMPLATES = tuple((operation, operation.path.split("/")) for operation in ALL_OPERATIONS)
BY_NAME = {operation.name: operation for operation in ALL_OPERATIONS}
LONGEST_OBJECT, LONGEST_DENIED = 4096, 256
MANAGING, PREFIX_PART, MANAGED_PART = b"management", 2, 3
REPOSITORIES, REPOSITORY_PARTS = b"repositories", (b"refs", b"diff", b"merges", b"reverts", b"branches", b"tags")


def find_operation(scope: Scope) -> Operation | None:
    """Return the operation of a request, even if it did not reach the router; None if there is none."""
    routed = BY_NAME.get(getattr(scope.get("route"), "operation_id", None) or "")
    if routed is not None and routed.method == scope["method"]:
        return routed
    parts = split_path(scope)
    for operation, wanted in TEMPLATES:
        if operation.method == scope["method"] and len(wanted) == len(parts):
            if all(want == part or want.startswith("{") for want, part in zip(wanted, parts, strict=True)):
                return operation
    return None


def parse_prefix(raw_path: bytes) -> str:
    """Return the warehouse that a path names, or an empty string."""
    parts = raw_path.split(b"/", 6)
    place = MANAGED_PART if parts[1:2] == [MANAGING] else PREFIX_PART
    if place == MANAGED_PART and parts[place : place + 1] == [REPOSITORIES] and parts[place + 2 : place + 3] != []:
        place += parts[place + 2] in REPOSITORY_PARTS
    part = parts[place] if len(parts) > place else b""
    try:
        return part.decode("latin-1") if b"%" not in part and b"+" not in part else decode_segment(part.decode("latin-1"), "prefix")
    except BadRequest:
        return ""


def split_path(scope: Scope) -> list[str]:
    """Return the percent-encoded segments of a path."""
    raw_path: bytes = scope.get("raw_path") or b""
    return raw_path.decode("latin-1").split("/")


def list_objects(scope: Scope, operation: Operation | None) -> tuple[str, ...]:
    """Return the namespace, table or view that a path names, formatted for the audit log; empty if it names no valid object."""
    if operation is None:
        return ()
    found: list[str] = []
    try:
        for want, part in zip(operation.path.split("/"), split_path(scope), strict=True):
            if want in NAMING:
                decoded = decode_segment(part, "name")
                found += split_levels(decoded) if want == NAMING[0] else [decoded]
    except BadRequest:
        return ()
    return (format_object(tuple(found))[:LONGEST_OBJECT],) if found else ()


def describe_request(scope: Scope) -> AuditContext:
    """Return the audit data of a request: its id, principal, operation, and the object of its path."""
    operation = find_operation(scope)
    session: Session | None = scope.get("session")
    name = UNROUTED if operation is None else operation.name
    return AuditContext(scope["request_id"], None if session is None else session.client_id, name, list_objects(scope, operation))


def audit_error(context: ServerContext, scope: Scope, error: CatalogError) -> None:
    """Write an audit entry if the error is a denial."""
    audit_context = describe_request(scope)
    if error.denied is not None:
        audit_context = replace(audit_context, objects=(error.denied,))
    if isinstance(error, Forbidden):
        audit_denial(context, scope, AuditLine(audit_context, DENIED, reason=type(error).__name__))
    elif isinstance(error, NotAuthorized):
        audit_denial(context, scope, AuditLine(audit_context, UNPROVEN, reason=type(error).__name__))
    elif error.denied is not None:
        audit_denial(context, scope, AuditLine(audit_context, HIDDEN, reason=type(error).__name__))


def audit_denial(context: ServerContext, scope: Scope, line: AuditLine) -> None:
    """Log a denial and queue it for the audit log of the path's lake, or of every lake if the path names none.

    The entry of an unauthenticated request holds no object names: the client could send any text, of any length.
    """
    objects = () if line.outcome == UNPROVEN else tuple(shorten(name) for name in line.audit_context.objects)
    line = replace(line, audit_context=replace(line.audit_context, objects=objects))
    log_line(line)
    named = context.find_lake(parse_prefix(scope.get("raw_path") or b""))
    for lake in context.lakes.values() if named is None else (named,):
        if lake.audit_log is not None:
            lake.audit_log.note(line)


def shorten(name: str) -> str:
    """Return a name cut to the length that a denial may have; the ellipsis at the end occurs in no name."""
    return name if len(name) <= LONGEST_DENIED else f"{name[:LONGEST_DENIED]}…"


def note_read(context: ServerContext, scope: Scope, principal: str | None, address: str | None) -> None:
    """Count an answered read for the audit log of its lake. Runs on the event loop, also for cached loads, so it does little."""
    scope = {**scope, **scope["served"]} if "served" in scope else scope
    answer: ReadAnswer | None = scope.get("read_answer")
    raw_path: bytes = scope.get("raw_path") or b""
    name = None if answer is None else answer.lake_name
    lake = context.find_lake(parse_prefix(raw_path) if name is None else name)
    if lake is None or lake.audit_log is None or not lake.audit_log.reads.is_chosen():
        return
    reads, key = lake.audit_log.reads, (scope["method"], raw_path, principal, address, answer)
    if not reads.count_again(key):
        reads.count_first(key, describe_read(scope))


def describe_read(scope: Scope) -> ReadContext:
    """Return what is written of a read besides its key."""
    operation = find_operation(scope)
    objects = list_objects(scope, operation)
    return ReadContext(scope["request_id"], UNROUTED if operation is None else operation.name, objects[0] if objects else None)


def note_answer(scope: Scope, answer: ReadAnswer) -> None:
    """Keep what the answer to a request shows, for the audit of reads."""
    scope["read_answer"] = answer
