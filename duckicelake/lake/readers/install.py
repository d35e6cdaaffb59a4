"""The readers' schema next to a lake's metadata schema: created for the first reader, removed with all readers' roles.

`lake.readers.roles` creates it when a principal asks for DuckLake credentials; `duckicelake` commands remove it.
"""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from typing import LiteralString

import psycopg
from psycopg import sql

from duckicelake.errors import NotServed, ServiceUnavailable
from duckicelake.lake.inspect import LakeFinding
from duckicelake.lake.install import LOCK_PAUSE_S, NEVER_IDLE, format_search_path, has_settings
from duckicelake.lake.lake_format import SCHEMA_NAME, V1_1, LakeFormat, get_format
from duckicelake.lake.readers.views import (
    COVERS,
    HIDE,
    IDS,
    INLINED,
    INNER,
    NESTED,
    OF_TABLE,
    OF_TABLES,
    OTHERS,
    OWN,
    READS,
    REFUSE,
    ROWS,
    SHOW,
    SHOW_ALL,
    SHOW_DELETES,
    SHOW_ROWS,
    SHOWN,
    TRIGGERS,
)

SUFFIX = "_readers"
MOST_STALE = 100
LONGEST_NAME_BYTES = 63
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

CREATE_VIEW: LiteralString = "CREATE VIEW {own}.{name} WITH (security_barrier) AS {query}"
CREATE_FILTERED_VIEW: LiteralString = (
    "CREATE VIEW {own}.{name} WITH (security_barrier) AS SELECT x.* FROM {lake}.{name} x WHERE {condition}"
)
SELECT_STALE = """
SELECT v.relname FROM pg_class v JOIN pg_namespace n ON n.oid = v.relnamespace
 WHERE n.nspname = %(own)s AND obj_description(n.oid, 'pg_namespace') = %(mark)s
   AND v.relkind = 'v' AND v.relname ~ '^ducklake_inlined_(data_[0-9]+_[0-9]+|delete_[0-9]+)$'
   AND NOT EXISTS (SELECT FROM pg_class c JOIN pg_namespace o ON o.oid = c.relnamespace
                    WHERE o.nspname = %(lake)s AND c.relname = v.relname)
 LIMIT %(most)s
"""

SELECT_FOR_PUBLIC = """
SELECT EXISTS (SELECT FROM iceberg_setting WHERE key = 'readers') AND has_database_privilege('public', current_database(), 'TEMPORARY'),
       EXISTS (SELECT FROM iceberg_setting WHERE key = 'readers') AND to_regnamespace('public') IS NOT NULL
       AND has_schema_privilege('public', 'public', 'CREATE')
"""

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


def format_schema_name(metadata_schema: str) -> str:
    """Return the name of the readers' schema. Raises: NotServed: it would be too long."""
    name = metadata_schema + SUFFIX
    if len(name.encode()) > LONGEST_NAME_BYTES:
        raise NotServed(f"The name of the lake's metadata schema is too long: {name!r} has more than 63 bytes.")
    return name


def _build_names(metadata_schema: str) -> dict[str, str]:
    return {"lake": metadata_schema, "own": format_schema_name(metadata_schema), "mark": f"duckicelake readers of {metadata_schema}"}


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


def list_public_findings(conn: psycopg.Connection) -> list[LakeFinding]:
    """Return findings about objects that PUBLIC, and so every reader, may create in the database."""
    row = conn.execute(SELECT_FOR_PUBLIC).fetchone() if has_settings(conn) else None
    temporary, public = (False, False) if row is None else row
    findings: list[LakeFinding] = []
    if temporary:
        remedy = "This shows them no additional data, but uses disk: REVOKE TEMPORARY ON DATABASE … FROM PUBLIC; grant it where needed."
        findings.append(LakeFinding("warning", "readers of DuckLake", "they may create temporary tables and functions, as PUBLIC", remedy))
    if public:
        remedy = "REVOKE CREATE ON SCHEMA public FROM PUBLIC."
        findings.append(LakeFinding("warning", "readers of DuckLake", "they may create tables in the schema public, as PUBLIC", remedy))
    return findings


def is_ready(conn: psycopg.Connection, metadata_schema: str) -> bool:
    """Return True if the readers' schema of this version exists, with the triggers that maintain it."""
    row = conn.execute(SELECT_IS_READY, {**_build_names(metadata_schema), "digest": compute_digest()}).fetchone()
    return row is not None and bool(row[0])


def _check_own(conn: psycopg.Connection, metadata_schema: str) -> None:
    """Raise NotServed if a schema with the name of the readers' schema is not ours to drop."""
    names = _build_names(metadata_schema)
    row = conn.execute(SELECT_MARK, names).fetchone()
    if row is not None and row[0] != names["mark"]:
        raise NotServed(
            f"There is a schema {names['own']!r} in the lake's database, and it is not marked as the readers' of this lake. Rename it, or, "
            f"if this catalog made it, run COMMENT ON SCHEMA … IS '{names['mark']}'."
        )


def install_readers(conn: psycopg.Connection, metadata_schema: str, tries: int = LOCK_TRIES) -> None:
    """Create the readers' schema, on a connection of its own that commits by itself. Locks use NOWAIT, so writers are not blocked.

    Raises: NotServed: our role lacks a right. ServiceUnavailable: the lake is never idle
    """
    for _ in range(tries):
        try:
            with conn.transaction():
                conn.execute("SET LOCAL lock_timeout = '500ms'")
                conn.execute(_compose(LOCK_FOR_INSTALL, metadata_schema))
                if not is_ready(conn, metadata_schema):
                    _check_own(conn, metadata_schema)
                    row = conn.execute(SELECT_VERSION).fetchone()
                    for statement in _list_statements(metadata_schema, get_format(None if row is None else row[0])):
                        conn.execute(statement)
                    conn.execute(UPSERT_INSTALLED, {"digest": compute_digest()})
        except psycopg.errors.LockNotAvailable:
            time.sleep(LOCK_PAUSE_S)
        except psycopg.errors.InsufficientPrivilege as error:
            raise NotServed(MISSING_PRIVILEGE.format("create a schema in the lake's database, and triggers")) from error
        else:
            return
    raise ServiceUnavailable(NEVER_IDLE)


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
                    _check_own(conn, metadata_schema)
                    conn.execute(_compose(LOCK_FOR_REMOVAL, metadata_schema))
                    conn.execute(_compose("DROP SCHEMA IF EXISTS {own} CASCADE", metadata_schema))
                    conn.execute(DELETE_INSTALLED)
        except psycopg.errors.LockNotAvailable:
            time.sleep(LOCK_PAUSE_S)
        else:
            return
    raise ServiceUnavailable(NEVER_IDLE)


def refresh_views(conn: psycopg.Connection, metadata_schema: str) -> None:
    """Drop views of inlined tables that DuckDB has dropped, unless a reader uses one now; create the missing views."""
    names = _build_names(metadata_schema)
    for (name,) in conn.execute(SELECT_STALE, {**names, "most": MOST_STALE}).fetchall():
        with contextlib.suppress(psycopg.errors.LockNotAvailable), conn.transaction():
            conn.execute("SET LOCAL lock_timeout = '50ms'")
            conn.execute(_compose("DROP VIEW {own}.{name}", metadata_schema, name))
            conn.execute("SET LOCAL lock_timeout = '10s'")
    row = conn.execute(SELECT_MAY_SHOW, names).fetchone()
    for text in SHOW_ALL if row is not None and row[0] else ():
        conn.execute(_compose(text, metadata_schema))


def _list_statements(metadata_schema: str, lake_format: LakeFormat) -> Iterator[sql.Composed]:
    others = (*OTHERS, *(NESTED if lake_format.nests_schemas else ()))
    for text in (
        "DROP SCHEMA IF EXISTS {own} CASCADE",
        "CREATE SCHEMA {own}",
        "COMMENT ON SCHEMA {own} IS {mark}",
        "GRANT USAGE ON SCHEMA {own} TO PUBLIC",
    ):
        yield _compose(text, metadata_schema)
    yield _compose(REFUSE, metadata_schema)
    for name, query in INNER:
        yield _compose(CREATE_VIEW, metadata_schema, name, query)
    yield _compose(IDS, metadata_schema)
    for name in OF_TABLES:
        yield _compose(CREATE_FILTERED_VIEW, metadata_schema, name, condition=OF_TABLE)
    for name, condition in others:
        yield _compose(CREATE_FILTERED_VIEW, metadata_schema, name, condition=condition)
    for name, query in OWN:
        yield _compose(CREATE_VIEW, metadata_schema, name, query)
    for name in (*OF_TABLES, *dict(others), *dict(OWN)):
        yield _compose("GRANT SELECT ON {own}.{name} TO PUBLIC", metadata_schema, name)
    for text in (INLINED, ROWS, SHOW, SHOW_ROWS, SHOW_DELETES, *HIDE, *TRIGGERS, *SHOW_ALL):
        yield _compose(text, metadata_schema)


def _compose(
    text: LiteralString, metadata_schema: str, name: str = "", query: LiteralString = "", condition: LiteralString = ""
) -> sql.Composed:
    """Return a statement with all its placeholders filled in."""
    names = _build_names(metadata_schema)
    own = names["own"]
    parts: dict[str, sql.Composable] = {
        "lake": sql.Identifier(metadata_schema),
        "own": sql.Identifier(own),
        "lake_text": sql.Literal(metadata_schema),
        "own_text": sql.Literal(own),
        "mark": sql.Literal(names["mark"]),
        "name": sql.Identifier(name),
        "covers": sql.SQL(COVERS),
        "names": sql.SQL(SCHEMA_NAME).format(lake=sql.SQL("{}.").format(sql.Identifier(metadata_schema))),
    }
    parts |= {"of_table": sql.SQL(OF_TABLE).format(**parts), "shown": sql.SQL(SHOWN).format(**parts)}
    parts["reads"] = sql.SQL(READS).format(**parts)
    parts["condition"] = sql.SQL(condition).format(**parts)
    parts["query"] = sql.SQL(query).format(**parts)
    return sql.SQL(text).format(**parts)


def compute_digest() -> str:
    """Return the digest that identifies this version of the schema."""
    statements = [statement.as_string() for statement in _list_statements("lake", V1_1)]
    return hashlib.sha256("".join(statements).encode()).hexdigest()
