"""Dropped tables: the rows from which a table can be registered again, and purges, which delete a table's files.

`catalog` calls these when tables are created, dropped, purged, registered and undropped: in the commit's transaction, or in read
transactions before and after it. `catalog.cleanup` claims and ends purges in short transactions of its own. `catalog.access_rules` asks
here whether two tables share a uuid, and `duckicelake check` for the unfinished purges.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import psycopg

from duckicelake.lake.lake_format import SCHEMA_NAME
from duckicelake.lake.locations import PLAIN_LOCATION
from duckicelake.lake.note_rows import PLACEHOLDER_ID
from duckicelake.lake.read import fetch_rows
from duckicelake.lake.rows import TableRow


@dataclass(frozen=True, slots=True)
class LocatedTable(TableRow):
    """A table that has been published at a location, under its last name; `end_snapshot` is where it was dropped, or None.

    `metadata_version`: that of its newest metadata file there; 0 if it has none.
    """

    metadata_version: int
    end_snapshot: int | None


SELECT_LOCATED_TABLES = "".join(
    (
        """
SELECT t.table_id, t.table_uuid, t.table_name, t.path, coalesce(t.path_is_relative, true) AS path_is_relative,
       coalesce(""",
        SCHEMA_NAME.format(lake=""),
        """, s.schema_name) AS schema_name, s.path AS schema_path, coalesce(s.path_is_relative, true) AS schema_path_is_relative,
       -- A table that is to go on after another one's numbers has not written the file of its last number.
       CASE WHEN EXISTS (SELECT FROM iceberg_metadata_log g WHERE g.table_id = n.table_id AND g.metadata_version = n.metadata_version)
            THEN n.metadata_version ELSE 0 END AS metadata_version, t.end_snapshot
  FROM iceberg_table n
  JOIN LATERAL (SELECT * FROM ducklake_table d WHERE d.table_id = n.table_id ORDER BY d.begin_snapshot DESC LIMIT 1) t ON true
  JOIN LATERAL (SELECT * FROM ducklake_schema d WHERE d.schema_id = t.schema_id ORDER BY d.begin_snapshot DESC LIMIT 1) s ON true
 WHERE n.location = %(location)s AND """,
        PLAIN_LOCATION.format("n.location"),
        " = ",
        PLAIN_LOCATION.format("%(location)s"),
        """
 ORDER BY n.table_id
""",
    )
)


def list_located_tables(conn: psycopg.Connection, location: str) -> list[LocatedTable]:
    """Return the tables that have been at a location, as far as DuckLake still has their rows."""
    return fetch_rows(conn, LocatedTable, SELECT_LOCATED_TABLES, location=location)


SELECT_HAS_OTHER_TABLE = "".join(
    (
        """
SELECT EXISTS (SELECT FROM (SELECT table_id, location FROM iceberg_table UNION ALL SELECT table_id, location FROM iceberg_location) n
                WHERE n.table_id <> %(table_id)s AND """,
        PLAIN_LOCATION.format("n.location"),
        " = ",
        PLAIN_LOCATION.format("%(location)s"),
        """
                  AND EXISTS (SELECT FROM ducklake_table d WHERE d.table_id = n.table_id))
""",
    )
)


def has_other_table(conn: psycopg.Connection, table_id: int, location: str) -> bool:
    """Return True if another table that DuckLake has not forgotten is or was at a location."""
    row = conn.execute(SELECT_HAS_OTHER_TABLE, {"table_id": table_id, "location": location}).fetchone()
    return row is not None and bool(row[0])


SELECT_DROP = """
SELECT c.changes_made,
       EXISTS (SELECT FROM ducklake_snapshot p WHERE p.snapshot_id = c.snapshot_id - 1) AS has_predecessor
  FROM ducklake_snapshot_changes c
 WHERE c.snapshot_id = %(snapshot_id)s
"""


def find_drop_snapshot(conn: psycopg.Connection, snapshot_id: int) -> tuple[str, bool] | None:
    """Return the changes of the lake snapshot that dropped a table, and True if its predecessor still exists; None if it has expired."""
    row = conn.execute(SELECT_DROP, {"snapshot_id": snapshot_id}).fetchone()
    return None if row is None else (row[0] or "", row[1])


@dataclass(frozen=True, slots=True)
class Purge:
    """`iceberg_purge`: a table that was dropped with its files, of which some may remain; files newer than `begun_at` are another's."""

    table_id: int
    locations: Sequence[str]
    begun_at: datetime


INSERT_PURGE = """
INSERT INTO iceberg_purge (table_id, table_uuid, locations, due_at)
VALUES (%(table_id)s, %(table_uuid)s, %(locations)s::text[], clock_timestamp() + %(grace_hours)s * interval '1 hour')
ON CONFLICT (table_id) DO UPDATE SET locations = excluded.locations, begun_at = excluded.begun_at, due_at = excluded.due_at
RETURNING table_id, locations, begun_at
"""


def write_purge(conn: psycopg.Connection, table: TableRow, locations: Sequence[str], grace_hours: int) -> Purge:
    """Note, in the transaction that drops a table, that its files are to be deleted after so many hours."""
    parameters = {"table_id": table.table_id, "table_uuid": table.table_uuid, "locations": list(locations), "grace_hours": grace_hours}
    [noted] = fetch_rows(conn, Purge, INSERT_PURGE, **parameters)
    return noted


CLAIM_PURGE = """
UPDATE iceberg_purge p SET due_at = clock_timestamp()
 -- A table that came back and was dropped again has another note.
 WHERE p.table_id = %(table_id)s AND p.begun_at = %(begun_at)s AND p.due_at <= clock_timestamp()
   AND NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = p.table_id AND t.end_snapshot IS NULL)
RETURNING p.locations
"""


def claim_purge(conn: psycopg.Connection, noted: Purge) -> Sequence[str] | None:
    """Return the locations whose objects may be deleted now; None if the table came back, or its purge has been finished.

    For an hour after the claim no table comes back to these locations. The note's row decides between a claim and a table that comes back.
    """
    row = conn.execute(CLAIM_PURGE, {"table_id": noted.table_id, "begun_at": noted.begun_at}).fetchone()
    return None if row is None else row[0]


INSERT_UNREGISTERED = """
INSERT INTO iceberg_purge (table_id, table_uuid, locations, due_at)
SELECT %(table_id)s, %(table_uuid)s, array_agg(p.location), 'infinity'
  FROM (SELECT location FROM iceberg_table WHERE table_id = %(table_id)s
        UNION SELECT location FROM iceberg_location WHERE table_id = %(table_id)s) p
HAVING count(*) > 0
ON CONFLICT (table_id) DO UPDATE SET locations = excluded.locations, begun_at = excluded.begun_at, due_at = excluded.due_at
"""


def write_unregistered(conn: psycopg.Connection, table: TableRow) -> None:
    """Note, in the transaction that unregisters a table, that its files are never to be deleted."""
    conn.execute(INSERT_UNREGISTERED, {"table_id": table.table_id, "table_uuid": table.table_uuid})


SELECT_PURGES = """
SELECT p.table_id, p.locations, p.begun_at
  FROM iceberg_purge p
 WHERE (%(table_uuid)s::uuid IS NULL OR p.table_uuid = %(table_uuid)s::uuid) AND p.due_at <= statement_timestamp()
   AND NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = p.table_id AND t.end_snapshot IS NULL)
 ORDER BY p.table_id
"""


def list_purges(conn: psycopg.Connection, table_uuid: UUID | None = None) -> list[Purge]:
    """Return the unfinished purges whose grace is over: all, or those of the table with that uuid.

    These are tables that were dropped with their files, and dropped tables that DuckLake has forgotten.
    """
    return fetch_rows(conn, Purge, SELECT_PURGES, table_uuid=table_uuid)


SELECT_UNREGISTERED = """
SELECT location FROM iceberg_purge, unnest(locations) location WHERE due_at = 'infinity' AND table_id <> %(table_id)s
"""


def list_unregistered_locations(conn: psycopg.Connection, table_id: int) -> list[str]:
    """Return the locations of the tables but this one that were unregistered and not registered again."""
    return [row[0] for row in conn.execute(SELECT_UNREGISTERED, {"table_id": table_id})]


SELECT_HAS_PURGE = "".join(
    (
        """
SELECT EXISTS (SELECT FROM iceberg_purge
                WHERE (table_id = %(table_id)s OR iceberg_plain_locations(locations) @> ARRAY[""",
        PLAIN_LOCATION.format("%(location)s"),
        """])
                  -- An older purge was interrupted, or the store refuses to delete.
                  AND due_at > clock_timestamp() - interval '1 hour' AND due_at <= clock_timestamp())
""",
    )
)


def has_purge(conn: psycopg.Connection, table_id: int, location: str = "") -> bool:
    """Return True if the files of a table, or of one that was at that location, are being deleted."""
    row = conn.execute(SELECT_HAS_PURGE, {"table_id": table_id, "location": location}).fetchone()
    return bool(row and row[0])


DELETE_PURGE = """
DELETE FROM iceberg_purge WHERE table_id = %(table_id)s AND begun_at = %(begun_at)s
"""


def delete_purge(conn: psycopg.Connection, noted: Purge) -> None:
    """Delete the note of a purge, because no files are left."""
    conn.execute(DELETE_PURGE, {"table_id": noted.table_id, "begun_at": noted.begun_at})


LOCK_PURGE = """
SELECT due_at > clock_timestamp() - interval '1 hour' AND due_at <= clock_timestamp() FROM iceberg_purge
 WHERE table_id = %(table_id)s
   FOR UPDATE
"""

TAKE_BACK_PURGE = """
DELETE FROM iceberg_purge WHERE table_id = %(table_id)s
"""


def take_back_purge(conn: psycopg.Connection, table_id: int) -> bool:
    """Delete the note of a purge, because its table comes back. Return False if the table's files are being deleted.

    The lock waits for a claim of the purge, and the row then says when that was.
    """
    row = conn.execute(LOCK_PURGE, {"table_id": table_id}).fetchone()
    if row is not None and row[0]:
        return False
    conn.execute(TAKE_BACK_PURGE, {"table_id": table_id})
    return True


UPDATE_PURGED_LOCATIONS = "".join(
    (
        """
UPDATE iceberg_purge p SET locations = ARRAY(SELECT l.place FROM unnest(p.locations) AS l(place) WHERE """,
        PLAIN_LOCATION.format("l.place"),
        " <> ",
        PLAIN_LOCATION.format("%(location)s"),
        """)
 WHERE iceberg_plain_locations(p.locations) @> ARRAY[""",
        PLAIN_LOCATION.format("%(location)s"),
        """]
RETURNING due_at > clock_timestamp() - interval '1 hour' AND due_at <= clock_timestamp()
""",
    )
)


def remove_purged_location(conn: psycopg.Connection, location: str) -> bool:
    """Remove a location from all purges: the files there belong to a newer table. Return False if they are being deleted."""
    return not any(row[0] for row in conn.execute(UPDATE_PURGED_LOCATIONS, {"location": location}))


SELECT_LIVE_NAME = "".join(
    (
        """
SELECT """,
        SCHEMA_NAME.format(lake=""),
        """ AS schema_name, t.table_name
  -- With OFFSET and LIMIT, Postgres looks the table and its schema up and does not read all live ones.
  FROM (SELECT * FROM ducklake_table d WHERE d.table_uuid = %(uuid)s OFFSET 0) t
 CROSS JOIN LATERAL (SELECT * FROM ducklake_schema d WHERE d.schema_id = t.schema_id AND d.end_snapshot IS NULL LIMIT 1) s
 WHERE t.end_snapshot IS NULL AND t.table_id <> %(table_id)s AND """,
        SCHEMA_NAME.format(lake=""),
        """ IS NOT NULL
 LIMIT 1
""",
    )
)


def find_live_table_name(conn: psycopg.Connection, uuid: UUID, table_id: int) -> tuple[str, str] | None:
    """Return the names of another live table with that uuid, or None."""
    row = conn.execute(SELECT_LIVE_NAME, {"uuid": uuid, "table_id": table_id}).fetchone()
    return (row[0], row[1]) if row else None


SELECT_UUID_TAKEN = """
SELECT EXISTS (SELECT FROM ducklake_table
                -- Include dropped tables: grants name uuids, and a new table must not inherit them.
                WHERE table_uuid = %(uuid)s)
"""


def has_uuid(conn: psycopg.Connection, uuid: UUID) -> bool:
    """Return True if a live or dropped table has that uuid."""
    row = conn.execute(SELECT_UUID_TAKEN, {"uuid": uuid}).fetchone()
    return bool(row and row[0])


SELECT_KNOWN = """
SELECT x.path
  FROM (SELECT CASE WHEN NOT f.path_is_relative THEN '' WHEN NOT t.path_is_relative THEN t.path
                    WHEN NOT s.path_is_relative THEN concat(s.path, t.path)
                    ELSE concat((SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL), s.path, t.path)
               END || f.path AS path
          FROM (SELECT table_id, path, coalesce(path_is_relative, true) AS path_is_relative FROM ducklake_data_file
                -- PLACEHOLDER_ID marks files kept for refs' snapshots, or for those who registered the table elsewhere.
                UNION ALL SELECT table_id, path, coalesce(path_is_relative, true) FROM ducklake_delete_file
                           WHERE data_file_id = 9223372036854775807) f
          -- With OFFSET, Postgres looks tables and schemas up one by one and does not merge or hash all of them.
          CROSS JOIN LATERAL (SELECT * FROM ducklake_table d WHERE d.table_id = f.table_id OFFSET 0) t
          CROSS JOIN LATERAL (SELECT * FROM ducklake_schema d WHERE d.schema_id = t.schema_id OFFSET 0) s
         -- A relative path, from any folder, is the end of the full one.
         WHERE f.path = ANY(%(ends)s::text[])
           AND (f.table_id IN (9223372036854775807, %(table_id)s)
                OR (SELECT count(*) FROM ducklake_table l WHERE l.table_id = f.table_id AND l.end_snapshot IS NULL) = 0)) x
 WHERE x.path = ANY(%(paths)s::text[])
"""


def list_known_paths(conn: psycopg.Connection, paths: Sequence[str], table_id: int) -> set[str]:
    """Return those of these full paths that are data files in DuckLake, of this table or of none that is live."""
    parameters = {"paths": list(paths), "ends": _list_ends(paths), "table_id": table_id}
    return {row[0] for row in conn.execute(SELECT_KNOWN, parameters)} if paths else set()


def _list_ends(paths: Iterable[str]) -> list[str]:
    """Return the paths, and what is left of each without its first folders."""
    found: set[str] = set()
    for path in paths:
        end = path
        while end and end not in found:
            found.add(end)
            end = end.partition("/")[2]
    return list(found)


SELECT_SCHEDULED = """
SELECT path FROM ducklake_files_scheduled_for_deletion WHERE path = ANY(%(paths)s::text[]) AND NOT path_is_relative
UNION ALL
SELECT (SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL) || path FROM ducklake_files_scheduled_for_deletion
 WHERE path_is_relative
   AND path = ANY(ARRAY(SELECT substr(p.path, length(m.value) + 1)
                          FROM unnest(%(paths)s::text[]) p(path) JOIN ducklake_metadata m ON starts_with(p.path, m.value)
                         WHERE m.key = 'data_path' AND m.scope IS NULL))
 LIMIT 1
"""


def find_scheduled_path(conn: psycopg.Connection, paths: Sequence[str]) -> str | None:
    """Return one of these full paths that DuckLake has scheduled for deletion, or None."""
    row = conn.execute(SELECT_SCHEDULED, {"paths": list(paths)}).fetchone()
    return row[0] if row else None


SELECT_DATA_PATHS = """
SELECT path, coalesce(path_is_relative, true) FROM ducklake_data_file WHERE table_id = %(table_id)s
UNION
SELECT path, coalesce(path_is_relative, true) FROM ducklake_delete_file
 WHERE table_id = %(table_id)s AND data_file_id = 9223372036854775807
"""


def list_data_paths(conn: psycopg.Connection, table_id: int) -> list[tuple[str, bool]]:
    """Return the paths of a table's data files, live or not, and of files retained for it; with each, True if it is relative."""
    return [(row[0], row[1]) for row in conn.execute(SELECT_DATA_PATHS, {"table_id": table_id})]


SELECT_PINNED = """
SELECT path FROM ducklake_delete_file WHERE table_id = %(table_id)s AND path = ANY(%(paths)s::text[])
"""


def list_pinned_paths(conn: psycopg.Connection, paths: Sequence[str]) -> set[str]:
    """Return those of these full paths that are pinned without a table."""
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
    """Return id, location and last metadata version of the table with that uuid that was dropped last, or None."""
    row = conn.execute(SELECT_DROPPED_TABLE, {"uuid": uuid}).fetchone()
    return None if row is None else (row[0], row[1], row[2])
