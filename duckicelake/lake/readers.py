"""Read-only access to a lake for DuckDB: a Postgres role for each reader, and the readers' schema next to the lake's metadata schema.

A role has a password and an expiry, is listed in `iceberg_reader` and dropped when expired. `catalog.credentials.ducklake` creates one on a
worker thread, in a transaction of its own, which also writes the audit line, and drops expired roles and ends their sessions; before the
first, the schema is created on a connection outside of the pool. A branch has a readers' schema of its own for the lake's roles, which
`lake.branches` drops with the branch. Only a repair drops roles otherwise (`duckicelake check --repair`, and the job `maintain` after it
removed objects), and `duckicelake init --remove` drops all, with the schema. `reader_views` has the schema's views.
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import LiteralString

import psycopg
from psycopg import errors, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from duckicelake.errors import NotFound, NotServed, ServiceUnavailable, TooManyRequests
from duckicelake.lake.audit_log import DONE, AuditLine, log_line, write_line
from duckicelake.lake.connect import Lake, reading, writing, writing_on_new_connection
from duckicelake.lake.install import LOCK_PAUSE_S, NEVER_IDLE, format_search_path, has_settings
from duckicelake.lake.lake_format import get_format
from duckicelake.lake.reader_views import SHOW_ALL, ReadMember, as_lake, can_have_readers, compose, compute_digest, list_statements

MOST_STALE = 100
LOCK_TRIES = 100

SELECT_INSTALLED = """
SELECT value FROM iceberg_setting WHERE key = 'readers'
"""

SELECT_IS_READY = """
SELECT EXISTS (SELECT FROM iceberg_setting WHERE key = 'readers' AND value = %(digest)s || '/' ||
                      -- After a migration of DuckLake the views lack columns.
                      (SELECT m.value FROM ducklake_metadata m WHERE m.key = 'version' AND m.scope IS NULL))
   AND EXISTS (SELECT FROM pg_class v JOIN pg_namespace n ON n.oid = v.relnamespace
                WHERE n.nspname = %(own)s AND v.relname = 'iceberg_me' AND obj_description(n.oid, 'pg_namespace') = %(mark)s)
   AND (SELECT count(*) FROM pg_trigger t JOIN pg_proc f ON f.oid = t.tgfoid JOIN pg_namespace n ON n.oid = f.pronamespace
         WHERE n.nspname = %(own)s AND t.tgenabled <> 'D'
           AND (t.tgrelid, t.tgname) IN ((to_regclass('ducklake_inlined_data_tables'), 'iceberg_show_rows'),
                                         (to_regclass('ducklake_snapshot_changes'), 'iceberg_show_deletes'))) = 2
"""

SELECT_VERSION = "SELECT value FROM ducklake_metadata WHERE key = 'version' AND scope IS NULL"

SELECT_MARK = """
SELECT obj_description(n.oid, 'pg_namespace') FROM pg_namespace n WHERE n.nspname = %(own)s
"""

SELECT_MAY_SHOW = """
SELECT has_function_privilege(to_regprocedure(quote_ident(%(own)s) || '.iceberg_show(text, bigint, bigint)')::oid, 'EXECUTE')
"""

UPSERT_INSTALLED = """
INSERT INTO iceberg_setting (key, value)
SELECT 'readers', %(digest)s || '/' || m.value FROM ducklake_metadata m WHERE m.key = 'version' AND m.scope IS NULL
ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""

DELETE_INSTALLED = """
DELETE FROM iceberg_setting WHERE key = 'readers'
"""

SELECT_MAY_ISSUE = """
SELECT r.rolsuper OR r.rolcreaterole,
       EXISTS (SELECT FROM iceberg_setting s WHERE s.key = 'readers')
       OR (has_database_privilege(current_database(), 'CREATE')
           AND (SELECT pg_has_role(c.relowner, 'USAGE') FROM pg_class c WHERE c.oid = to_regclass('ducklake_snapshot_changes'))),
       -- A role that can create relations in DuckLake's schema could pass them off as DuckLake's.
       NOT has_schema_privilege('public', (SELECT c.relnamespace FROM pg_class c WHERE c.oid = to_regclass('ducklake_snapshot_changes')),
                                'CREATE')
  FROM pg_roles r WHERE r.rolname = current_user
"""

SELECT_STALE = """
SELECT v.relname
  FROM pg_namespace n JOIN pg_class v ON v.relnamespace = n.oid
  LEFT JOIN pg_namespace o ON o.nspname = %(lake)s
  LEFT JOIN pg_class c ON c.relnamespace = o.oid AND c.relname = v.relname
  CROSS JOIN LATERAL (
      SELECT string_agg(format('%%I %%s', a.attname, format_type(a.atttypid, a.atttypmod)), ',' ORDER BY a.attnum)
                 FILTER (WHERE a.attrelid = v.oid) AS of_view,
             string_agg(format('%%I %%s', a.attname, format_type(a.atttypid, a.atttypmod)), ',' ORDER BY a.attnum)
                 FILTER (WHERE a.attrelid = c.oid) AS of_table
        FROM pg_attribute a WHERE a.attrelid IN (v.oid, c.oid) AND a.attnum > 0 AND NOT a.attisdropped
  ) columns
 WHERE n.nspname = %(own)s AND obj_description(n.oid, 'pg_namespace') = %(mark)s
   AND v.relkind = 'v' AND v.relname ~ '^ducklake_inlined_(data_[0-9]+_[0-9]+|delete_[0-9]+)$'
   AND columns.of_view IS DISTINCT FROM columns.of_table
 -- A view with other columns shows wrong rows, one without a table none.
 ORDER BY c.oid IS NULL
 LIMIT %(most)s
"""

CLOSE: Sequence[LiteralString] = (
    "REVOKE USAGE ON SCHEMA {own} FROM PUBLIC",
    "REVOKE ALL ON ALL TABLES IN SCHEMA {own} FROM PUBLIC",
    "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {own} FROM PUBLIC",
)

SELECT_HOLDERS = """
SELECT DISTINCT r.role_name, a.pid
  FROM pg_locks l
  JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
  JOIN pg_class c ON c.oid = l.relation
  JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname IN (%(lake)s, %(own)s)
  JOIN pg_stat_activity a ON a.pid = l.pid
  JOIN iceberg_reader r ON r.role_name = a.usename AND r.database_id = d.oid
"""

SELECT_ENDED = """
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a WHERE a.pid = %(pid)s AND a.usename = %(role_name)s
"""

# Its deletion locks the row FOR UPDATE before it looks for a readers' schema.
HOLD_BRANCH: LiteralString = (
    "SELECT number FROM {repository}.iceberg_branch WHERE schema_name = {lake_text} AND NOT is_deleted FOR SHARE NOWAIT"
)
LOCK_FOR_INSTALL: LiteralString = (
    "LOCK TABLE {lake}.ducklake_inlined_data_tables, {lake}.ducklake_snapshot_changes IN SHARE ROW EXCLUSIVE MODE NOWAIT"
)
LOCK_FOR_REMOVAL: LiteralString = (
    "LOCK TABLE {lake}.ducklake_inlined_data_tables, {lake}.ducklake_snapshot_changes IN ACCESS EXCLUSIVE MODE NOWAIT"
)
MISSING_PRIVILEGE = (
    "The catalog cannot issue read-only access to DuckLake: the server's Postgres role may not {}. As a superuser of Postgres run "
    "`ALTER ROLE role CREATEROLE`, as the database's owner `GRANT CREATE ON DATABASE database TO role`, and let the role that made "
    "the lake be the server's."
)
OPEN_SCHEMA = (
    "The catalog cannot issue read-only access to DuckLake: PUBLIC, and so every reader, may create tables in the lake's metadata schema. "
    "Run `REVOKE CREATE ON SCHEMA schema FROM PUBLIC`, and grant it to the roles that write with DuckDB."
)


def may_issue(conn: psycopg.Connection) -> tuple[bool, bool, bool]:
    """Return if our role may create roles, if the readers' schema exists or may be created, and if PUBLIC cannot create in the lake's."""
    row = conn.execute(SELECT_MAY_ISSUE).fetchone()
    return (False, False, False) if row is None else (bool(row[0]), bool(row[1]), bool(row[2]))


def check_may_issue(conn: psycopg.Connection) -> None:
    """Raise NotServed, naming the missing right, unless our role may create what readers need."""
    makes_roles, makes_views, is_closed = may_issue(conn)
    if not makes_roles:
        raise NotServed(MISSING_PRIVILEGE.format("make roles (CREATEROLE)"))
    if not makes_views:
        raise NotServed(MISSING_PRIVILEGE.format("create a schema in the lake's database, and triggers"))
    if not is_closed:
        raise NotServed(OPEN_SCHEMA)


def is_ready(conn: psycopg.Connection, member: ReadMember) -> bool:
    """Return True if the readers' schema of this version exists, with the triggers that maintain it."""
    row = conn.execute(SELECT_IS_READY, {**member.build_names(), "digest": compute_digest()}).fetchone()
    return row is not None and bool(row[0])


def _check_own(conn: psycopg.Connection, member: ReadMember) -> None:
    """Raise NotServed if a schema with the name of the readers' schema is not ours to drop."""
    names = member.build_names()
    row = conn.execute(SELECT_MARK, names).fetchone()
    if row is not None and row[0] != names["mark"]:
        raise NotServed(
            f"There is a schema {names['own']!r} in the lake's database, and it is not marked as the readers' of this lake. Rename it, or, "
            f"if this catalog made it, run COMMENT ON SCHEMA … IS '{names['mark']}'."
        )


def install_readers(conn: psycopg.Connection, member: ReadMember, tries: int = LOCK_TRIES) -> None:
    """Create the readers' schema, on a connection that is in no transaction. Locks use NOWAIT, so writers are not blocked.

    Raises: NotServed: our role lacks a right. NotFound: the branch has been deleted. ServiceUnavailable: the lake is never idle
    """
    for _ in range(tries):
        try:
            with conn.transaction():
                conn.execute("SET LOCAL lock_timeout = '500ms'")
                _hold_branch(conn, member)
                conn.execute(compose(LOCK_FOR_INSTALL, member))
                if not is_ready(conn, member):
                    _check_own(conn, member)
                    row = conn.execute(SELECT_VERSION).fetchone()
                    for statement in list_statements(member, get_format(None if row is None else row[0])):
                        conn.execute(statement)
                    conn.execute(UPSERT_INSTALLED, {"digest": compute_digest()})
        except psycopg.errors.LockNotAvailable:
            time.sleep(LOCK_PAUSE_S)
        except psycopg.errors.InsufficientPrivilege as error:
            raise NotServed(MISSING_PRIVILEGE.format("create a schema in the lake's database, and triggers")) from error
        else:
            return
    raise ServiceUnavailable(NEVER_IDLE)


def _hold_branch(conn: psycopg.Connection, member: ReadMember) -> None:
    """Keep a branch from being deleted while its readers' schema is made: nothing would drop the schema then."""
    if member != as_lake(member.repository) and conn.execute(compose(HOLD_BRANCH, member)).fetchone() is None:
        raise NotFound(f"The branch in the schema {member.metadata_schema!r} has just been deleted.")


def remove_readers(conn: psycopg.Connection, metadata_schema: str, drop_roles: Callable[[psycopg.Connection], None]) -> None:
    """Remove the readers' schema and, by `drop_roles`, all of their roles. Raises: ServiceUnavailable: the lake is never idle."""
    for _ in range(LOCK_TRIES):
        try:
            with conn.transaction():
                conn.execute(format_search_path(metadata_schema))
                conn.execute("SET LOCAL lock_timeout = '500ms'")
                if not has_settings(conn):
                    return
                drop_roles(conn)
                if conn.execute(SELECT_INSTALLED).fetchone() is not None:
                    _check_own(conn, as_lake(metadata_schema))
                    conn.execute(compose(LOCK_FOR_REMOVAL, as_lake(metadata_schema)))
                    conn.execute(compose("DROP SCHEMA IF EXISTS {own} CASCADE", as_lake(metadata_schema)))
                    conn.execute(DELETE_INSTALLED)
        except psycopg.errors.LockNotAvailable:
            time.sleep(LOCK_PAUSE_S)
        else:
            return
    raise ServiceUnavailable(NEVER_IDLE)


def refresh_views(conn: psycopg.Connection, member: ReadMember) -> None:
    """Drop views of inlined tables that are gone or have other columns now, unless a reader uses one; create the missing views.

    A view that a reader uses now is dropped when this function is called next, which is when credentials are asked for.
    """
    if not can_have_readers(member.metadata_schema):
        return
    for (name,) in conn.execute(SELECT_STALE, {**member.build_names(), "most": MOST_STALE}).fetchall():
        _drop_view(conn, member, name)
    show_inlined(conn, member)


def show_inlined(conn: psycopg.Connection, member: ReadMember) -> None:
    """Create the missing views of inlined tables, if the readers' schema is there."""
    row = conn.execute(SELECT_MAY_SHOW, member.build_names()).fetchone()
    for text in SHOW_ALL if row is not None and row[0] else ():
        conn.execute(compose(text, member))


def _drop_view(conn: psycopg.Connection, member: ReadMember, name: str) -> None:
    """Drop a view of an inlined table if it exists and no reader uses it: whoever holds its lock would make the lake's writers wait."""
    with contextlib.suppress(errors.LockNotAvailable, errors.UndefinedTable, errors.InvalidSchemaName), conn.transaction():
        conn.execute(compose("LOCK TABLE {own}.{name} IN ACCESS EXCLUSIVE MODE NOWAIT", member, name))
        conn.execute(compose("DROP VIEW {own}.{name}", member, name))


def _has_own_schema(conn: psycopg.Connection, metadata_schema: str) -> bool:
    if not can_have_readers(metadata_schema):
        return False
    names = as_lake(metadata_schema).build_names()
    row = conn.execute(SELECT_MARK, names).fetchone()
    return row is not None and row[0] == names["mark"]


def close_schema(conn: psycopg.Connection, metadata_schema: str) -> None:
    """Let no reader read a branch any more, in the transaction that deletes it; prepared statements of readers fail too."""
    if _has_own_schema(conn, metadata_schema):
        for text in CLOSE:
            conn.execute(compose(text, as_lake(metadata_schema)))


def end_sessions(conn: psycopg.Connection, metadata_schema: str) -> None:
    """End the sessions of readers that hold locks on a deleted branch, on a connection that is in no transaction."""
    row = conn.execute(SELECT_HAS_READERS).fetchone()
    if row is None or not row[0] or not _has_own_schema(conn, metadata_schema):
        return
    for role_name, pid in conn.execute(SELECT_HOLDERS, as_lake(metadata_schema).build_names()).fetchall():
        # A role that another Postgres role created cannot be had: its session ends by its own time limits.
        with contextlib.suppress(errors.InsufficientPrivilege), conn.transaction(force_rollback=True):
            conn.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(sql.Identifier(role_name)))
            conn.execute(SELECT_ENDED, {"role_name": role_name, "pid": pid})


def drop_schema(conn: psycopg.Connection, metadata_schema: str) -> None:
    """Drop the readers' schema of a deleted branch, if it has one that is ours, in the caller's transaction."""
    if _has_own_schema(conn, metadata_schema):
        conn.execute(compose("DROP SCHEMA {own} CASCADE", as_lake(metadata_schema)))


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
    _prepare(lake, as_lake(lake.metadata_schema))
    name, password = ROLE_PREFIX + secrets.token_hex(8), secrets.token_urlsafe(32)
    with writing(lake) as conn:
        conn.execute(SELECT_LOCKED)
        refresh_views(conn, as_lake(lake.metadata_schema))
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
    refresh_views(conn, as_lake(metadata_schema))
    return _drop_expired(conn, None)


def drop_all_roles(conn: psycopg.Connection) -> None:
    """Drop all roles of the lake's readers, in the caller's transaction."""
    for name, is_ours in conn.execute(SELECT_ALL_READERS).fetchall():
        _drop_role(conn, name, is_ours=is_ours)


def prepare_branch(branch: Lake, repository: str) -> None:
    """Create the readers' schema of a branch, and what it lacks. The lake's roles read it: they see in it what they may read.

    Raises: NotServed: our role lacks a right. NotFound: the branch has just been deleted. ServiceUnavailable: the branch is never idle
    """
    member = ReadMember(branch.metadata_schema, repository)
    _prepare(branch, member)
    with writing(branch) as conn:
        conn.execute(SELECT_LOCKED)
        refresh_views(conn, member)


def _prepare(lake: Lake, member: ReadMember) -> None:
    with reading(lake) as conn:
        check_may_issue(conn)
        is_installed = is_ready(conn, member)
    if not is_installed:
        with writing_on_new_connection(lake) as conn:
            conn.commit()
            install_readers(conn, member)


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
