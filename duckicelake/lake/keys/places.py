"""Where all tables lie, and which files of one lie elsewhere: what keys are cut from."""

from dataclasses import dataclass

import psycopg

from duckicelake.lake.read import fetch_rows


@dataclass(frozen=True, slots=True)
class TableLocation:
    """One place that a table has or had: DuckLake's folder (`folder` and its schema's, each maybe relative), or a location."""

    table_id: int
    location: str
    folder: str | None
    folder_is_relative: bool
    schema_folder: str | None
    schema_is_relative: bool

    def resolve(self, data_path: str) -> str:
        """Return DuckLake's folder as a path or URI."""
        parent = (data_path if self.schema_is_relative else "") + (self.schema_folder or "")
        return (parent if self.folder_is_relative else "") + (self.folder or "")


SELECT_TABLE_LOCATIONS = """
SELECT DISTINCT t.table_id, '' AS location, coalesce(t.path, '') AS folder, coalesce(t.path_is_relative, true) AS folder_is_relative,
       s.path AS schema_folder, coalesce(s.path_is_relative, true) AS schema_is_relative
  FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id
UNION ALL
SELECT n.table_id, n.location, NULL, true, NULL, true
  FROM (SELECT table_id, location FROM iceberg_table UNION SELECT table_id, location FROM iceberg_location) n
 WHERE EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = n.table_id)
    -- the files of an unregistered table stay where they are for ever, unless a table that was registered has them again
    OR EXISTS (SELECT FROM ducklake_delete_file p
                WHERE p.table_id = 9223372036854775807
                  AND starts_with(regexp_replace(p.path, '^s3[an]://', 's3://'), regexp_replace(n.location, '^s3[an]://', 's3://') || '/')
                  AND NOT EXISTS (SELECT FROM ducklake_data_file f WHERE f.path = p.path))
UNION ALL
-- DuckLake has forgotten these tables, and their files are still there; -1 stands for a table that is not made yet
SELECT DISTINCT -2, '', regexp_replace(g.path, '[^/]*$', ''), g.path_is_relative, '', true
  FROM iceberg_gone_file g
 WHERE EXISTS (SELECT FROM ducklake_files_scheduled_for_deletion f WHERE f.path = g.path)
"""


def list_table_locations(conn: psycopg.Connection) -> list[TableLocation]:
    """Return the places of all tables that DuckLake still knows of, dropped ones and earlier places included, and of files yet to go."""
    return fetch_rows(conn, TableLocation, SELECT_TABLE_LOCATIONS)


SELECT_OUTSIDE_PATHS = """
SELECT n.path, n.path_is_relative FROM (
    SELECT path, coalesce(path_is_relative, true) AS path_is_relative FROM ducklake_data_file WHERE table_id = %(table_id)s
    UNION
    SELECT path, coalesce(path_is_relative, true) FROM iceberg_merged_file WHERE table_id = %(table_id)s AND path IS NOT NULL
    UNION
    SELECT path, coalesce(path_is_relative, true) FROM ducklake_delete_file WHERE table_id = %(table_id)s
) n
 WHERE NOT EXISTS (SELECT FROM unnest(%(alone)s::text[]) f
                    WHERE starts_with(CASE WHEN n.path_is_relative THEN %(folder)s || n.path ELSE n.path END, f))
 LIMIT %(most)s
"""


def list_outside_paths(conn: psycopg.Connection, table_id: int, folder: str, alone: list[str], most: int) -> list[tuple[str, bool]]:
    """Return the paths of a table's files, live or not, that lie in none of some folders; whether each is relative; not all of many."""
    parameters = {"table_id": table_id, "folder": folder, "alone": alone, "most": most}
    return [(row[0], row[1]) for row in conn.execute(SELECT_OUTSIDE_PATHS, parameters)]


SELECT_HAS_PATH = """
SELECT EXISTS (SELECT FROM ducklake_data_file f WHERE f.table_id = %(table_id)s
                  AND CASE WHEN coalesce(f.path_is_relative, true) THEN f.path = %(relative)s ELSE f.path = ANY(%(whole)s::text[]) END)
    OR EXISTS (SELECT FROM iceberg_merged_file f WHERE f.table_id = %(table_id)s
                  AND CASE WHEN coalesce(f.path_is_relative, true) THEN f.path = %(relative)s ELSE f.path = ANY(%(whole)s::text[]) END)
    OR EXISTS (SELECT FROM ducklake_delete_file f WHERE f.table_id = %(table_id)s
                  AND CASE WHEN coalesce(f.path_is_relative, true) THEN f.path = %(relative)s ELSE f.path = ANY(%(whole)s::text[]) END)
"""


def has_path(conn: psycopg.Connection, table_id: int, relative: str | None, whole: list[str]) -> bool:
    """Tell whether a table has or had a file of that relative path, or of one of these whole ones."""
    row = conn.execute(SELECT_HAS_PATH, {"table_id": table_id, "relative": relative, "whole": whole}).fetchone()
    return row is not None and bool(row[0])


@dataclass(frozen=True, slots=True)
class LiveTableName:
    """A table that is there, by its name."""

    table_id: int
    schema_name: str
    table_name: str


SELECT_LIVE_NAMES = """
SELECT t.table_id, s.schema_name, t.table_name
  FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
 WHERE t.end_snapshot IS NULL ORDER BY t.table_id
"""


def list_live_table_names(conn: psycopg.Connection) -> list[LiveTableName]:
    """Return all tables that are there."""
    return fetch_rows(conn, LiveTableName, SELECT_LIVE_NAMES)
