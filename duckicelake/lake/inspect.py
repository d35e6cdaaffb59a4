"""Checks of a lake's rows for `duckicelake check`; nothing is changed.

`commands.check` and `commands.fill_defaults` call the `read_` functions on a connection with autocommit, where each query sees the newest
state. The `list_` functions are pure.
"""

from dataclasses import dataclass
from typing import Literal, LiteralString

import psycopg
from psycopg import sql

from duckicelake.lake.install import has_settings
from duckicelake.lake.lake_format import FORMATS, NAMED_SCHEMA, get_format
from duckicelake.lake.notes import METADATA_LOG_MAX
from duckicelake.lake.read import fetch_rows
from duckicelake.lake.rows import MetadataLogRow

Severity = Literal["error", "warning"]

SELECT_SETTINGS = "SELECT key, value FROM ducklake_metadata WHERE scope IS NULL"

SELECT_PRIVILEGES = """
SELECT c.relname, has_table_privilege(c.oid, 'SELECT') AS may_read,
       has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE') AS may_write
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = %(metadata_schema)s AND c.relkind IN ('r', 'v')
   AND (c.relname LIKE 'ducklake\\_%%' OR c.relname LIKE 'iceberg\\_%%')
 ORDER BY c.relname
"""

SELECT_SCOPES = """
SELECT key, format('option %%s has scope %%s', key, scope) FROM ducklake_metadata
 WHERE scope IS NOT NULL AND scope NOT IN ('schema', 'table')
"""

SELECT_TYPES = """
SELECT t.table_name, format('column %%s has type %%s', c.column_name, c.column_type)
  FROM ducklake_column c JOIN ducklake_table t ON t.table_id = c.table_id AND t.end_snapshot IS NULL
 WHERE c.end_snapshot IS NULL
   AND c.column_type !~ '^decimal\\(\\d+, ?\\d+\\)$'
   AND c.column_type NOT IN ('boolean', 'int8', 'int16', 'int32', 'int64', 'int128', 'uint8', 'uint16', 'uint32', 'uint64', 'uint128',
       'float32', 'float64', 'time', 'time_ns', 'timetz', 'date', 'timestamp', 'timestamp_us', 'timestamp_s', 'timestamp_ms',
       'timestamp_ns', 'timestamptz', 'interval', 'varchar', 'blob', 'uuid', 'json', 'variant', 'geometry', 'struct', 'list', 'map')
   AND c.column_type <> ALL(%(further_types)s)
 ORDER BY 1, 2
"""

SELECT_COLUMN_TAGS = """
SELECT t.table_name, format('column %%s carries tag %%s', g.column_id, g.key)
  FROM ducklake_column_tag g JOIN ducklake_table t ON t.table_id = g.table_id AND t.end_snapshot IS NULL
 WHERE g.end_snapshot IS NULL AND g.key <> 'comment'
 ORDER BY 1, 2
"""

SELECT_TRANSFORMS = """
SELECT t.table_name, format('partition transform %%s', p.transform)
  FROM ducklake_partition_column p
  JOIN ducklake_partition_info i ON i.partition_id = p.partition_id AND i.end_snapshot IS NULL
  JOIN ducklake_table t ON t.table_id = i.table_id AND t.end_snapshot IS NULL
 WHERE p.transform !~ '^(identity|year|month|day|hour|bucket\\(\\d+\\))$'
   AND p.transform <> ALL(%(further_transforms)s)
 ORDER BY 1, 2
"""

SELECT_EMPTY_TABLES = """
SELECT t.table_name, 'has no columns' FROM ducklake_table t
 WHERE t.end_snapshot IS NULL AND t.table_id < 9223372036854775807
   AND NOT EXISTS (SELECT FROM ducklake_column c WHERE c.table_id = t.table_id AND c.end_snapshot IS NULL)
 ORDER BY 1
"""

SELECT_EMPTY_STRUCTS = """
SELECT t.table_name, format('struct %%s has no fields', c.column_name)
  FROM ducklake_column c JOIN ducklake_table t ON t.table_id = c.table_id AND t.end_snapshot IS NULL
 WHERE c.end_snapshot IS NULL AND c.column_type = 'struct'
   AND NOT EXISTS (SELECT FROM ducklake_column f
                    WHERE f.table_id = c.table_id AND f.parent_column = c.column_id AND f.end_snapshot IS NULL)
 ORDER BY 1, 2
"""

SELECT_DUPLICATE_COLUMNS = """
SELECT t.table_name, format('columns %%s differ only by case', string_agg(c.column_name, ', ' ORDER BY c.column_id))
  FROM ducklake_column c JOIN ducklake_table t ON t.table_id = c.table_id AND t.end_snapshot IS NULL
 WHERE c.end_snapshot IS NULL
 GROUP BY t.table_id, t.table_name, c.parent_column, lower(c.column_name)
HAVING count(*) > 1
 ORDER BY 1, 2
"""

SELECT_LATE_PARENTS = """
SELECT t.table_name, format('nested column %%s has id %%s, not above its parent %%s', p.column_name, p.column_id, p.parent_column)
  FROM ducklake_column p JOIN ducklake_table t ON t.table_id = p.table_id AND t.end_snapshot IS NULL
 WHERE p.end_snapshot IS NULL AND p.parent_column >= p.column_id
   -- DuckDB loads columns by parent id, so only a column that is itself a parent must follow its own parent.
   AND EXISTS (SELECT FROM ducklake_column c
                WHERE c.table_id = p.table_id AND c.parent_column = p.column_id AND c.end_snapshot IS NULL)
 ORDER BY 1, 2
"""

SELECT_TABLES_WITHOUT_SCHEMA = """
SELECT t.table_name, format('belongs to namespace %%s, which is dropped or missing', t.schema_id) FROM ducklake_table t
 WHERE t.end_snapshot IS NULL
   AND NOT EXISTS (SELECT FROM ducklake_schema s WHERE s.schema_id = t.schema_id AND s.end_snapshot IS NULL)
 ORDER BY 1
"""

SELECT_DUPLICATE_TABLES = """
SELECT min(t.table_name), format('tables %%s of one namespace differ only by case', string_agg(t.table_name, ', ' ORDER BY t.table_id))
  FROM ducklake_table t WHERE t.end_snapshot IS NULL
 GROUP BY t.schema_id, lower(t.table_name) HAVING count(*) > 1
 ORDER BY 1
"""

SELECT_SAME_NAMESPACES = "".join(
    (
        """
SELECT min(n.schema_name), format('%%s schemas have the levels of one namespace', count(*))
  FROM ducklake_schema l
  """,
        NAMED_SCHEMA.format("l"),
        """
 WHERE l.end_snapshot IS NULL
 GROUP BY lower(n.schema_name) HAVING count(*) > 1
 ORDER BY 1
""",
    )
)

SELECT_VIEW_ALIASES = """
SELECT view_name, 'has column_aliases NULL' FROM ducklake_view WHERE end_snapshot IS NULL AND column_aliases IS NULL ORDER BY 1
"""

SELECT_TYPELESS_DEFAULTS = """
SELECT t.table_name, format('column %%s has a default without default_value_type', c.column_name)
  FROM ducklake_column c JOIN ducklake_table t ON t.table_id = c.table_id AND t.end_snapshot IS NULL
 WHERE c.end_snapshot IS NULL AND c.default_value_type = '' AND c.default_value IS NOT NULL AND c.default_value <> 'NULL'
   AND c.column_type NOT IN ('struct', 'list', 'map')
 ORDER BY 1, 2
"""

SELECT_BROKEN_PATHS = """
SELECT name, format('path %%s has no trailing slash', path) FROM (
    SELECT table_name AS name, path FROM ducklake_table WHERE end_snapshot IS NULL
    UNION ALL SELECT schema_name, path FROM ducklake_schema WHERE end_snapshot IS NULL
    UNION ALL SELECT 'DATA_PATH', value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL) folders
 WHERE path NOT LIKE '%%/' ORDER BY 1
"""

SELECT_BROKEN_FILES = """
SELECT t.table_name, format('data file %%s has no %%s', f.path, CASE WHEN f.path IS NULL THEN 'path'
           WHEN f.record_count IS NULL THEN 'record_count' ELSE 'file_size_bytes' END)
  FROM ducklake_data_file f JOIN ducklake_table t ON t.table_id = f.table_id AND t.end_snapshot IS NULL
 WHERE f.path IS NULL OR f.record_count IS NULL OR f.file_size_bytes IS NULL
 ORDER BY 1, 2
"""

SELECT_OTHER_FORMATS = """
SELECT t.table_name, format('data file %%s has format %%s', f.path, f.file_format)
  FROM ducklake_data_file f JOIN ducklake_table t ON t.table_id = f.table_id AND t.end_snapshot IS NULL
 WHERE f.file_format IS NOT NULL AND lower(f.file_format) <> 'parquet'
 ORDER BY 1, 2
"""

SELECT_DOUBLE_DELETES = """
SELECT t.table_name, format('data file %%s has %%s live delete files', d.data_file_id, count(*))
  FROM ducklake_delete_file d JOIN ducklake_table t ON t.table_id = d.table_id AND t.end_snapshot IS NULL
 WHERE d.end_snapshot IS NULL
   -- PLACEHOLDER_ID marks files that only a retained snapshot needs, not the deletes of a data file.
   AND d.data_file_id < 9223372036854775807
 GROUP BY t.table_name, d.data_file_id HAVING count(*) > 1
 ORDER BY 1, 2
"""

SELECT_LATE_TIMES = """
SELECT t.table_name, format('column %%s holds the time 24:00:00', c.column_name)
  FROM ducklake_column c JOIN ducklake_table t ON t.table_id = c.table_id AND t.end_snapshot IS NULL
 WHERE c.end_snapshot IS NULL AND c.column_type = 'time'
   AND EXISTS (SELECT FROM ducklake_file_column_stats s
                WHERE s.table_id = c.table_id AND s.column_id = c.column_id AND s.max_value LIKE '24:00:00%%')
 ORDER BY 1, 2
"""

SELECT_DEFAULTS = """
SELECT t.table_name, c.column_name, c.column_type, c.initial_default
  FROM ducklake_column c JOIN ducklake_table t ON t.table_id = c.table_id AND t.end_snapshot IS NULL
 WHERE c.end_snapshot IS NULL AND c.initial_default IS NOT NULL AND c.column_type NOT IN ('struct', 'list', 'map')
 ORDER BY 1, 2
"""

SELECT_LATE_COLUMNS = """
SELECT c.column_name AS name, o.begin_snapshot, count(*) AS file_count,
       EXISTS (SELECT FROM ducklake_column h
                WHERE h.table_id = c.table_id AND h.end_snapshot IS NULL AND h.parent_column IS NULL
                  AND lower(h.column_name) = 'snapshot_id') AS hides_snapshots
  FROM ducklake_column c
  -- A rename makes another row of the same column.
  CROSS JOIN LATERAL (SELECT min(b.begin_snapshot) AS begin_snapshot FROM ducklake_column b
                       WHERE b.table_id = c.table_id AND b.column_id = c.column_id) o
  JOIN ducklake_data_file f ON f.table_id = c.table_id AND f.end_snapshot IS NULL AND f.begin_snapshot < o.begin_snapshot
 WHERE c.table_id = %(table_id)s AND c.end_snapshot IS NULL AND c.initial_default IS NOT NULL AND c.parent_column IS NULL
 GROUP BY c.table_id, c.column_id, c.column_name, o.begin_snapshot
 ORDER BY c.column_id
"""

SELECT_FILES = """
SELECT s.schema_name || '.' || t.table_name,
       CASE WHEN NOT f.path_is_relative THEN '' WHEN NOT t.path_is_relative THEN t.path
            WHEN NOT s.path_is_relative THEN concat(s.path, t.path)
            ELSE concat((SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL), s.path, t.path) END || f.path
  FROM (SELECT table_id, path, path_is_relative FROM ducklake_data_file
        -- A negative id keeps a file for another member of a repository, which may have removed it since.
        UNION ALL SELECT table_id, path, path_is_relative FROM ducklake_delete_file WHERE delete_file_id >= 0) f
  JOIN ducklake_table t ON t.table_id = f.table_id AND t.end_snapshot IS NULL
  JOIN ducklake_schema s ON s.schema_id = t.schema_id
 WHERE f.path IS NOT NULL
 ORDER BY 1, 2
"""

SELECT_PUBLISHED = "".join(
    (
        """
SELECT n.schema_name, t.table_name, i.location, i.metadata_version
  FROM iceberg_table i JOIN ducklake_table t ON t.table_id = i.table_id AND t.end_snapshot IS NULL
  """,
        NAMED_SCHEMA.format("t"),
        """
 WHERE i.metadata_version > 0 AND n.schema_name IS NOT NULL
 ORDER BY 1, 2
""",
    )
)


@dataclass(frozen=True, slots=True)
class LakeFinding:
    """One finding of the check: the object, the problem, and what to do."""

    severity: Severity
    subject: str
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True)
class RowCheck:
    """A query for rows (subject, problem) that should not exist, and what to do about them."""

    query: LiteralString
    severity: Severity
    remedy: str


@dataclass(frozen=True, slots=True)
class TablePrivileges:
    """The rights of our Postgres role on one table."""

    table: str
    may_read: bool
    may_write: bool


def list_row_checks() -> list[RowCheck]:
    """Return the checks on rows. A row that an `error` check finds stops DuckDB or makes it return wrong rows."""
    end_row = "DuckDB cannot attach the lake while this row is live: correct or end it in Postgres."
    rename = "DuckDB sees only one of them: rename the other in Postgres."
    return [
        RowCheck(SELECT_SCOPES, "error", end_row),
        RowCheck(SELECT_TYPES, "error", end_row),
        RowCheck(SELECT_COLUMN_TAGS, "error", end_row),
        RowCheck(SELECT_TRANSFORMS, "error", end_row),
        RowCheck(SELECT_EMPTY_TABLES, "error", end_row),
        RowCheck(SELECT_EMPTY_STRUCTS, "error", end_row),
        RowCheck(SELECT_DUPLICATE_COLUMNS, "error", end_row),
        RowCheck(SELECT_LATE_PARENTS, "error", end_row),
        RowCheck(SELECT_TABLES_WITHOUT_SCHEMA, "error", end_row),
        RowCheck(SELECT_VIEW_ALIASES, "error", end_row),
        RowCheck(SELECT_TYPELESS_DEFAULTS, "error", end_row),
        RowCheck(SELECT_DUPLICATE_TABLES, "error", rename),
        RowCheck(SELECT_BROKEN_PATHS, "error", "DuckLake joins paths as they are: add the slash in Postgres."),
        RowCheck(SELECT_BROKEN_FILES, "error", "DuckDB fails on this table: set the value from the file, or remove the row."),
        RowCheck(SELECT_OTHER_FORMATS, "error", "DuckDB reads every file as Parquet: remove the file from the table."),
        RowCheck(SELECT_SAME_NAMESPACES, "warning", "Clients are shown the tables of one only: move the other's tables out, and drop it."),
        RowCheck(SELECT_LATE_TIMES, "warning", "Iceberg's day ends before it, and readers may fail: update it to 23:59:59.999999."),
        RowCheck(SELECT_DOUBLE_DELETES, "error", "Rows come back or repeat: keep the delete file with all positions, end the others."),
    ]


def read_findings(conn: psycopg.Connection) -> list[LakeFinding]:
    """Return the problems of the rows in the lake on the search path."""
    findings: list[LakeFinding] = []
    lake_format = get_format(read_settings(conn).get("version"))
    parameters = {
        "further_types": sorted(lake_format.column_types),
        "further_transforms": sorted(lake_format.transforms),
    }
    for check in list_row_checks():
        for subject, problem in conn.execute(sql.SQL(check.query), parameters).fetchall():
            findings.append(LakeFinding(check.severity, subject, problem, check.remedy))
    return findings


def read_privileges(conn: psycopg.Connection, metadata_schema: str) -> list[TablePrivileges]:
    """Return the rights of our Postgres role on DuckLake's tables and ours."""
    rows = conn.execute(SELECT_PRIVILEGES, {"metadata_schema": metadata_schema}).fetchall()
    return [TablePrivileges(table, may_read, may_write) for table, may_read, may_write in rows]


def read_settings(conn: psycopg.Connection) -> dict[str, str]:
    """Return the lake's global options."""
    return dict(conn.execute(SELECT_SETTINGS).fetchall())


def read_file_paths(conn: psycopg.Connection) -> list[tuple[str, str]]:
    """Return (namespace.table, full path) of every data and delete file that a live table has at any lake snapshot."""
    return conn.execute(SELECT_FILES).fetchall()


def read_published(conn: psycopg.Connection) -> list[tuple[str, str, str, int]]:
    """Return (DuckLake schema, table, Iceberg location, newest metadata version) of every live table that has been published."""
    return conn.execute(SELECT_PUBLISHED).fetchall()


SELECT_PUBLISHED_LOG = """
SELECT g.metadata_version, g.updated_ms
  FROM iceberg_table n JOIN ducklake_table t ON t.table_id = n.table_id AND t.end_snapshot IS NULL
  JOIN iceberg_metadata_log g ON g.table_id = n.table_id
 WHERE n.location = %(location)s
   -- Versions published before the table was moved lie at another location.
   AND NOT EXISTS (SELECT FROM iceberg_location l WHERE l.table_id = n.table_id AND l.metadata_version >= g.metadata_version)
 ORDER BY g.metadata_version DESC
 LIMIT %(most)s
"""


def read_published_log(conn: psycopg.Connection, location: str) -> list[MetadataLogRow]:
    """Return the metadata versions of the live table at a location that were published there, newest first."""
    return fetch_rows(conn, MetadataLogRow, SELECT_PUBLISHED_LOG, location=location, most=METADATA_LOG_MAX + 1)


def read_defaults(conn: psycopg.Connection) -> list[tuple[str, str, str, str]]:
    """Return (table, column, DuckLake type, initial default) of every live column with an initial default."""
    return conn.execute(SELECT_DEFAULTS).fetchall()


@dataclass(frozen=True, slots=True)
class LateColumn:
    """A column with a default that some files are older than. `hides_snapshots`: the table has a column `snapshot_id` of its own."""

    name: str
    begin_snapshot: int
    file_count: int
    hides_snapshots: bool


def read_late_columns(conn: psycopg.Connection, table_id: int) -> list[LateColumn]:
    """Return the columns of a table with an initial default that live data files are older than."""
    return fetch_rows(conn, LateColumn, SELECT_LATE_COLUMNS, table_id=table_id)


@dataclass(frozen=True, slots=True)
class Inlining:
    """What DuckDB keeps of a table in Postgres. `row_limit`: the option for it; None: it is not set. `has_deletes`: deleted rows."""

    row_limit: int | None
    has_deletes: bool


SELECT_ROW_LIMIT = """
SELECT m.value::bigint FROM ducklake_metadata m
 WHERE m.key = 'data_inlining_row_limit'
   AND (m.scope IS NULL OR (m.scope = 'table' AND m.scope_id = %(table_id)s) OR (m.scope = 'schema' AND m.scope_id IN (
            SELECT t.schema_id FROM ducklake_table t WHERE t.table_id = %(table_id)s AND t.end_snapshot IS NULL)))
 ORDER BY coalesce(array_position(ARRAY['table', 'schema'], m.scope::text), 3)
 LIMIT 1
"""


def read_inlining(conn: psycopg.Connection, table_id: int) -> Inlining:
    """Return what DuckDB keeps of a table in Postgres."""
    limit = conn.execute(SELECT_ROW_LIMIT, {"table_id": table_id}).fetchone()
    name = f"ducklake_inlined_delete_{table_id}"
    is_there = conn.execute("SELECT to_regclass(%s) IS NOT NULL", (name,)).fetchone() == (True,)
    query = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(name))
    return Inlining(None if limit is None else limit[0], is_there and conn.execute(query).fetchone() == (True,))


def list_setting_findings(settings: dict[str, str]) -> list[LakeFinding]:
    """Return the findings about the lake's options that keep the catalog from serving it."""
    findings: list[LakeFinding] = []
    version = settings.get("version")
    if version not in FORMATS:
        served = " and ".join(FORMATS)
        remedy = f"This catalog serves {served}: attach the lake with the matching DuckDB release, or copy it into a new one."
        findings.append(LakeFinding("error", "lake", f"its DuckLake version is {version!r}", remedy))
    if settings.get("encrypted") == "true":
        remedy = "No Iceberg reader can open its files: copy it into a lake without ENCRYPTED."
        findings.append(LakeFinding("error", "lake", "it is encrypted", remedy))
    return findings


def list_privilege_findings(rights: list[TablePrivileges]) -> list[LakeFinding]:
    """Return the missing rights of our role: to read all tables, to write our tables, to write DuckLake's tables."""
    findings: list[LakeFinding] = []
    for right in rights:
        is_ours = right.table.startswith("iceberg_")
        if not right.may_read:
            findings.append(LakeFinding("error", right.table, "our Postgres role may not read it", "GRANT SELECT on it to the role."))
        elif not right.may_write:
            severity: Severity = "error" if is_ours else "warning"
            reason = "our Postgres role may not write it" + ("" if is_ours else ", so Iceberg clients can only read")
            findings.append(LakeFinding(severity, right.table, reason, "GRANT INSERT, UPDATE, DELETE on it to the role."))
    if not any(right.table.startswith("iceberg_") for right in rights):
        findings.append(LakeFinding("error", "lake", "our notes are missing", "Run `duckicelake init`."))
    return findings


def list_missing_files(paths: list[tuple[str, str]], present: set[str]) -> list[LakeFinding]:
    """Return a finding for every file that the lake lists and the store does not have."""
    remedy = "Restore the object from a backup, or end the file in Postgres; its rows are lost then."
    return [LakeFinding("error", table, f"the file {path} is missing", remedy) for table, path in paths if path not in present]


SELECT_FOR_PUBLIC = """
SELECT EXISTS (SELECT FROM iceberg_setting WHERE key = 'readers') AND has_database_privilege('public', current_database(), 'TEMPORARY'),
       EXISTS (SELECT FROM iceberg_setting WHERE key = 'readers') AND to_regnamespace('public') IS NOT NULL
       AND has_schema_privilege('public', 'public', 'CREATE')
"""


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
