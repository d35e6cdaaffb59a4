"""A lake's rows of principals and grants as the policy that decisions are made by."""

from collections.abc import Sequence
from typing import TypeVar

from duckicelake.access.clients import Client
from duckicelake.access.grants import NO_GRANTS, Grant, Grants, Levels, Rights, fold_levels
from duckicelake.access.policy import NAMESPACE, WAREHOUSE, HeldRights, LakePolicy, build_object_key, is_issuer_name, to_rights
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.lake.connect import reading
from duckicelake.lake.grants.read import GrantRow, PrincipalRow, RuleRows, read_rules
from duckicelake.lake.rows import Position
from duckicelake.translate.namespaces import to_levels

Key = TypeVar("Key")


def read_policy(warehouse: Warehouse) -> tuple[LakePolicy, Position]:
    """Return who may do what in a lake, and the position that says so."""
    with reading(warehouse.lake) as conn:
        rows = read_rules(conn)
    return to_policy(warehouse.name, rows), rows.position


def to_policy(lake_name: str, rows: RuleRows) -> LakePolicy:
    """Return the rows as a policy; what nobody knows how to read of them gives no right."""
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
    held = {row.name: to_held(joined[row.principal_id]) for row in principals}
    return LakePolicy(accounts, held, {row.name: to_held(granted.get(row.principal_id, ())) for row in rows.principals if row.is_role})


def to_account(lake_name: str, row: PrincipalRow) -> Client:
    """Return a principal with its secret; another secret, or another principal of the name, has another origin."""
    return Client(row.name, row.secret or "", NO_GRANTS, f"{lake_name}/{row.principal_id}.{row.secret_number}")


def to_held(rows: Sequence[GrantRow]) -> HeldRights:
    """Return what some grants give."""
    spaces: dict[Levels, Rights] = {}
    objects: dict[tuple[str, Levels], Rights] = {}
    for row in rows:
        rights = to_rights(row.privilege, row.kind)
        levels = () if row.schema_name is None else to_levels(row.schema_name)
        if row.kind in (WAREHOUSE, NAMESPACE):
            add_rights(spaces, fold_levels(levels), rights)
        elif row.name is not None:
            add_rights(objects, build_object_key(row.kind, (*levels, row.name)), rights)
    return HeldRights(Grants(tuple(Grant(levels, rights) for levels, rights in spaces.items())), objects)


def add_rights(found: dict[Key, Rights], key: Key, rights: Rights) -> None:
    """Add rights to those that are found already; none are none."""
    if rights is not Rights.NONE:
        found[key] = found.get(key, Rights.NONE) | rights
