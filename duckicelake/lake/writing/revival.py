"""Tables that were dropped and may come back: what is left of them."""

from dataclasses import dataclass

import psycopg

from duckicelake.lake.read import fetch_rows
from duckicelake.lake.rows import TableRow


@dataclass(frozen=True, slots=True)
class NotedTable(TableRow):
    """A table that has been published at a location, under its last name; `end_snapshot` is where it was dropped, if it was."""

    metadata_version: int
    end_snapshot: int | None


SELECT_NOTED_TABLES = """
SELECT t.table_id, t.table_uuid, t.table_name, t.path, coalesce(t.path_is_relative, true) AS path_is_relative,
       s.schema_name, s.path AS schema_path, coalesce(s.path_is_relative, true) AS schema_path_is_relative,
       n.metadata_version, t.end_snapshot
  FROM iceberg_table n
  JOIN LATERAL (SELECT * FROM ducklake_table d WHERE d.table_id = n.table_id ORDER BY d.begin_snapshot DESC LIMIT 1) t ON true
  JOIN LATERAL (SELECT * FROM ducklake_schema d WHERE d.schema_id = t.schema_id ORDER BY d.begin_snapshot DESC LIMIT 1) s ON true
 WHERE n.location = %(location)s
 ORDER BY n.table_id
"""


def list_noted_tables(conn: psycopg.Connection, location: str) -> list[NotedTable]:
    """Return the tables that have been at a location, as far as DuckLake still knows their rows."""
    return fetch_rows(conn, NotedTable, SELECT_NOTED_TABLES, location=location)


SELECT_DROP = """
SELECT c.changes_made,
       EXISTS (SELECT FROM ducklake_snapshot p WHERE p.snapshot_id = c.snapshot_id - 1) AS has_predecessor
  FROM ducklake_snapshot_changes c
 WHERE c.snapshot_id = %(snapshot_id)s
"""


def find_drop(conn: psycopg.Connection, snapshot_id: int) -> tuple[str, bool] | None:
    """Return what the lake snapshot of a drop changed, and whether the one before it is still there; None when it has expired."""
    row = conn.execute(SELECT_DROP, {"snapshot_id": snapshot_id}).fetchone()
    return None if row is None else (row[0] or "", row[1])
