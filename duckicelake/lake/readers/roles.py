"""Postgres roles for readers of DuckLake: created with a password and an expiry, listed in `iceberg_reader`, dropped when expired.

`catalog.credentials.ducklake` creates a role in a transaction of its own, which also drops expired ones. Only `duckicelake check
--repair` drops them otherwise, and `duckicelake init --remove` drops all.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from duckicelake.errors import NotServed, TooManyRequests
from duckicelake.lake.audit_log import DONE, AuditLine, log_line, write_line
from duckicelake.lake.connect import Lake, reading, writing, writing_on_new_connection
from duckicelake.lake.readers.install import check_may_issue, install_readers, is_ready, may_issue, refresh_views

ROLE_PREFIX = "duckicelake_reader_"
MOST_ROLES = 16
"""The most roles of one principal. Each server reuses the ones it issued, so few are needed."""

BUSY_S = 60
"""The `Retry-After` for a principal with too many roles."""

SHARED_OPTIONS = ("sslmode", "sslrootcert", "channel_binding", "target_session_attrs")
"""The options of the server's own connection that a reader's connection string repeats."""

ROLE_SETTINGS: Sequence[sql.SQL] = (
    sql.SQL("ALTER ROLE {} SET statement_timeout = '5min'"),
    sql.SQL("ALTER ROLE {} SET idle_in_transaction_session_timeout = '10min'"),
    sql.SQL("ALTER ROLE {} SET lock_timeout = '10s'"),
    sql.SQL("ALTER ROLE {} SET default_transaction_read_only = on"),
)


@dataclass(frozen=True, slots=True)
class LakeReader:
    """A principal that reads the lake with DuckDB, and its rights besides its grants: by settings (`spaces`), and within a scope.

    Shape:  spaces are schema names in lower case, with nested ones included; an empty one means all. `scope` None: all
            `account`: the principal's id and the number of its secret; None if settings or another issuer define it
            `roles`: names of roles from its token; roles that the lake does not have at the moment of reading are ignored
    """

    principal: str
    account: tuple[int, int] | None
    spaces: tuple[str, ...]
    scope: tuple[str, ...] | None
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReaderRole:
    """A role with its connection string. After `fresh_until_s` it is not issued again."""

    name: str
    dsn: str = field(repr=False)
    expires_at_s: float
    fresh_until_s: float


INSERT_READER = """
INSERT INTO iceberg_reader (role_name, database_id, principal, principal_id, secret_number, spaces, scope, roles, expires_at)
SELECT %(role_name)s, d.oid, %(principal)s, %(principal_id)s, %(secret_number)s, %(spaces)s::text[], %(scope)s::text[],
       %(roles)s::text[], to_timestamp(%(expires_at_s)s)
  FROM pg_database d WHERE d.datname = current_database()
"""

SELECT_EXPIRED = """
SELECT r.role_name, r.database_id = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) AS is_ours
  FROM iceberg_reader r
 WHERE r.expires_at < clock_timestamp()
    -- And the oldest roles above the limit, unless a session uses them.
    OR r.role_name IN (SELECT o.role_name FROM iceberg_reader o
                        WHERE o.principal = %(principal)s AND o.expires_at >= clock_timestamp()
                          AND NOT EXISTS (SELECT FROM pg_stat_activity a
                                           WHERE a.usename = o.role_name AND a.datname = current_database())
                        ORDER BY o.created_at, o.role_name
                        LIMIT (SELECT greatest(0, count(*) - %(most)s) FROM iceberg_reader c
                                WHERE c.principal = %(principal)s AND c.expires_at >= clock_timestamp()))
"""

SELECT_ALL_READERS = """
SELECT r.role_name, r.database_id = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()) AS is_ours
  FROM iceberg_reader r
"""

DELETE_READER = """
DELETE FROM iceberg_reader WHERE role_name = %(role_name)s
"""

SELECT_HAS_ROLE = """
SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = %(role_name)s)
"""

SELECT_IS_LIVE = """
SELECT EXISTS (SELECT FROM iceberg_reader WHERE role_name = %(role_name)s AND expires_at > clock_timestamp())
   AND EXISTS (SELECT FROM pg_roles WHERE rolname = %(role_name)s)
"""

SELECT_MAY_CONNECT = """
SELECT has_database_privilege(%(role_name)s, current_database(), 'CONNECT')
"""

SELECT_TERMINATED = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = %(role_name)s
"""

SELECT_LOCKED = """
-- Lock a row, which readers cannot; they could take an advisory lock.
SELECT FROM iceberg_setting WHERE key = 'readers' FOR UPDATE
"""

SELECT_COUNT = """
SELECT count(*) FROM iceberg_reader WHERE principal = %(principal)s
"""

SELECT_HAS_READERS = """
SELECT to_regclass('iceberg_reader') IS NOT NULL
"""


def can_issue(lake: Lake) -> bool:
    """Return True if our Postgres role may create what readers need."""
    with reading(lake) as conn:
        return all(may_issue(conn))


def is_live(lake: Lake, role: ReaderRole) -> bool:
    """Return True if a role that was issued still exists and has not expired."""
    with reading(lake) as conn:
        row = conn.execute(SELECT_IS_LIVE, {"role_name": role.name}).fetchone()
        return row is not None and bool(row[0])


def create_reader_role(lake: Lake, reader: LakeReader, public: str | None, times: tuple[float, float]) -> ReaderRole:
    """Create a role for a reader, and drop expired ones.

    Units:  `times` are its expiry, and until when it may be issued again. `public`: the address at which readers reach Postgres
    Raises: NotServed: our Postgres role lacks a right; names it. TooManyRequests: the principal uses all the roles it may have
    """
    _prepare(lake)
    name, password = ROLE_PREFIX + secrets.token_hex(8), secrets.token_urlsafe(32)
    with writing(lake) as conn:
        conn.execute(SELECT_LOCKED)
        refresh_views(conn, lake.metadata_schema)
        _drop_expired(conn, reader.principal)
        _check_role_count(conn, reader.principal)
        _create_role(conn, name, password, times[0])
        conn.execute(INSERT_READER, _to_row(name, reader, times[0]))
        if lake.audit_context is not None:
            write_line(conn, lake.audit_context, None)
        dsn = _format_dsn(conn, lake.dsn, public, (name, password))
    if lake.audit_context is not None:
        log_line(AuditLine(lake.audit_context, DONE))
    return ReaderRole(name, dsn, *times)


def drop_expired_roles(conn: psycopg.Connection, metadata_schema: str) -> int:
    """Drop expired roles, and views of inlined tables that DuckDB has dropped; return the number of roles."""
    row = conn.execute(SELECT_HAS_READERS).fetchone()
    if row is None or not row[0]:
        return 0
    refresh_views(conn, metadata_schema)
    return _drop_expired(conn, None)


def drop_all_roles(conn: psycopg.Connection) -> None:
    """Drop all roles of the lake's readers, in the caller's transaction."""
    for name, is_ours in conn.execute(SELECT_ALL_READERS).fetchall():
        _drop_role(conn, name, is_ours=is_ours)


def _prepare(lake: Lake) -> None:
    with reading(lake) as conn:
        check_may_issue(conn)
        is_installed = is_ready(conn, lake.metadata_schema)
    if not is_installed:
        with writing_on_new_connection(lake) as conn:
            conn.commit()
            install_readers(conn, lake.metadata_schema)


def _to_row(name: str, reader: LakeReader, expires_at_s: float) -> dict[str, object]:
    principal_id, secret_number = reader.account or (None, None)
    return {
        "role_name": name,
        "principal": reader.principal,
        "principal_id": principal_id,
        "secret_number": secret_number,
        "spaces": list(reader.spaces),
        "scope": None if reader.scope is None else list(reader.scope),
        "roles": list(reader.roles),
        "expires_at_s": expires_at_s,
    }


def _create_role(conn: psycopg.Connection, name: str, password: str, expires_at_s: float) -> None:
    """Create a role. Postgres gets the SCRAM verifier, never the password."""
    verifier = conn.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode()
    row = conn.execute("SELECT to_timestamp(%(at_s)s)::text", {"at_s": expires_at_s}).fetchone()
    assert row is not None
    role = sql.Identifier(name)
    conn.execute(
        sql.SQL("CREATE ROLE {} LOGIN NOINHERIT CONNECTION LIMIT 8 PASSWORD {} VALID UNTIL {}").format(
            role, sql.Literal(verifier), sql.Literal(row[0])
        )
    )
    for limit in ROLE_SETTINGS:
        conn.execute(limit.format(role))
    row = conn.execute(SELECT_MAY_CONNECT, {"role_name": name}).fetchone()
    if row is not None and not row[0]:
        _grant_connect(conn, role)


def _grant_connect(conn: psycopg.Connection, role: sql.Identifier) -> None:
    grant = sql.SQL("GRANT CONNECT ON DATABASE {} TO {}").format(sql.Identifier(conn.info.dbname), role)
    try:
        conn.execute(grant)
    except psycopg.errors.InsufficientPrivilege as error:
        message = "The catalog cannot issue read-only access to DuckLake: the server's Postgres role may not grant CONNECT on the database."
        raise NotServed(f"{message} Run `GRANT CONNECT ON DATABASE database TO PUBLIC`, or make it the owner.") from error


def _drop_expired(conn: psycopg.Connection, principal: str | None) -> int:
    expired = conn.execute(SELECT_EXPIRED, {"principal": principal, "most": MOST_ROLES - 1}).fetchall()
    for name, is_ours in expired:
        _drop_role(conn, name, is_ours=is_ours)
    return len(expired)


def _check_role_count(conn: psycopg.Connection, principal: str) -> None:
    row = conn.execute(SELECT_COUNT, {"principal": principal}).fetchone()
    if row is not None and row[0] >= MOST_ROLES:
        message = f"The principal has {MOST_ROLES} roles for DuckLake and sessions open with each of them. Close some of these first."
        raise TooManyRequests(message, BUSY_S)


def _drop_role(conn: psycopg.Connection, name: str, *, is_ours: bool) -> None:
    """Drop a role with its sessions and everything it may own. In a copied database the rows name roles of the original; leave these."""
    conn.execute(DELETE_READER, {"role_name": name})
    row = conn.execute(SELECT_HAS_ROLE, {"role_name": name}).fetchone()
    if not is_ours or row is None or not row[0]:
        return
    role = sql.Identifier(name)
    try:
        with conn.transaction():
            # The creator of a role may not drop what its members own without being one.
            conn.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(role))
            conn.execute(SELECT_TERMINATED, {"role_name": name})
            conn.execute(sql.SQL("DROP OWNED BY {}").format(role))
            conn.execute(sql.SQL("DROP ROLE {}").format(role))
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.DependentObjectsStillExist):
        # The role was created by another Postgres role. Without its row it reads nothing, and its password expires.
        return


def _format_dsn(conn: psycopg.Connection, dsn: str, public: str | None, login: tuple[str, str]) -> str:
    """Return the connection string for a reader."""
    options = {key: value for key, value in conninfo_to_dict(dsn).items() if key in SHARED_OPTIONS}
    server = {"host": conn.info.host, "port": conn.info.port, "dbname": conn.info.dbname}
    address = conninfo_to_dict(public) if public else {}
    return make_conninfo("", **{**server, **options, **address, "user": login[0], "password": login[1]})
