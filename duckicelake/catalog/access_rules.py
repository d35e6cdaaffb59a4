"""Principals, roles and grants of a lake: changed and listed for the command line and REST, and read as the policy of every request.

A server calls this on worker threads, `read_policy` too: `app` gives it to the cache of policies, which calls it when the rules have
changed. Each change, its audit entry and its row in `iceberg_change`, by which other servers notice it, are one
transaction. A change that may take a right away also ends the read-only DuckLake accounts of its principals, and a second transaction
refuses the DuckDB sessions of such accounts that began before. Each read is one read transaction. The store is not touched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar
from uuid import UUID

import psycopg

from duckicelake.access.clients import Client, make_secret
from duckicelake.access.grants import NO_GRANTS, BadGrant, Grant, Grants, Levels, Rights, fold_levels, format_object
from duckicelake.access.policy import (
    BRANCH,
    NAMESPACE,
    PRIVILEGES,
    ROUTE,
    TABLE,
    WAREHOUSE,
    BranchGrant,
    Grantee,
    HeldRights,
    LakePolicy,
    Securable,
    build_held,
    build_object_key,
    is_issuer_name,
    join_rights,
    parse_grantee,
    parse_name,
    parse_privileges,
    parse_securable,
    to_rights,
)
from duckicelake.catalog.namespaces import find_schema, format_levels
from duckicelake.catalog.tables import Ident, get_table
from duckicelake.catalog.views import get_view
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import AlreadyExists, BadRequest, NoSuchNamespace, NotFound
from duckicelake.lake import access_rules
from duckicelake.lake.access_rules import GrantRow, PrincipalRow, RuleRows, is_protected, read_rules
from duckicelake.lake.audit_log import AuditContext
from duckicelake.lake.connect import Lake, reading
from duckicelake.lake.rows import Position
from duckicelake.lake.writing.registration import find_live_table_name
from duckicelake.translate.namespaces import to_levels

WAREHOUSE_UUID = UUID(int=0)
IN_ROUTE = f"{ROUTE}:"
"""The beginning of the kind of a grant on another catalog, or on an object of it."""
OF_BRANCHES = f"{BRANCH}:"
"""The beginning of the kind of a grant on branches."""


@dataclass(frozen=True, slots=True)
class GrantText:
    """Privileges on an object and their grantee, in the texts of the command line and of REST."""

    privileges: Sequence[str]
    on: str
    to: str


@dataclass(frozen=True, slots=True)
class NewSecret:
    """A principal with the secret that it was just given: it is shown once. None: it says elsewhere who it is."""

    name: str
    secret: str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The stored rules: principals and if they have a secret, roles with their members, and grants."""

    principals: Sequence[tuple[str, bool]]
    roles: Sequence[tuple[str, Sequence[str]]]
    grants: Sequence[GrantText]


def add_principal(lake: Lake, name: str, *, has_secret: bool = True) -> NewSecret:
    """Add a principal. Raises: AlreadyExists. BadRequest: it cannot be called so, or can have no secret."""
    named = _parse_grantee(name, "principal")
    if has_secret:
        _check_may_have_secret(named.name)
    secret, hashed = make_secret()
    kept = hashed if has_secret else None
    if not access_rules.change_rules(
        lake, lambda conn: access_rules.insert_principal(conn, named.name, kept, is_role=False), may_revoke=False
    ):
        raise AlreadyExists(f"Principal already exists: {named.name}")
    return NewSecret(named.name, secret if has_secret else None)


def rotate_principal(lake: Lake, name: str) -> NewSecret:
    """Give a principal another secret; its tokens end with the old one. Raises: NotFound. BadRequest: it can have none."""
    _check_may_have_secret(name)
    secret, hashed = make_secret()
    if not access_rules.change_rules(lake, lambda conn: access_rules.update_secret(conn, name, hashed)):
        raise NotFound(f"Principal does not exist: {name[:128]}")
    return NewSecret(name, secret)


def add_role(lake: Lake, name: str) -> None:
    """Add a role. Raises: AlreadyExists. BadRequest: it cannot be called so."""
    named = _parse_grantee(name, "role")
    if not access_rules.change_rules(
        lake, lambda conn: access_rules.insert_principal(conn, named.name, None, is_role=True), may_revoke=False
    ):
        raise AlreadyExists(f"Role already exists: {named.name}")


def remove_grantee(lake: Lake, name: str, *, is_role: bool) -> None:
    """Remove a principal or a role, with all that it was granted. Raises: NotFound."""

    def act(conn: psycopg.Connection) -> bool:
        access_rules.delete_principal(conn, _get_id(conn, _to_grantee(name, is_role=is_role)))
        return True

    access_rules.change_rules(lake, act)


def change_member(lake: Lake, role: str, principal: str, *, joins: bool) -> None:
    """Let a principal join or leave a role; nothing happens when it is so already. Raises: NotFound."""

    def act(conn: psycopg.Connection) -> bool:
        role_id = _get_id(conn, _to_grantee(role, is_role=True))
        return access_rules.change_member(conn, role_id, _get_id(conn, _to_grantee(principal, is_role=False)), joins=joins)

    access_rules.change_rules(lake, act, may_revoke=not joins)


def change_grants(lake: Lake, given: GrantText, *, gives: bool) -> None:
    """Give or take privileges; nothing happens when it is so already.

    Raises: BadRequest: a text cannot be parsed. NotFound: no principal or role has that name. NoSuchNamespace, NoSuchTable, NoSuchView
    """
    what, privileges, to = parse_grant_text(given)

    def act(conn: psycopg.Connection) -> bool:
        known = what.stored_kind, _get_uuid(conn, what, alone=gives)
        return access_rules.change_grants(conn, _get_id(conn, to), known, privileges, gives=gives)

    access_rules.change_rules(lake, act, may_revoke=not gives)


def parse_grant_text(given: GrantText) -> tuple[Securable, Sequence[str], Grantee]:
    """Parse the texts of a grant. Raises: BadRequest."""
    try:
        what = parse_securable(given.on)
        return what, parse_privileges(given.privileges, what.kind), parse_grantee(given.to)
    except BadGrant as error:
        raise BadRequest(error.message) from error


def read_access_rules(lake: Lake) -> AccessRules:
    """Return all stored rules; of the grants, those on existing objects."""
    with reading(lake) as conn:
        rows = read_rules(conn)
    known = {row.principal_id: Grantee(row.name, row.is_role) for row in rows.principals}
    members = {row.principal_id: list[str]() for row in rows.principals if row.is_role}
    for member in rows.members:
        if member.role_id in members and member.principal_id in known:
            members[member.role_id].append(known[member.principal_id].name)
    grants: dict[tuple[str, str], list[str]] = {}
    for grant in rows.grants:
        if grant.principal_id in known:
            grants.setdefault((str(known[grant.principal_id]), str(_to_securable(grant))), []).append(grant.privilege)
    return AccessRules(
        [(row.name, row.secret is not None) for row in rows.principals if not row.is_role],
        [(known[role_id].name, sorted(names)) for role_id, names in members.items()],
        [GrantText(sorted(privileges), on, to) for (to, on), privileges in sorted(grants.items())],
    )


def _to_securable(row: GrantRow) -> Securable:
    if row.kind.startswith((IN_ROUTE, OF_BRANCHES)):
        return parse_securable(row.kind)
    levels = () if row.schema_name is None else to_levels(row.schema_name)
    return Securable(row.kind, levels if row.name is None else (*levels, row.name))


def _check_may_have_secret(name: str) -> None:
    """Raise BadRequest for a name that only an issuer gives: a secret would let its holder act as that principal."""
    if is_issuer_name(name):
        raise BadRequest(f"The principal {name[:100]!r} is known by its issuer's tokens and can have no secret here; add it without one.")


def _parse_grantee(name: str, what: str) -> Grantee:
    try:
        return Grantee(parse_name(name, what), is_role=what == "role")
    except BadGrant as error:
        raise BadRequest(error.message) from error


def _to_grantee(name: str, *, is_role: bool) -> Grantee:
    """Return the grantee of a text in its stored spelling; look for an invalid name unchanged."""
    try:
        return Grantee(parse_name(name, "name"), is_role)
    except BadGrant:
        return Grantee(name, is_role)


def _get_id(conn: psycopg.Connection, grantee: Grantee) -> int:
    found = access_rules.find_principal_id(conn, grantee.name, is_role=grantee.is_role)
    if found is None:
        raise NotFound(f"{'Role' if grantee.is_role else 'Principal'} does not exist: {grantee.name[:128]}")
    return found


def _get_uuid(conn: psycopg.Connection, what: Securable, *, alone: bool) -> UUID:
    """Return the uuid that grants refer to. With `alone`, refuse a uuid that two tables share: a grant could not distinguish them."""
    if not what.has_uuid:
        return WAREHOUSE_UUID
    if what.kind == NAMESPACE:
        schema = find_schema(conn, what.levels)
        if schema is None:
            raise NoSuchNamespace(f"Namespace does not exist, or only those nested in it: {format_levels(what.levels)}")
        return access_rules.read_schema_uuid(conn, schema.schema_id)
    ident = Ident(what.levels[:-1], what.levels[-1])
    if what.kind != TABLE:
        return get_view(conn, ident).view_uuid
    table = get_table(conn, ident)
    if alone and find_live_table_name(conn, table.table_uuid, table.table_id) is not None:
        raise BadRequest(f"Another table has the uuid of {ident}, {table.table_uuid}; grant on the namespace, or recreate one of them.")
    return table.table_uuid


def with_asker(lake: Lake, audit_context: AuditContext, objects: Sequence[str]) -> Lake:
    """Return the lake with the caller and the objects that the audit log will name."""
    return replace(lake, audit_context=replace(audit_context, objects=tuple(objects)))


def list_audit_objects(given: GrantText) -> tuple[str, ...]:
    """Return the grantee and the object that the audit log names for a change of grants. Raises: BadRequest."""
    what, _, to = parse_grant_text(given)
    return (str(to), format_object(what.levels) if what.has_uuid else what.stored_kind)


Key = TypeVar("Key")


def read_policy(warehouse: Warehouse) -> tuple[LakePolicy, Position]:
    """Return the policy of a lake and the position that it was read at."""
    with reading(warehouse.lake) as conn:
        rows = read_rules(conn)
        policy = to_policy(warehouse.name, rows)
        return replace(policy, is_protected=is_protected(conn)), rows.position


def to_policy(lake_name: str, rows: RuleRows) -> LakePolicy:
    """Return the rows as a policy; rows of an unknown kind give no right."""
    principals = [row for row in rows.principals if not row.is_role]
    roles = {row.principal_id for row in rows.principals if row.is_role}
    granted: dict[int, list[GrantRow]] = {}
    for grant in rows.grants:
        granted.setdefault(grant.principal_id, []).append(grant)
    joined: dict[int, list[GrantRow]] = {row.principal_id: list(granted.get(row.principal_id, ())) for row in principals}
    for member in rows.members:
        if member.role_id in roles and member.principal_id in joined:
            joined[member.principal_id] += granted.get(member.role_id, ())
    accounts = {row.name: to_account(lake_name, row) for row in principals if row.secret is not None and not is_issuer_name(row.name)}
    held = {row.name: to_object_rights(joined[row.principal_id]) for row in principals}
    of_roles = {row.name: granted.get(row.principal_id, ()) for row in rows.principals if row.is_role}
    of_principals = {row.name: joined[row.principal_id] for row in principals}
    return LakePolicy(
        accounts,
        held,
        {name: to_object_rights(grants) for name, grants in of_roles.items()},
        {
            route: LakePolicy(held=to_route_rights(route, of_principals), roles=to_route_rights(route, of_roles))
            for route in {parse_securable(row.kind).route for row in rows.grants if row.kind.startswith(IN_ROUTE)}
        },
    )


def to_route_rights(route: str, granted: Mapping[str, Sequence[GrantRow]]) -> dict[str, HeldRights]:
    """Return the rights that grants give in the catalog behind a route, by the name of the principal or role."""
    found: dict[str, HeldRights] = {}
    for name, rows in granted.items():
        named = [(parse_securable(row.kind), row.privilege) for row in rows if row.kind.startswith(IN_ROUTE)]
        each = [build_held(what, to_rights(privilege, what.kind)) for what, privilege in named if what.route == route]
        if each:
            found[name] = join_rights(*each)
    return found


def to_account(lake_name: str, row: PrincipalRow) -> Client:
    """Return a principal with its secret; another secret, or another principal of the name, has another origin."""
    return Client(row.name, row.secret or "", NO_GRANTS, f"{lake_name}/{row.principal_id}.{row.secret_number}")


def to_object_rights(rows: Sequence[GrantRow]) -> HeldRights:
    """Return the rights that grants give."""
    spaces: dict[Levels, Rights] = {}
    objects: dict[tuple[str, Levels], Rights] = {}
    branches: dict[str, Rights] = {}
    for row in rows:
        if row.kind.startswith(OF_BRANCHES):
            add_rights(branches, row.kind.removeprefix(OF_BRANCHES), PRIVILEGES.get(row.privilege, Rights.NONE))
            continue
        rights = to_rights(row.privilege, row.kind)
        levels = () if row.schema_name is None else to_levels(row.schema_name)
        if row.kind in (WAREHOUSE, NAMESPACE):
            add_rights(spaces, fold_levels(levels), rights)
        elif row.name is not None:
            add_rights(objects, build_object_key(row.kind, (*levels, row.name)), rights)
    grants = Grants(tuple(Grant(levels, rights) for levels, rights in spaces.items()))
    return HeldRights(grants, objects, tuple(BranchGrant(pattern, rights) for pattern, rights in branches.items()))


def add_rights(found: dict[Key, Rights], key: Key, rights: Rights) -> None:
    """Add rights to those that are found already; none are none."""
    if rights is not Rights.NONE:
        found[key] = found.get(key, Rights.NONE) | rights
