"""Principals, roles and grants, managed over REST: by who may manage the warehouse; grants also by who manages what they are on."""

from typing import Annotated, Any

from fastapi import Path, Request, Response
from fastapi.responses import JSONResponse

from duckicelake.access.grants import Rights
from duckicelake.access.policy import NAMESPACE, TABLE, WAREHOUSE, Securable
from duckicelake.access.sessions import Session
from duckicelake.catalog.rules import changes
from duckicelake.catalog.rules.changes import Given, Lake, NewSecret
from duckicelake.errors import BadRequest, NoSuchNamespace, NoSuchTable, NoSuchView
from duckicelake.iceberg.encoding.json_body import decode_json
from duckicelake.iceberg.encoding.json_reader import as_object, find_list, get_text
from duckicelake.rest.auth.at import AtParam
from duckicelake.rest.auth.permissions import Rule, check_rule, check_whole
from duckicelake.rest.auth.record import find_asker
from duckicelake.rest.bodies import GrantsResponse, PrincipalSecret, PrincipalsResponse, RolesResponse
from duckicelake.rest.door import Door
from duckicelake.rest.page.rules import GIVEN, NAMED, PRINCIPAL
from duckicelake.rest.params import decode_segment
from duckicelake.rest.requests import Body, describe_body
from duckicelake.rest.served import Served

NO_STORE = {"Cache-Control": "no-store"}
WHAT = "request to manage rights"
PrincipalName = Annotated[str, Path(alias="principal", description="The principal's name.")]
RoleName = Annotated[str, Path(alias="role", description="The role's name.")]


class RuleRoutes:
    """Answers the operations that manage who may do what."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def operations(self) -> dict[str, Served]:
        """Return what this module serves."""
        secret: dict[int | str, dict[str, Any]] = {200: {"model": PrincipalSecret, "description": "The secret, shown this once."}}
        return {
            "listPrincipals": Served(self.list_principals),
            "addPrincipal": Served(self.add_principal, responses=secret, body=describe_body(PRINCIPAL)),
            "removePrincipal": Served(self.remove_principal, status=204),
            "rotatePrincipal": Served(self.rotate_principal, responses=secret),
            "listRoles": Served(self.list_roles),
            "addRole": Served(self.add_role, status=204, body=describe_body(NAMED)),
            "removeRole": Served(self.remove_role, status=204),
            "addMember": Served(self.add_member, status=204),
            "removeMember": Served(self.remove_member, status=204),
            "listGrants": Served(self.list_grants),
            "grant": Served(self.grant, status=204, body=describe_body(GIVEN)),
            "revoke": Served(self.revoke, status=204, body=describe_body(GIVEN)),
        }

    def list_principals(self, at: AtParam) -> PrincipalsResponse:
        """List the principals that the lake keeps; those of the server's settings are not among them."""
        found = changes.read_rulebook(self._door.get_lake(at.prefix).warehouse.lake).principals
        return {"principals": [{"name": name, "has-secret": has_secret} for name, has_secret in found]}

    def add_principal(self, request: Request, at: AtParam, body: Body) -> Response:
        """Add a principal; the answer holds its secret, which is kept nowhere."""
        node = as_object(decode_json(body), WHAT)
        name, has_secret = get_text(node, "name", WHAT), node.get("has-secret", True)
        if not isinstance(has_secret, bool):
            raise BadRequest(f"Cannot parse {WHAT}: has-secret is no boolean.")
        return show_secret(changes.add_principal(self._open(request, at, name), name, has_secret=has_secret))

    def remove_principal(self, request: Request, at: AtParam, name: PrincipalName) -> Response:
        """Remove a principal with all that it was granted; its tokens are worth nothing from now on."""
        told = decode_segment(name, "principal")
        changes.remove(self._open(request, at, told), told, is_role=False)
        return Response(status_code=204)

    def rotate_principal(self, request: Request, at: AtParam, name: PrincipalName) -> Response:
        """Give a principal another secret; the tokens of the old one are worth nothing from now on."""
        told = decode_segment(name, "principal")
        return show_secret(changes.rotate_principal(self._open(request, at, told), told))

    def list_roles(self, at: AtParam) -> RolesResponse:
        """List the roles and their members."""
        found = changes.read_rulebook(self._door.get_lake(at.prefix).warehouse.lake).roles
        return {"roles": [{"name": name, "members": list(members)} for name, members in found]}

    def add_role(self, request: Request, at: AtParam, body: Body) -> Response:
        """Add a role."""
        name = get_text(as_object(decode_json(body), WHAT), "name", WHAT)
        changes.add_role(self._open(request, at, f"role:{name}"), name)
        return Response(status_code=204)

    def remove_role(self, request: Request, at: AtParam, name: RoleName) -> Response:
        """Remove a role with all that it was granted."""
        told = decode_segment(name, "role")
        changes.remove(self._open(request, at, f"role:{told}"), told, is_role=True)
        return Response(status_code=204)

    def add_member(self, request: Request, at: AtParam, role: RoleName, name: PrincipalName) -> Response:
        """Let a principal join a role."""
        return self._change_member(request, at, (role, name), joins=True)

    def remove_member(self, request: Request, at: AtParam, role: RoleName, name: PrincipalName) -> Response:
        """Let a principal leave a role."""
        return self._change_member(request, at, (role, name), joins=False)

    def list_grants(self, at: AtParam) -> GrantsResponse:
        """List what is granted, on things as they are called now."""
        found = changes.read_rulebook(self._door.get_lake(at.prefix).warehouse.lake).grants
        return {"grants": [{"privileges": list(each.privileges), "on": each.on, "to": each.to} for each in found]}

    def grant(self, request: Request, at: AtParam, body: Body) -> Response:
        """Give privileges on something to a principal or a role."""
        return self._change_grants(request, at, body, gives=True)

    def revoke(self, request: Request, at: AtParam, body: Body) -> Response:
        """Take privileges on something from a principal or a role: from now on no answer is given by them."""
        return self._change_grants(request, at, body, gives=False)

    def _change_member(self, request: Request, at: AtParam, names: tuple[str, str], *, joins: bool) -> Response:
        role, name = decode_segment(names[0], "role"), decode_segment(names[1], "principal")
        changes.change_member(self._open(request, at, f"role:{role}", name), role, name, joins=joins)
        return Response(status_code=204)

    def _change_grants(self, request: Request, at: AtParam, body: bytes, *, gives: bool) -> Response:
        given = parse_given(body)
        check_manages(at.session, changes.read_given(given)[0])
        changes.change_grants(self._open(request, at, *changes.name_objects(given)), given, gives=gives)
        return Response(status_code=204)

    def _open(self, request: Request, at: AtParam, *objects: str) -> Lake:
        return changes.with_asker(self._door.get_lake(at.prefix).warehouse.lake, find_asker(request.scope), objects)


def parse_given(body: bytes) -> Given:
    """Return what a body says of grants. Raises: BadRequest."""
    node = as_object(decode_json(body), WHAT)
    privileges = [text if isinstance(text, str) else "" for text in find_list(node, "privileges", WHAT) or ()]
    return Given(privileges, get_text(node, "on", WHAT), get_text(node, "to", WHAT))


def check_manages(session: Session, what: Securable) -> None:
    """Raise unless the session may say who has rights on that.

    Raises: Forbidden. NoSuchNamespace, NoSuchTable, NoSuchView: it is hidden
    """
    if what.kind == WAREHOUSE:
        check_whole(session)
    elif what.kind == NAMESPACE:
        check_rule(session, Rule(Rights.MANAGE, NoSuchNamespace), what.levels)
    else:
        hides = NoSuchTable if what.kind == TABLE else NoSuchView
        check_rule(session, Rule(Rights.MANAGE, hides), what.levels[:-1], what.levels[-1])


def show_secret(made: NewSecret) -> Response:
    """Return the answer that shows a secret, which nobody keeps on its way."""
    told: PrincipalSecret = {"name": made.name, "secret": made.secret}
    return JSONResponse(dict(told), headers=NO_STORE)
