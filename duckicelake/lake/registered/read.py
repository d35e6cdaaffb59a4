"""What registering must know of a lake: which files DuckLake knows, and which it is about to remove."""

from collections.abc import Sequence
from uuid import UUID

import psycopg

from duckicelake.lake.registered.rows import PLACEHOLDER_ID

SELECT_REGISTERED = """
SELECT lake_snapshot_id, snapshot_id, is_shown, snapshot_log, metadata_log FROM iceberg_registered WHERE table_id = %(table_id)s
"""


SELECT_LIVE_NAME = """
SELECT s.schema_name, t.table_name
  FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
 WHERE t.end_snapshot IS NULL AND t.table_uuid = %(uuid)s AND t.table_id <> %(table_id)s
 LIMIT 1
"""


def find_live_table_name(conn: psycopg.Connection, uuid: UUID, table_id: int) -> tuple[str, str] | None:
    """Return the names of another live table with that uuid, or None."""
    row = conn.execute(SELECT_LIVE_NAME, {"uuid": uuid, "table_id": table_id}).fetchone()
    return (row[0], row[1]) if row else None


SELECT_UUID_TAKEN = """
SELECT EXISTS (SELECT FROM ducklake_table
                -- of dropped tables too: grants name uuids, and what is made anew inherits nothing
                WHERE table_uuid = %(uuid)s)
"""


def has_uuid(conn: psycopg.Connection, uuid: UUID) -> bool:
    """Tell whether a table has that uuid, or had it when it was dropped."""
    row = conn.execute(SELECT_UUID_TAKEN, {"uuid": uuid}).fetchone()
    return bool(row and row[0])


SELECT_KNOWN = """
SELECT x.path
  FROM (SELECT CASE WHEN NOT f.path_is_relative THEN '' WHEN NOT t.path_is_relative THEN t.path
                    WHEN NOT s.path_is_relative THEN concat(s.path, t.path)
                    ELSE concat((SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL), s.path, t.path)
               END || f.path AS path
          FROM (SELECT table_id, path, coalesce(path_is_relative, true) AS path_is_relative FROM ducklake_data_file
                -- rows of no data file keep files for snapshots that refs name, or for those who took a table elsewhere
                UNION ALL SELECT table_id, path, coalesce(path_is_relative, true) FROM ducklake_delete_file
                           WHERE data_file_id = 9223372036854775807) f
          JOIN ducklake_table t ON t.table_id = f.table_id
          JOIN ducklake_schema s ON s.schema_id = t.schema_id
         WHERE f.table_id IN (9223372036854775807, %(table_id)s)
            OR NOT EXISTS (SELECT FROM ducklake_table l WHERE l.table_id = f.table_id AND l.end_snapshot IS NULL)) x
 WHERE x.path = ANY(%(paths)s::text[])
"""


def list_known_paths(conn: psycopg.Connection, paths: Sequence[str], table_id: int) -> set[str]:
    """Return those of these full paths that are data files which DuckLake knows: of this table, or of none that is live."""
    return {row[0] for row in conn.execute(SELECT_KNOWN, {"paths": list(paths), "table_id": table_id})} if paths else set()


SELECT_SCHEDULED = """
SELECT x.path
  FROM (SELECT CASE WHEN path_is_relative THEN (SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL) || path
                    ELSE path END AS path FROM ducklake_files_scheduled_for_deletion) x
 WHERE x.path = ANY(%(paths)s::text[])
 LIMIT 1
"""


def find_scheduled_path(conn: psycopg.Connection, paths: Sequence[str]) -> str | None:
    """Return one of these full paths that DuckLake is going to remove, or None."""
    row = conn.execute(SELECT_SCHEDULED, {"paths": list(paths)}).fetchone()
    return row[0] if row else None


SELECT_DATA_PATHS = """
SELECT path, coalesce(path_is_relative, true) FROM ducklake_data_file WHERE table_id = %(table_id)s
UNION
SELECT path, coalesce(path_is_relative, true) FROM ducklake_delete_file
 WHERE table_id = %(table_id)s AND data_file_id = 9223372036854775807
"""


def list_data_paths(conn: psycopg.Connection, table_id: int) -> list[tuple[str, bool]]:
    """Return the paths of all data files of a table, live or not, and those kept for it; whether each is relative."""
    return [(row[0], row[1]) for row in conn.execute(SELECT_DATA_PATHS, {"table_id": table_id})]


SELECT_PINNED = """
SELECT path FROM ducklake_delete_file WHERE table_id = %(table_id)s AND path = ANY(%(paths)s::text[])
"""


def list_pinned_paths(conn: psycopg.Connection, paths: Sequence[str]) -> set[str]:
    """Return those of these full paths that are kept though no table has them."""
    return {row[0] for row in conn.execute(SELECT_PINNED, {"table_id": PLACEHOLDER_ID, "paths": list(paths)})}


SELECT_DROPPED_TABLE = """
SELECT t.table_id, n.location, n.metadata_version
  FROM ducklake_table t
  JOIN iceberg_table n ON n.table_id = t.table_id
 WHERE t.table_uuid = %(uuid)s AND t.end_snapshot IS NOT NULL
 ORDER BY t.end_snapshot DESC
 LIMIT 1
"""


def find_dropped_table(conn: psycopg.Connection, uuid: UUID) -> tuple[int, str, int] | None:
    """Return id, location and last metadata version of the table with that uuid that was last dropped, or None."""
    row = conn.execute(SELECT_DROPPED_TABLE, {"uuid": uuid}).fetchone()
    return None if row is None else (row[0], row[1], row[2])
