"""The migration of a lake from DuckLake 1.0 to 1.1, in one transaction; `duckicelake lake migrate` calls it.

It changes DuckLake's tables, makes no lake snapshot, and cannot be undone. All rows and files of the lake's tables stay as they are.
Afterwards `catalog.namespace_changes` may nest the schemas of nested namespaces, in a commit under the lake's lock; what it reads and
writes for that is at the end of this module.
Source: DuckLake 1.1, «Upgrading to DuckLake 1.1»
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import psycopg
from psycopg import sql

from duckicelake.errors import BadRequest, ServiceUnavailable
from duckicelake.lake.branches.registry import list_branches
from duckicelake.lake.branches.spare import drop_spare
from duckicelake.lake.install import LOCK_PAUSE_S, LOCK_TRIES, NEVER_IDLE, format_search_path
from duckicelake.lake.lake_format import V1_0, V1_1, get_format
from duckicelake.lake.note_rows import NewView
from duckicelake.lake.read import fetch_rows
from duckicelake.lake.rows import TableRow

SELECT_VERSION = "SELECT value FROM ducklake_metadata WHERE key = 'version' AND scope IS NULL"

SELECT_INLINED = """
SELECT i.table_name, coalesce(t.table_name, 'a dropped table') AS user_table,
       ARRAY(SELECT a.attname::text FROM pg_attribute a
              WHERE a.attrelid = to_regclass(quote_ident(i.table_name)) AND a.attnum > 0 AND NOT a.attisdropped
              ORDER BY a.attnum) AS columns,
       -- DuckLake 0.3 stored these types in other ones than DuckLake 1.0.
       ARRAY(SELECT a.attname::text FROM pg_attribute a
              WHERE a.attrelid = to_regclass(quote_ident(i.table_name)) AND a.attnum > 3 AND NOT a.attisdropped
                AND (a.atttypid IN ('date'::regtype, 'timestamp'::regtype, 'timestamptz'::regtype, 'json'::regtype, 'jsonb'::regtype)
                     OR (a.atttypid = 'varchar'::regtype AND lower(a.attname) IN (
                         SELECT lower(c.column_name) FROM ducklake_column c
                          WHERE c.table_id = i.table_id AND c.parent_column IS NULL
                          GROUP BY 1 HAVING bool_and(lower(c.column_type) IN ('varchar', 'json')))))
              ORDER BY a.attnum) AS old_columns
  FROM ducklake_inlined_data_tables i
  LEFT JOIN ducklake_table t ON t.table_id = i.table_id AND t.end_snapshot IS NULL
 ORDER BY i.table_id, i.schema_version
"""

SELECT_RESERVED = """
SELECT t.table_name, c.column_name
  FROM ducklake_column c JOIN ducklake_table t ON t.table_id = c.table_id AND t.end_snapshot IS NULL
 WHERE c.end_snapshot IS NULL AND c.parent_column IS NULL AND starts_with(lower(c.column_name), %(prefix)s)
 ORDER BY 1, 2
"""

SELECT_IS_OWNER = """
SELECT coalesce(bool_and(pg_has_role(c.relowner, 'USAGE')), false)
  FROM pg_class c
 WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema())) AND c.relkind = 'r' AND c.relname LIKE 'ducklake\\_%%'
"""

COUNT_SESSIONS = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
"""

INSERT_SCHEMA_VERSIONS = """
INSERT INTO ducklake_schema_versions (begin_snapshot, schema_version, table_id)
SELECT DISTINCT s.snapshot_id, i.schema_version, i.table_id
  FROM ducklake_inlined_data_tables i
  -- The snapshot that made the version is known only as long as the one before it exists.
  JOIN ducklake_snapshot s ON s.schema_version >= i.schema_version
  JOIN ducklake_snapshot b ON b.snapshot_id = s.snapshot_id - 1 AND b.schema_version < i.schema_version
 WHERE NOT EXISTS (SELECT FROM ducklake_schema_versions v WHERE v.table_id = i.table_id AND v.schema_version = i.schema_version)
   -- A table that has had one version only needs no further row.
   AND (SELECT count(*) FROM ducklake_schema_versions v WHERE v.table_id = i.table_id AND v.begin_snapshot <= s.snapshot_id) > 1
"""

UPDATE_LOST_DEFAULTS = """
WITH lost AS (
    SELECT DISTINCT ON (r.table_id, r.column_id, r.begin_snapshot) r.table_id, r.column_id, r.begin_snapshot,
           e.initial_default, e.default_value, e.default_value_type, e.default_value_dialect
      FROM ducklake_column r JOIN ducklake_column e ON e.table_id = r.table_id AND e.column_id = r.column_id
       AND e.begin_snapshot < r.begin_snapshot AND e.initial_default IS NOT NULL
     -- DuckDB 1.5 lost the defaults of a struct's field when it was renamed.
     WHERE r.parent_column IS NOT NULL AND r.initial_default IS NULL
     ORDER BY r.table_id, r.column_id, r.begin_snapshot, e.begin_snapshot DESC
)
UPDATE ducklake_column c
   SET initial_default = lost.initial_default, default_value = lost.default_value,
       default_value_type = lost.default_value_type, default_value_dialect = lost.default_value_dialect
  FROM lost
 WHERE c.table_id = lost.table_id AND c.column_id = lost.column_id AND c.begin_snapshot = lost.begin_snapshot
"""

UPDATE_FILE_BOUNDS = """
UPDATE ducklake_file_column_stats s SET min_value = NULL, max_value = NULL
  FROM (SELECT table_id, column_id FROM ducklake_column GROUP BY 1, 2
        HAVING count(DISTINCT lower(column_type)) > 1
           -- Whole numbers have the same text in all their types, and bounds prove that a former UINTEGER held no number above 2^31.
           AND NOT bool_and(lower(column_type) ~ '^u?int(8|16|32|64|128)$')) c
 -- The texts may be of the type that the column had before.
 WHERE s.table_id = c.table_id AND s.column_id = c.column_id
"""

UPDATE_TABLE_BOUNDS = UPDATE_FILE_BOUNDS.replace("ducklake_file_column_stats", "ducklake_table_column_stats")

ADD_COLUMNS = (
    "ALTER TABLE ducklake_data_file ADD COLUMN row_group_count BIGINT",
    "ALTER TABLE ducklake_delete_file ADD COLUMN row_group_count BIGINT",
    "ALTER TABLE ducklake_file_column_stats ADD COLUMN min_is_exact BOOLEAN, ADD COLUMN max_is_exact BOOLEAN",
    "ALTER TABLE ducklake_table_column_stats ADD COLUMN min_is_exact BOOLEAN, ADD COLUMN max_is_exact BOOLEAN",
    "ALTER TABLE ducklake_schema ADD COLUMN parent_schema_id BIGINT",
    "CREATE TABLE ducklake_view_column_tag"
    " (view_id BIGINT, column_name VARCHAR, begin_snapshot BIGINT, end_snapshot BIGINT, key VARCHAR, value VARCHAR)",
)
"""DuckDB inserts by position, so the columns and their order are DuckLake's."""

UPDATE_VERSION = "UPDATE ducklake_metadata SET value = '1.1' WHERE key = 'version' AND scope IS NULL"

LOCKED_TABLES = (
    *("ducklake_snapshot", "ducklake_metadata", "ducklake_schema", "ducklake_column", "ducklake_schema_versions"),
    *("ducklake_data_file", "ducklake_delete_file", "ducklake_file_column_stats", "ducklake_table_column_stats"),
    "ducklake_inlined_data_tables",
)


@dataclass(frozen=True, slots=True)
class RegisteredInlinedTable:
    """A registered table of inlined rows, with all its columns and those of types that DuckLake 0.3 used; none if it does not exist."""

    table_name: str
    user_table: str
    columns: Sequence[str]
    old_columns: Sequence[str]


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """The plan of a migration of a lake. `obstacles`: what must be corrected first. `is_done`: the lake is of version 1.1 already.

    `session_count`: other sessions in the lake's database; DuckDB sessions of an older release among them must be ended first.
    """

    is_done: bool
    obstacles: Sequence[str]
    inlined_tables: Sequence[str]
    session_count: int


def plan_migration(conn: psycopg.Connection) -> MigrationPlan:
    """Return what a migration of the lake on the search path would do. Raises: Unsupported: its version is neither 1.0 nor 1.1"""
    row = conn.execute(SELECT_VERSION).fetchone()
    if get_format(None if row is None else row[0]) is V1_1:
        return MigrationPlan(True, (), (), 0)
    inlined = fetch_rows(conn, RegisteredInlinedTable, SELECT_INLINED)
    obstacles = [problem for table in inlined for problem in _list_obstacles(table)]
    for table_name, column_name in conn.execute(SELECT_RESERVED, {"prefix": V1_1.reserved_prefix}).fetchall():
        what = f"Column {column_name!r} of table {table_name!r} has a name that DuckLake 1.1 reserves"
        obstacles.append(f"{what}: flush the table's inlined rows, then rename it.")
    if branches := [branch.name for branch in list_branches(conn)]:
        obstacles.append(f"The lake has branches, which are of DuckLake 1.0: {', '.join(branches)}. Delete them first.")
    if conn.execute(SELECT_IS_OWNER).fetchone() != (True,):
        obstacles.append("The Postgres role does not own DuckLake's tables: run the command as their owner.")
    sessions = conn.execute(COUNT_SESSIONS).fetchone()
    return MigrationPlan(False, obstacles, [table.table_name for table in inlined], 0 if sessions is None else sessions[0])


def _list_obstacles(table: RegisteredInlinedTable) -> list[str]:
    """Return why a table of inlined rows cannot be migrated."""
    columns, flush = [name.lower() for name in table.columns], "flush its inlined rows with DuckDB 1.5 (ducklake_flush_inlined_data)"
    what = f"Table {table.user_table!r}: {table.table_name}"
    if not columns:
        return [f"{what} is registered but does not exist: delete its row in ducklake_inlined_data_tables."]
    if tuple(columns[:3]) != V1_0.inlined_columns:
        return [f"{what} does not begin with the columns of DuckLake 1.0: {flush}."]
    if not set(columns[3:]).isdisjoint(V1_1.inlined_columns):
        return [f"{what} has a column with a name of DuckLake 1.1: {flush}, and rename the column."]
    return [f"{what} holds {', '.join(table.old_columns)} in a type of DuckLake 0.3: {flush}."] if table.old_columns else []


def migrate(conn: psycopg.Connection, metadata_schema: str, tries: int = LOCK_TRIES) -> MigrationPlan:
    """Migrate a lake from DuckLake 1.0 to 1.1, and return what was done. Concurrent writers are not blocked while it waits for locks.

    Raises: BadRequest: obstacles, each named; nothing was changed. ServiceUnavailable: the lake is never idle
    """
    for _ in range(tries):
        try:
            with conn.transaction():
                conn.execute(format_search_path(metadata_schema))
                conn.execute(_compose_lock(conn))
                plan = plan_migration(conn)
                if plan.obstacles:
                    raise BadRequest("The lake cannot be migrated yet. " + " ".join(plan.obstacles))
                if not plan.is_done:
                    drop_spare(conn, metadata_schema)
                    _migrate(conn, plan)
        except psycopg.errors.LockNotAvailable:
            time.sleep(LOCK_PAUSE_S)
        else:
            return plan
    raise ServiceUnavailable(NEVER_IDLE)


def _compose_lock(conn: psycopg.Connection) -> sql.Composed:
    """Return the statement that takes all locks at once or none: waiting with some of them could end in a deadlock with DuckDB."""
    inlined = [table.table_name for table in fetch_rows(conn, RegisteredInlinedTable, SELECT_INLINED) if table.columns]
    names = sql.SQL(", ").join(sql.Identifier(name) for name in (*LOCKED_TABLES, *inlined))
    return sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(names)


def _migrate(conn: psycopg.Connection, plan: MigrationPlan) -> None:
    for table_name in plan.inlined_tables:
        for old, new in zip(V1_0.inlined_columns, V1_1.inlined_columns, strict=True):
            rename = sql.SQL("ALTER TABLE {} RENAME COLUMN {} TO {}")
            conn.execute(rename.format(sql.Identifier(table_name), sql.Identifier(old), sql.Identifier(new)))
    for statement in (INSERT_SCHEMA_VERSIONS, UPDATE_LOST_DEFAULTS, UPDATE_FILE_BOUNDS, UPDATE_TABLE_BOUNDS, *ADD_COLUMNS, UPDATE_VERSION):
        conn.execute(statement)


SELECT_FLAT_SCHEMAS = """
SELECT s.schema_id, s.schema_uuid, s.schema_name, s.path, coalesce(s.path_is_relative, true) AS path_is_relative
  FROM ducklake_schema s
 WHERE s.end_snapshot IS NULL AND to_jsonb(s) ->> 'parent_schema_id' IS NULL AND position('\u241f' IN s.schema_name) > 0
 ORDER BY s.schema_id
"""
SELECT_MEMBERS = """
SELECT 'table' AS kind, table_name AS name FROM ducklake_table WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL
 UNION ALL SELECT 'view', view_name FROM ducklake_view WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL
 UNION ALL SELECT 'macro', macro_name FROM ducklake_macro WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL
 ORDER BY 1, 2
"""
SELECT_TABLES_OF_SCHEMA = """
SELECT t.table_id, t.table_uuid, t.table_name, t.path, coalesce(t.path_is_relative, true) AS path_is_relative,
       s.schema_name, s.path AS schema_path, coalesce(s.path_is_relative, true) AS schema_path_is_relative
  FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
 WHERE t.schema_id = %(schema_id)s AND t.end_snapshot IS NULL
 ORDER BY t.table_id
"""
SELECT_VIEWS_OF_SCHEMA = """
SELECT view_id, coalesce(view_uuid, md5('view ' || view_id)::uuid) AS view_uuid, schema_id, view_name, sql, coalesce(column_aliases, '')
  FROM ducklake_view WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL
 ORDER BY view_id
"""
SELECT_NAMING_VIEWS = """
SELECT view_name FROM ducklake_view
 WHERE end_snapshot IS NULL AND position('"' || replace(%(schema_name)s, '"', '""') || '"' IN sql) > 0
 ORDER BY view_name
"""
SELECT_SCHEMA_SETTINGS = """
SELECT 'property' AS kind, key, value FROM ducklake_tag
 WHERE object_id = %(schema_id)s AND end_snapshot IS NULL AND key IS NOT NULL AND value IS NOT NULL
 UNION ALL
SELECT 'option', key, value FROM ducklake_metadata WHERE scope = 'schema' AND scope_id = %(schema_id)s
 UNION ALL
SELECT 'grant', CASE WHEN p.is_role THEN 'role ' ELSE '' END || p.name, g.privilege
  FROM ducklake_schema s JOIN iceberg_grant g ON g.kind = 'namespace' AND g.object_uuid = s.schema_uuid
  JOIN iceberg_principal p ON p.principal_id = g.principal_id
 WHERE s.schema_id = %(schema_id)s AND s.end_snapshot IS NULL
"""
UPDATE_SCHEMA_OPTIONS = """
UPDATE ducklake_metadata SET scope_id = %(new_id)s WHERE scope = 'schema' AND scope_id = %(schema_id)s
"""


@dataclass(frozen=True, slots=True)
class FlatSchema:
    """A schema of DuckLake 1.0 whose name has several levels."""

    schema_id: int
    schema_uuid: UUID
    schema_name: str
    path: str | None
    path_is_relative: bool


@dataclass(frozen=True, slots=True)
class SchemaMembers:
    """The tables and views of a schema, and the names of all that is in it, by kind."""

    tables: Sequence[TableRow]
    views: Sequence[NewView]
    names: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, order=True)
class SchemaSetting:
    """A property (live tag), a DuckLake option or a grant of a schema. A grant's key is the principal, and its value the privilege."""

    kind: str
    key: str
    value: str


def read_schema_settings(conn: psycopg.Connection, schema_id: int) -> set[SchemaSetting]:
    """Return what a schema has besides its members."""
    return set(fetch_rows(conn, SchemaSetting, SELECT_SCHEMA_SETTINGS, schema_id=schema_id))


def read_flat_schemas(conn: psycopg.Connection) -> list[FlatSchema]:
    """Return the live schemas at the top level whose names have the separator of levels."""
    return fetch_rows(conn, FlatSchema, SELECT_FLAT_SCHEMAS)


def read_member_names(conn: psycopg.Connection, schema_id: int) -> list[tuple[str, str]]:
    """Return the kind and name of everything in a schema."""
    return [(kind, name) for kind, name in conn.execute(SELECT_MEMBERS, {"schema_id": schema_id}).fetchall()]


def read_members(conn: psycopg.Connection, schema_id: int) -> SchemaMembers:
    """Return what is in a schema."""
    views = [NewView(*row) for row in conn.execute(SELECT_VIEWS_OF_SCHEMA, {"schema_id": schema_id}).fetchall()]
    tables = fetch_rows(conn, TableRow, SELECT_TABLES_OF_SCHEMA, schema_id=schema_id)
    return SchemaMembers(tables, views, read_member_names(conn, schema_id))


def read_naming_views(conn: psycopg.Connection, schema_name: str) -> list[str]:
    """Return the names of views whose SQL has a schema's name in quotes."""
    return [name for (name,) in conn.execute(SELECT_NAMING_VIEWS, {"schema_name": schema_name}).fetchall()]


def move_schema_options(conn: psycopg.Connection, schema_id: int, new_id: int) -> None:
    """Give the DuckLake options of a schema to another one."""
    conn.execute(UPDATE_SCHEMA_OPTIONS, {"schema_id": schema_id, "new_id": new_id})
