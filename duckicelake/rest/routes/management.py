"""Handlers for principals, roles and grants, and for what is recorded: events, reads and reports of clients.

All need `manage` on the warehouse, but grants on an object and reports of a table only `manage` on that. All run on worker threads.
`catalog` reads Postgres, and writes each change with its audit line.
"""

import re
from typing import Annotated, Any

from fastapi import Path, Query, Request, Response
from fastapi.responses import JSONResponse

from duckicelake.access.grants import Rights
from duckicelake.access.policy import NAMESPACE, TABLE, Securable
from duckicelake.access.sessions import Session
from duckicelake.catalog import access_rules
from duckicelake.catalog.access_rules import GrantText, Lake, NewSecret
from duckicelake.catalog.events import MOST_EVENTS, parse_cursor, read_events
from duckicelake.catalog.records.client_reports import MOST_REPORTS, encode_report, list_reports, summarize_reports
from duckicelake.catalog.records.reads import MOST_READS, WantedReads, encode_read, list_reads
from duckicelake.catalog.tables import Ident
from duckicelake.errors import BadRequest, NoSuchNamespace, NoSuchTable, NoSuchView, NoSuchWarehouse, NotServed
from duckicelake.iceberg.json_reader import as_object, decode_json, find_list, get_text
from duckicelake.rest.auth.audit import describe_request
from duckicelake.rest.auth.permissions import PermissionRule, check_manages_warehouse, check_rule
from duckicelake.rest.context import ServerContext, Target
from duckicelake.rest.openapi import GRANT, PRINCIPAL, ROLE
from duckicelake.rest.operations import OperationHandler
from duckicelake.rest.params import Levels, Prefix, TableName, decode_page_token, decode_segment, encode_page_token
from duckicelake.rest.request_bodies import Body, describe_body
from duckicelake.rest.response_bodies import (
    GrantsResponse,
    ListEventsResponse,
    ListReadsResponse,
    ListReportsResponse,
    PrincipalSecret,
    PrincipalsResponse,
    RolesResponse,
)

NO_STORE = {"Cache-Control": "no-store"}
WHAT = "request to manage rights"
PrincipalName = Annotated[str, Path(alias="principal", description="The principal's name.")]
RoleName = Annotated[str, Path(alias="role", description="The role's name.")]


class ManagementRoutes:
    """Handlers of the management operations."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        secret: dict[int | str, dict[str, Any]] = {200: {"model": PrincipalSecret, "description": "The secret, shown this once."}}
        return {
            "listPrincipals": OperationHandler(self.list_principals),
            "addPrincipal": OperationHandler(self.add_principal, responses=secret, body=describe_body(PRINCIPAL)),
            "removePrincipal": OperationHandler(self.remove_principal, status=204),
            "rotatePrincipal": OperationHandler(self.rotate_principal, responses=secret),
            "listRoles": OperationHandler(self.list_roles),
            "addRole": OperationHandler(self.add_role, status=204, body=describe_body(ROLE)),
            "removeRole": OperationHandler(self.remove_role, status=204),
            "addMember": OperationHandler(self.add_member, status=204),
            "removeMember": OperationHandler(self.remove_member, status=204),
            "listGrants": OperationHandler(self.list_grants),
            "grant": OperationHandler(self.grant, status=204, body=describe_body(GRANT)),
            "revoke": OperationHandler(self.revoke, status=204, body=describe_body(GRANT)),
        }

    def list_principals(self, target: Target) -> PrincipalsResponse:
        """List the principals that are stored in the lake; those of the server's settings are not among them."""
        found = access_rules.read_access_rules(self._context.get_repository(target.prefix).warehouse.lake).principals
        return {"principals": [{"name": name, "has-secret": has_secret} for name, has_secret in found]}

    def add_principal(self, request: Request, target: Target, body: Body) -> Response:
        """Add a principal. The response holds its secret, which is not stored."""
        node = as_object(decode_json(body), WHAT)
        name, has_secret = get_text(node, "name", WHAT), node.get("has-secret", True)
        if not isinstance(has_secret, bool):
            raise BadRequest(f"Cannot parse {WHAT}: has-secret is no boolean.")
        return build_secret_response(access_rules.add_principal(self._open(request, target, name), name, has_secret=has_secret))

    def remove_principal(self, request: Request, target: Target, name: PrincipalName) -> Response:
        """Remove a principal and its grants. Its tokens become invalid at once."""
        decoded_name = decode_segment(name, "principal")
        access_rules.remove_grantee(self._open(request, target, decoded_name), decoded_name, is_role=False)
        return Response(status_code=204)

    def rotate_principal(self, request: Request, target: Target, name: PrincipalName) -> Response:
        """Replace a principal's secret. Tokens of the old secret become invalid at once."""
        decoded_name = decode_segment(name, "principal")
        return build_secret_response(access_rules.rotate_principal(self._open(request, target, decoded_name), decoded_name))

    def list_roles(self, target: Target) -> RolesResponse:
        """List the roles and their members."""
        found = access_rules.read_access_rules(self._context.get_repository(target.prefix).warehouse.lake).roles
        return {"roles": [{"name": name, "members": list(members)} for name, members in found]}

    def add_role(self, request: Request, target: Target, body: Body) -> Response:
        """Add a role."""
        name = get_text(as_object(decode_json(body), WHAT), "name", WHAT)
        access_rules.add_role(self._open(request, target, f"role:{name}"), name)
        return Response(status_code=204)

    def remove_role(self, request: Request, target: Target, name: RoleName) -> Response:
        """Remove a role and its grants."""
        decoded_name = decode_segment(name, "role")
        access_rules.remove_grantee(self._open(request, target, f"role:{decoded_name}"), decoded_name, is_role=True)
        return Response(status_code=204)

    def add_member(self, request: Request, target: Target, role: RoleName, name: PrincipalName) -> Response:
        """Add a principal to a role."""
        return self._change_member(request, target, (role, name), joins=True)

    def remove_member(self, request: Request, target: Target, role: RoleName, name: PrincipalName) -> Response:
        """Remove a principal from a role."""
        return self._change_member(request, target, (role, name), joins=False)

    def list_grants(self, target: Target) -> GrantsResponse:
        """List the grants, on objects by their present names."""
        found = access_rules.read_access_rules(self._context.get_repository(target.prefix).warehouse.lake).grants
        return {"grants": [{"privileges": list(each.privileges), "on": each.on, "to": each.to} for each in found]}

    def grant(self, request: Request, target: Target, body: Body) -> Response:
        """Grant privileges on an object to a principal or a role."""
        return self._change_grants(request, target, body, gives=True)

    def revoke(self, request: Request, target: Target, body: Body) -> Response:
        """Revoke privileges on an object from a principal or a role, with effect from the next request."""
        return self._change_grants(request, target, body, gives=False)

    def _change_member(self, request: Request, target: Target, names: tuple[str, str], *, joins: bool) -> Response:
        role, name = decode_segment(names[0], "role"), decode_segment(names[1], "principal")
        access_rules.change_member(self._open(request, target, f"role:{role}", name), role, name, joins=joins)
        return Response(status_code=204)

    def _change_grants(self, request: Request, target: Target, body: bytes, *, gives: bool) -> Response:
        given = parse_grant(body)
        what = access_rules.parse_grant_text(given)[0]
        check_manages(target.session, what)
        if what.route and gives:
            self._check_route(what.route, target.prefix)
        access_rules.change_grants(self._open(request, target, *access_rules.list_audit_objects(given)), given, gives=gives)
        return Response(status_code=204)

    def _check_route(self, name: str, prefix: str) -> None:
        """Raise NoSuchWarehouse unless there is a route of that name that takes accounts of the lake."""
        gateway, lake = self._context.gateway, self._context.get_repository(prefix)
        upstream = None if gateway is None else gateway.upstreams.get(name)
        if upstream is None or upstream.route.lake_name != lake.prefix:
            raise NoSuchWarehouse(f"There is no route {name!r} for accounts of {lake.prefix!r}; the settings name routes, and their lakes.")

    def _open(self, request: Request, target: Target, *objects: str) -> Lake:
        return access_rules.with_asker(self._context.get_repository(target.prefix).warehouse.lake, describe_request(request.scope), objects)


def parse_grant(body: bytes) -> GrantText:
    """Return the grant that a body describes. Raises: BadRequest."""
    node = as_object(decode_json(body), WHAT)
    privileges = [text if isinstance(text, str) else "" for text in find_list(node, "privileges", WHAT) or ()]
    return GrantText(privileges, get_text(node, "on", WHAT), get_text(node, "to", WHAT))


def check_manages(session: Session, what: Securable) -> None:
    """Raise unless the session may grant privileges on an object.

    Raises: Forbidden: a right is missing. NoSuchNamespace, NoSuchTable, NoSuchView: the object is hidden
    """
    if not what.has_uuid:
        check_manages_warehouse(session)
    elif what.kind == NAMESPACE:
        check_rule(session, PermissionRule(Rights.MANAGE, NoSuchNamespace), what.levels)
    else:
        hides = NoSuchTable if what.kind == TABLE else NoSuchView
        check_rule(session, PermissionRule(Rights.MANAGE, hides), what.levels[:-1], what.levels[-1])


def build_secret_response(made: NewSecret) -> Response:
    """Return the response with a new secret, which no cache may store."""
    decoded_name: PrincipalSecret = {"name": made.name, "secret": made.secret}
    return JSONResponse(dict(decoded_name), headers=NO_STORE)


PLACE = re.compile(r"\d{1,18}", re.ASCII)
LONGEST_NAME = 4096
FEW_EVENTS = 100
LONGEST_CURSOR = 40


class RecordRoutes:
    """Handlers of what is recorded of a lake: its events, who read it, and what clients report."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def operations(self) -> dict[str, OperationHandler]:
        """Return the handlers by operation name."""
        return {
            "listEvents": OperationHandler(self.list_events),
            "listReads": OperationHandler(self.list_reads),
            "listReports": OperationHandler(self.list_reports),
        }

    def list_events(
        self,
        target: Target,
        after: Annotated[str | None, Query(max_length=LONGEST_CURSOR, description="The cursor of the last page, if any.")] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_EVENTS, description="At most so many events.")] = FEW_EVENTS,
    ) -> ListEventsResponse:
        """List what the lake snapshots after a cursor changed, in order, as CloudEvents."""
        lake = self._context.get_lake(target.prefix)
        if lake.repository:
            raise NotServed(f"A branch has no events: its merge makes events on the lake. Ask the lake {lake.repository!r}.")
        page = read_events(lake.warehouse, None if after is None else parse_cursor(after), limit)
        return {"events": [dict(event) for event in page.events], "cursor": page.cursor, "is-last": page.is_last}

    def list_reads(
        self,
        target: Target,
        name: Annotated[
            str | None, Query(alias="object", max_length=LONGEST_NAME, description="Only reads of this table, view or function: a.b.t.")
        ] = None,
        principal: Annotated[str | None, Query(max_length=LONGEST_NAME, description="Only reads of this principal.")] = None,
        page_token: Annotated[str, Query(alias="pageToken", description="Where the previous page ended; empty: the first page.")] = "",
        page_size: Annotated[int, Query(alias="pageSize", ge=1, le=MOST_READS, description="At most so many.")] = FEW_EVENTS,
    ) -> ListReadsResponse:
        """List the audited reads of a lake and its branches, those that were written last first."""
        warehouse = self._context.get_repository(target.prefix).warehouse
        page = list_reads(warehouse, page_size, parse_place(page_token), WantedReads(name, principal))
        token = None if page.before is None else encode_page_token((str(page.before),))
        return {"reads": [dict(encode_read(read)) for read in page.reads], "next-page-token": token}

    def list_reports(
        self,
        prefix: Prefix,
        levels: Levels,
        name: TableName,
        page_token: Annotated[str, Query(alias="pageToken", description="Where the previous page ended; empty: the first page.")] = "",
        page_size: Annotated[int, Query(alias="pageSize", ge=1, le=MOST_REPORTS, description="At most so many.")] = FEW_EVENTS,
    ) -> ListReportsResponse:
        """List what clients reported of their scans of a table and commits to it, the newest first; the first page has sums over all."""
        warehouse, ident, before = self._context.get_lake(prefix).warehouse, Ident(levels, name), parse_place(page_token)
        page = list_reports(warehouse, ident, page_size, before)
        summary = dict(summarize_reports(warehouse, ident)) if before is None else None
        token = None if page.before is None else encode_page_token((str(page.before),))
        return {"summary": summary, "reports": [dict(encode_report(each)) for each in page.reports], "next-page-token": token}


def parse_place(page_token: str) -> int | None:
    """Return the number that a page begins below, None for the first page. Raises: BadRequest."""
    if not page_token:
        return None
    place = decode_page_token(page_token)
    if len(place) != 1 or not PLACE.fullmatch(place[0]):
        raise BadRequest("The pageToken is not one that this catalog gave out.")
    return int(place[0])
