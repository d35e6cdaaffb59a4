"""Who is known in a lake and what is granted to them, by the names that things have now."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from duckicelake.lake.read import fetch_queries, read_position
from duckicelake.lake.rows import Position

SELECT_PRINCIPALS = """
SELECT principal_id, name, is_role, secret, secret_number FROM iceberg_principal ORDER BY is_role, name
"""

SELECT_MEMBERS = """
SELECT role_id, principal_id FROM iceberg_member
"""

SELECT_GRANTS = """
SELECT g.principal_id, g.kind, g.privilege, NULL::text AS schema_name, NULL::text AS name
  FROM iceberg_grant g WHERE g.kind = 'warehouse'
 UNION ALL
SELECT g.principal_id, g.kind, g.privilege, s.schema_name, NULL
  FROM iceberg_grant g JOIN ducklake_schema s ON s.schema_uuid = g.object_uuid AND s.end_snapshot IS NULL
 WHERE g.kind = 'namespace'
 UNION ALL
SELECT g.principal_id, g.kind, g.privilege, s.schema_name, t.table_name
  FROM iceberg_grant g JOIN ducklake_table t ON t.table_uuid = g.object_uuid AND t.end_snapshot IS NULL
  JOIN ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
 WHERE g.kind = 'table'
 UNION ALL
SELECT g.principal_id, g.kind, g.privilege, s.schema_name, v.view_name
  -- as views without an id of that kind are told to clients
  FROM iceberg_grant g JOIN ducklake_view v ON coalesce(v.view_uuid, md5('view ' || v.view_id)::uuid) = g.object_uuid
  JOIN ducklake_schema s ON s.schema_id = v.schema_id AND s.end_snapshot IS NULL
 WHERE g.kind = 'view' AND v.end_snapshot IS NULL
"""


@dataclass(frozen=True, slots=True)
class PrincipalRow:
    """`iceberg_principal`. `secret`: its hash; None when it has none here. `secret_number` counts the secrets it has had."""

    principal_id: int
    name: str
    is_role: bool
    secret: str | None = field(repr=False)
    secret_number: int


@dataclass(frozen=True, slots=True)
class MemberRow:
    """`iceberg_member`."""

    role_id: int
    principal_id: int


@dataclass(frozen=True, slots=True)
class GrantRow:
    """`iceberg_grant` with the present name of what is granted: of the warehouse none, of a namespace its schema's alone."""

    principal_id: int
    kind: str
    privilege: str
    schema_name: str | None
    name: str | None


@dataclass(frozen=True, slots=True)
class RuleRows:
    """All of it, as of a position of the lake."""

    position: Position
    principals: Sequence[PrincipalRow]
    members: Sequence[MemberRow]
    grants: Sequence[GrantRow]


def read_rules(conn: psycopg.Connection) -> RuleRows:
    """Return who may do what, on the connection of one `reading()` transaction."""
    position = read_position(conn)
    found = fetch_queries(conn, (SELECT_PRINCIPALS, SELECT_MEMBERS, SELECT_GRANTS))
    return RuleRows(
        position, found.rows(PrincipalRow, SELECT_PRINCIPALS), found.rows(MemberRow, SELECT_MEMBERS), found.rows(GrantRow, SELECT_GRANTS)
    )
