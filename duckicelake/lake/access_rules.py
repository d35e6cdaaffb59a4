"""Principals, roles, grants and the protection of a lake in Postgres. While a lake is protected, accounts change it over REST only by
merging branches, which have no such setting.

`catalog.access_rules` calls `change_rules`, which begins the transaction of each change, and passes it the functions that write. A change
adds a row to `iceberg_change`, by which every server's watch notices it, and its audit line. One that may revoke a right also sets the
sequence `iceberg_revocation`, in a second transaction, so that DuckDB's readers see it at once. `read_rules` and `is_protected` run in the
caller's read transaction. `commands.branches` calls `protect`, which begins a transaction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import psycopg

from duckicelake.errors import Forbidden
from duckicelake.lake.audit_log import DONE, AuditLine, log_line, write_line
from duckicelake.lake.connect import Lake, writing
from duckicelake.lake.lake_format import NAMED_SCHEMA
from duckicelake.lake.notes import LOCK_CHANGES
from duckicelake.lake.read import fetch_queries, read_position
from duckicelake.lake.rows import Position

RULE_KIND = "rule"
"""The kind of a change of access rules in the audit log and in `iceberg_change`."""

INSERT_RULE_CHANGE = """
-- The row names no table, so cached responses for tables stay valid.
INSERT INTO iceberg_change (kind, table_id) VALUES ('rule', -1)
"""


UPDATE_REVOCATION = """
UPDATE iceberg_setting SET value = (value::bigint + 1)::text WHERE key = 'revocation'
"""

SELECT_MAY_REVOKE = """
SELECT has_sequence_privilege(to_regclass('iceberg_revocation')::oid, 'UPDATE')
 WHERE EXISTS (SELECT FROM iceberg_setting WHERE key = 'readers')
"""

SELECT_REVOKED = """
SELECT setval(to_regclass('iceberg_revocation'), s.value::bigint)
  FROM iceberg_setting s
 WHERE s.key = 'revocation' AND EXISTS (SELECT FROM iceberg_setting WHERE key = 'readers')
"""


def change_rules(lake: Lake, change: Callable[[psycopg.Connection], bool], *, may_revoke: bool = True) -> bool:
    """Apply `change` in a transaction and return True if it changed anything; after that, every server uses the new rules.

    `may_revoke`: the change may revoke a right; then DuckDB's readers are refused in transactions that began before it.
    Raises: Forbidden: the lake has readers, and our Postgres role may not invalidate their sessions; nothing is changed
    """
    with writing(lake) as conn:
        conn.execute(LOCK_CHANGES)
        if may_revoke:
            _check_may_revoke(conn)
        is_changed = change(conn)
        if is_changed:
            conn.execute(INSERT_RULE_CHANGE)
            if may_revoke:
                conn.execute(UPDATE_REVOCATION)
            if lake.audit_context is not None:
                write_line(conn, lake.audit_context, None)
    if may_revoke:
        # Do this even if nothing changed: an earlier caller may have stopped between the two transactions.
        with writing(lake) as conn:
            # The lock serializes revocations, so the sequence never goes back.
            conn.execute(LOCK_CHANGES)
            conn.execute(SELECT_REVOKED)
    if is_changed and lake.audit_context is not None:
        log_line(AuditLine(lake.audit_context, DONE))
    return is_changed


def _check_may_revoke(conn: psycopg.Connection) -> None:
    row = conn.execute(SELECT_MAY_REVOKE).fetchone()
    if row is not None and not row[0]:
        raise Forbidden(
            "The lake has readers of DuckLake, and the server's Postgres role may not invalidate their sessions; nothing "
            "was changed. As the lake's owner run `GRANT UPDATE ON SEQUENCE iceberg_revocation TO role`, in the metadata schema."
        )


SELECT_HAS_READERS = """
SELECT to_regclass('iceberg_reader') IS NOT NULL
"""

UPDATE_EXPIRED_READERS = """
UPDATE iceberg_reader SET expires_at = clock_timestamp()
 WHERE expires_at > clock_timestamp()
   AND (principal IN (SELECT p.name FROM iceberg_principal p
                       WHERE NOT p.is_role
                         AND (p.principal_id = %(principal_id)s
                              OR p.principal_id IN (SELECT m.principal_id FROM iceberg_member m WHERE m.role_id = %(principal_id)s)))
        -- Members of a role by a token of another issuer have no row in iceberg_member.
        OR EXISTS (SELECT FROM iceberg_principal p
                    WHERE p.is_role AND p.principal_id = %(principal_id)s AND p.name = ANY(iceberg_reader.roles)))
"""


def expire_readers(conn: psycopg.Connection, principal_id: int) -> None:
    """End a principal's or role's access to DuckLake; the members get new credentials with their remaining rights when they ask again."""
    row = conn.execute(SELECT_HAS_READERS).fetchone()
    # A lake that an older release prepared has no such table, and this server may lack the right to create it.
    if row is not None and row[0]:
        conn.execute(UPDATE_EXPIRED_READERS, {"principal_id": principal_id})


INSERT_PRINCIPAL = """
INSERT INTO iceberg_principal (name, is_role, secret, secret_number) VALUES (%(name)s, %(is_role)s, %(secret)s, 1)
ON CONFLICT (is_role, name) DO NOTHING
"""


def insert_principal(conn: psycopg.Connection, name: str, secret: str | None, *, is_role: bool) -> bool:
    """Add a principal or a role; False if one of that name exists."""
    return conn.execute(INSERT_PRINCIPAL, {"name": name, "secret": secret, "is_role": is_role}).rowcount == 1


UPDATE_SECRET = """
UPDATE iceberg_principal SET secret = %(secret)s, secret_number = secret_number + 1 WHERE name = %(name)s AND NOT is_role
"""


def update_secret(conn: psycopg.Connection, name: str, secret: str) -> bool:
    """Give a principal another secret; False if no principal has that name."""
    return conn.execute(UPDATE_SECRET, {"name": name, "secret": secret}).rowcount == 1


SELECT_PRINCIPAL_ID = """
SELECT principal_id FROM iceberg_principal WHERE name = %(name)s AND is_role = %(is_role)s
"""


def find_principal_id(conn: psycopg.Connection, name: str, *, is_role: bool) -> int | None:
    """Return the id of a principal or a role, or None if there is none of that name."""
    row = conn.execute(SELECT_PRINCIPAL_ID, {"name": name, "is_role": is_role}).fetchone()
    return None if row is None else row[0]


DELETE_GRANTS_OF = """
DELETE FROM iceberg_grant WHERE principal_id = %(principal_id)s
"""

DELETE_MEMBERS_OF = """
DELETE FROM iceberg_member WHERE %(principal_id)s IN (role_id, principal_id)
"""

DELETE_PRINCIPAL = """
DELETE FROM iceberg_principal WHERE principal_id = %(principal_id)s
"""


def delete_principal(conn: psycopg.Connection, principal_id: int) -> None:
    """Remove a principal or a role with its grants and memberships."""
    expire_readers(conn, principal_id)
    for statement in (DELETE_GRANTS_OF, DELETE_MEMBERS_OF, DELETE_PRINCIPAL):
        conn.execute(statement, {"principal_id": principal_id})


INSERT_MEMBER = """
INSERT INTO iceberg_member (role_id, principal_id) VALUES (%(role_id)s, %(principal_id)s) ON CONFLICT (role_id, principal_id) DO NOTHING
"""

DELETE_MEMBER = """
DELETE FROM iceberg_member WHERE role_id = %(role_id)s AND principal_id = %(principal_id)s
"""


def change_member(conn: psycopg.Connection, role_id: int, principal_id: int, *, joins: bool) -> bool:
    """Add a principal to a role or remove it; False if nothing had to change."""
    if not joins:
        expire_readers(conn, principal_id)
    return conn.execute(INSERT_MEMBER if joins else DELETE_MEMBER, {"role_id": role_id, "principal_id": principal_id}).rowcount == 1


INSERT_GRANTS = """
INSERT INTO iceberg_grant (principal_id, kind, object_uuid, privilege)
SELECT %(principal_id)s, %(kind)s, %(object_uuid)s, n.privilege FROM unnest(%(privileges)s::text[]) AS n(privilege)
ON CONFLICT (principal_id, kind, object_uuid, privilege) DO NOTHING
"""

DELETE_GRANTS = """
DELETE FROM iceberg_grant
 WHERE principal_id = %(principal_id)s AND kind = %(kind)s AND object_uuid = %(object_uuid)s AND privilege = ANY(%(privileges)s::text[])
"""


def change_grants(conn: psycopg.Connection, principal_id: int, what: tuple[str, UUID], privileges: Sequence[str], *, gives: bool) -> bool:
    """Grant or revoke privileges on an object, named by its kind and uuid; False if nothing had to change."""
    parameters = {"principal_id": principal_id, "kind": what[0], "object_uuid": what[1], "privileges": list(privileges)}
    is_changed = conn.execute(INSERT_GRANTS if gives else DELETE_GRANTS, parameters).rowcount > 0
    if is_changed and not gives:
        expire_readers(conn, principal_id)
    return is_changed


SELECT_SCHEMA_UUID = """
SELECT schema_uuid FROM ducklake_schema WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL
"""


def read_schema_uuid(conn: psycopg.Connection, schema_id: int) -> UUID:
    """Return the uuid of a live schema."""
    row = conn.execute(SELECT_SCHEMA_UUID, {"schema_id": schema_id}).fetchone()
    assert row is not None
    return row[0]


SELECT_PRINCIPALS = """
SELECT principal_id, name, is_role, secret, secret_number FROM iceberg_principal ORDER BY is_role, name
"""

SELECT_MEMBERS = """
SELECT role_id, principal_id FROM iceberg_member
"""

SELECT_GRANTS = "".join(
    (
        """
WITH hidden AS (
    -- A schema of DuckLake 1.0 that stands for a nested namespace is hidden by a nested schema of the same name.
    SELECT f.schema_id FROM ducklake_schema f
     WHERE f.end_snapshot IS NULL AND strpos(f.schema_name, '\u241f') > 0 AND EXISTS (
        SELECT FROM ducklake_schema l """,
        NAMED_SCHEMA.format("l"),
        """
         WHERE l.end_snapshot IS NULL AND cardinality(names.schema_names) > 1
           AND lower(n.schema_name COLLATE "C") = lower(f.schema_name COLLATE "C"))
)
SELECT g.principal_id, g.kind, g.privilege, NULL::text AS schema_name, NULL::text AS name
  FROM iceberg_grant g WHERE g.kind = 'warehouse'
 UNION ALL
SELECT g.principal_id, g.kind, g.privilege, n.schema_name, NULL
  FROM iceberg_grant g JOIN ducklake_schema l ON l.schema_uuid = g.object_uuid AND l.end_snapshot IS NULL
  """,
        NAMED_SCHEMA.format("l"),
        """
 WHERE g.kind = 'namespace' AND n.schema_name IS NOT NULL AND s.schema_id NOT IN (SELECT schema_id FROM hidden)
 UNION ALL
SELECT g.principal_id, g.kind, g.privilege, n.schema_name, t.table_name
  FROM iceberg_grant g JOIN ducklake_table t ON t.table_uuid = g.object_uuid AND t.end_snapshot IS NULL
  """,
        NAMED_SCHEMA.format("t"),
        """
 WHERE g.kind = 'table' AND n.schema_name IS NOT NULL AND s.schema_id NOT IN (SELECT schema_id FROM hidden)
 UNION ALL
SELECT g.principal_id, g.kind, g.privilege, n.schema_name, v.view_name
  -- Views without a uuid of their own are published to clients with this derived one.
  FROM iceberg_grant g JOIN ducklake_view v ON coalesce(v.view_uuid, md5('view ' || v.view_id)::uuid) = g.object_uuid
  """,
        NAMED_SCHEMA.format("v"),
        """
 WHERE g.kind = 'view' AND n.schema_name IS NOT NULL AND s.schema_id NOT IN (SELECT schema_id FROM hidden) AND v.end_snapshot IS NULL
 UNION ALL
-- branches, and objects of other catalogs, whose names the kind holds
SELECT g.principal_id, g.kind, g.privilege, NULL, NULL
  FROM iceberg_grant g WHERE starts_with(g.kind, 'route:') OR starts_with(g.kind, 'branch:')
""",
    )
)


@dataclass(frozen=True, slots=True)
class PrincipalRow:
    """`iceberg_principal`. `secret`: the hash of the secret; None for principals without one. `secret_number` counts the secrets so far."""

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
    """`iceberg_grant` with the current names of the object: none for the warehouse, only the schema's for a namespace."""

    principal_id: int
    kind: str
    privilege: str
    schema_name: str | None
    name: str | None


@dataclass(frozen=True, slots=True)
class RuleRows:
    """All access rules of a lake, as of a position."""

    position: Position
    principals: Sequence[PrincipalRow]
    members: Sequence[MemberRow]
    grants: Sequence[GrantRow]


def read_rules(conn: psycopg.Connection) -> RuleRows:
    """Return all access rules of the lake, on the connection of one `reading()` transaction."""
    position = read_position(conn)
    results = fetch_queries(conn, (SELECT_PRINCIPALS, SELECT_MEMBERS, SELECT_GRANTS))
    return RuleRows(
        position,
        principals=results.rows(PrincipalRow, SELECT_PRINCIPALS),
        members=results.rows(MemberRow, SELECT_MEMBERS),
        grants=results.rows(GrantRow, SELECT_GRANTS),
    )


SELECT_IS_PROTECTED = """
SELECT EXISTS (SELECT FROM iceberg_setting WHERE key = 'protected' AND value = 'main')
"""


def is_protected(conn: psycopg.Connection) -> bool:
    """Return True if the lake is protected."""
    row = conn.execute(SELECT_IS_PROTECTED).fetchone()
    return bool(row and row[0])


UPSERT_PROTECTED = """
INSERT INTO iceberg_setting (key, value) VALUES ('protected', 'main') ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""

DELETE_PROTECTED = """
DELETE FROM iceberg_setting WHERE key = 'protected'
"""


def protect(conn: psycopg.Connection, *, is_on: bool) -> None:
    """Turn the protection on or off; every server uses it from its next request on."""
    with conn.transaction():
        conn.execute(LOCK_CHANGES)
        conn.execute(UPSERT_PROTECTED if is_on else DELETE_PROTECTED)
        conn.execute(INSERT_RULE_CHANGE)
