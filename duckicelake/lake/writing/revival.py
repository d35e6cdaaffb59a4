"""Tables that were dropped: what is left of those that may come back, and of those that may not, because their files go."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import psycopg

from duckicelake.lake.read import fetch_rows
from duckicelake.lake.rows import TableRow


@dataclass(frozen=True, slots=True)
class LocatedTable(TableRow):
    """A table that has been published at a location, under its last name; `end_snapshot` is where it was dropped, if it was."""

    metadata_version: int
    end_snapshot: int | None


SELECT_LOCATED_TABLES = """
SELECT t.table_id, t.table_uuid, t.table_name, t.path, coalesce(t.path_is_relative, true) AS path_is_relative,
       s.schema_name, s.path AS schema_path, coalesce(s.path_is_relative, true) AS schema_path_is_relative,
       n.metadata_version, t.end_snapshot
  FROM iceberg_table n
  JOIN LATERAL (SELECT * FROM ducklake_table d WHERE d.table_id = n.table_id ORDER BY d.begin_snapshot DESC LIMIT 1) t ON true
  JOIN LATERAL (SELECT * FROM ducklake_schema d WHERE d.schema_id = t.schema_id ORDER BY d.begin_snapshot DESC LIMIT 1) s ON true
 WHERE n.location = %(location)s
 ORDER BY n.table_id
"""


def list_located_tables(conn: psycopg.Connection, location: str) -> list[LocatedTable]:
    """Return the tables that have been at a location, as far as DuckLake still knows their rows."""
    return fetch_rows(conn, LocatedTable, SELECT_LOCATED_TABLES, location=location)


SELECT_DROP = """
SELECT c.changes_made,
       EXISTS (SELECT FROM ducklake_snapshot p WHERE p.snapshot_id = c.snapshot_id - 1) AS has_predecessor
  FROM ducklake_snapshot_changes c
 WHERE c.snapshot_id = %(snapshot_id)s
"""


def find_drop_snapshot(conn: psycopg.Connection, snapshot_id: int) -> tuple[str, bool] | None:
    """Return what the lake snapshot of a drop changed, and whether the one before it is still there; None when it has expired."""
    row = conn.execute(SELECT_DROP, {"snapshot_id": snapshot_id}).fetchone()
    return None if row is None else (row[0] or "", row[1])


@dataclass(frozen=True, slots=True)
class Purge:
    """`iceberg_purge`: a table that was dropped with its files, some of which may be there still; what came later is another's."""

    table_id: int
    locations: Sequence[str]
    begun_at: datetime


INSERT_PURGE = """
INSERT INTO iceberg_purge (table_id, table_uuid, locations) VALUES (%(table_id)s, %(table_uuid)s, %(locations)s::text[])
ON CONFLICT (table_id) DO UPDATE SET locations = excluded.locations, begun_at = excluded.begun_at
"""


def write_purge(conn: psycopg.Connection, table: TableRow, locations: Sequence[str]) -> None:
    """Remember, in the transaction that drops a table, that its files are to go."""
    conn.execute(INSERT_PURGE, {"table_id": table.table_id, "table_uuid": table.table_uuid, "locations": list(locations)})


SELECT_PURGES = """
SELECT p.table_id, p.locations, p.begun_at
  FROM iceberg_purge p
 WHERE (%(table_uuid)s::uuid IS NULL OR p.table_uuid = %(table_uuid)s::uuid)
   AND NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = p.table_id AND t.end_snapshot IS NULL)
 ORDER BY p.table_id
"""


def list_purges(conn: psycopg.Connection, table_uuid: UUID | None = None) -> list[Purge]:
    """Return the purges that have not been finished: all, or those of the table with that uuid."""
    return fetch_rows(conn, Purge, SELECT_PURGES, table_uuid=table_uuid)


SELECT_HAS_PURGE = """
SELECT EXISTS (SELECT FROM iceberg_purge
                WHERE (table_id = %(table_id)s OR %(location)s = ANY(locations))
                  -- one that has not come to its end by then was broken off, or the store lets nothing be removed
                  AND begun_at > clock_timestamp() - interval '1 hour')
"""


def has_purge(conn: psycopg.Connection, table_id: int, location: str = "") -> bool:
    """Tell whether the files of a table, or of one that was at that location, are about to go."""
    row = conn.execute(SELECT_HAS_PURGE, {"table_id": table_id, "location": location}).fetchone()
    return bool(row and row[0])


DELETE_PURGE = """
DELETE FROM iceberg_purge WHERE table_id = %(table_id)s
"""


def delete_purge(conn: psycopg.Connection, table_id: int) -> None:
    """Forget a purge: nothing is left to be removed, or the table is back."""
    conn.execute(DELETE_PURGE, {"table_id": table_id})


UPDATE_PURGED_LOCATIONS = """
UPDATE iceberg_purge SET locations = array_remove(locations, %(location)s) WHERE %(location)s = ANY(locations)
"""


def remove_purged_location(conn: psycopg.Connection, location: str) -> None:
    """Take a location out of the purges: what is left there belongs to a table that came after."""
    conn.execute(UPDATE_PURGED_LOCATIONS, {"location": location})
