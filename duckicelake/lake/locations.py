"""Current, earlier and reserved locations of tables: the rules of `catalog` keep files of other tables out of them.

`catalog` calls this in its own transactions: read transactions for credentials, scan plans and the clean-up, commits under the lake's
lock, and writing transactions without the lock for staged creates and claims of purges. The only rows that are written here are those of
staged creates (`iceberg_staged`).

Locations are compared in one spelling: `file:/a` is `file:///a`, `s3a://b` is `s3://b`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

import psycopg

from duckicelake.lake.lake_format import NAMED_SCHEMA
from duckicelake.lake.read import fetch_rows

PLAIN_LOCATION: LiteralString = "regexp_replace(regexp_replace({}, '^s3[an]://', 's3://'), '^file:/+', 'file:///')"
"""The spelling in which locations are compared, as in the indexes on them."""

OVERLAPS: LiteralString = """
       -- It lies in one of these folders, or is one of them.
      (left({0}, 500) COLLATE "C" = ANY(%(folders)s::text[]) AND {0} = ANY(%(whole_folders)s::text[])
       -- It lies in the location; '0' is the character after '/'.
       OR left({0}, 500) COLLATE "C" BETWEEN left(%(location)s::text || '/', 500) AND left(%(location)s::text || '0', 500)
          AND starts_with({0}, %(location)s::text || '/'))
"""
"""The condition that a location, in its plain spelling, is the location of a look-up, lies in it or contains it."""


def _list_parameters(location: str) -> dict[str, object]:
    """Return the parameters of `OVERLAPS` for a location in its plain spelling."""
    folders = list_folders([location])
    return {"location": location, "folders": [folder[:500] for folder in folders], "whole_folders": folders}


def list_folders(uris: Iterable[str]) -> list[str]:
    """Return the URIs, and all folders that they lie in, without slashes at their ends."""
    found: set[str] = set()
    for uri in uris:
        folder = uri
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return sorted(found)


SELECT_OVERLAPPING_TABLE = "".join(
    (
        """
SELECT n.location FROM (
    SELECT table_id, location FROM iceberg_table
    UNION ALL
    SELECT table_id, location FROM iceberg_location
) n
 WHERE n.table_id <> %(table_id)s AND """,
        OVERLAPS.format(PLAIN_LOCATION.format("n.location")),
        """
   -- The exact location of a dropped table may be used again, but not one above or below it.
   AND (""",
        PLAIN_LOCATION.format("n.location"),
        """ <> %(location)s
        -- A count instead of EXISTS, which would read all live tables.
        OR (SELECT count(*) FROM ducklake_table d WHERE d.table_id = n.table_id AND d.end_snapshot IS NULL) > 0)
 LIMIT 1
""",
    )
)


def find_overlapping_table(conn: psycopg.Connection, table_id: int, location: str) -> str | None:
    """Return the location of another table, live or dropped, that lies in this one or contains it, or None.

    The location itself may have belonged to a dropped table.
    """
    row = conn.execute(SELECT_OVERLAPPING_TABLE, {"table_id": table_id, **_list_parameters(location)}).fetchone()
    return row[0] if row else None


VIEW_LOCATION: LiteralString = "iceberg_view_location(v.metadata)"
VIEW_METADATA_FOLDER: LiteralString = "regexp_replace(v.metadata_location, '/+[^/]*$', '')"

SELECT_OVERLAPPING_VIEW = "".join(
    (
        """
SELECT n.location FROM (
    SELECT v.view_id, v.metadata::json ->> 'location' AS location FROM iceberg_view v WHERE """,
        OVERLAPS.format(PLAIN_LOCATION.format(VIEW_LOCATION)),
        """
    UNION ALL
    SELECT v.view_id, """,
        VIEW_METADATA_FOLDER,
        """ FROM iceberg_view v WHERE """,
        OVERLAPS.format(PLAIN_LOCATION.format(VIEW_METADATA_FOLDER)),
        """
) n
 WHERE EXISTS (SELECT FROM ducklake_view d WHERE d.view_id = n.view_id AND d.end_snapshot IS NULL)
 LIMIT 1
""",
    )
)


def find_overlapping_view(conn: psycopg.Connection, location: str) -> str | None:
    """Return the location or metadata folder of a view that lies in this location or contains it, or None."""
    row = conn.execute(SELECT_OVERLAPPING_VIEW, _list_parameters(location)).fetchone()
    return row[0] if row else None


SELECT_LAST_VERSION = """
SELECT coalesce(max(n.metadata_version), 0) FROM (
    SELECT t.location, t.metadata_version FROM iceberg_table t
    UNION ALL
    SELECT l.location, l.metadata_version FROM iceberg_location l
) n
 WHERE regexp_replace(regexp_replace(n.location, '^s3[an]://', 's3://'), '^file:/+', 'file:///') = %(location)s
"""


def read_last_version(conn: psycopg.Connection, location: str) -> int:
    """Return the highest metadata version that any table has had at a location; 0 if there was none."""
    row = conn.execute(SELECT_LAST_VERSION, {"location": location}).fetchone()
    return row[0] if row else 0


SELECT_OWNING_LOCATION = "".join(
    (
        """
SELECT n.location FROM (
    SELECT t.table_id, t.location FROM iceberg_table t
    UNION ALL
    SELECT l.table_id, l.location FROM iceberg_location l
) n
 WHERE n.table_id <> %(table_id)s AND """,
        PLAIN_LOCATION.format("n.location"),
        """ = ANY(%(folders)s::text[])
 LIMIT 1
""",
    )
)


def find_owning_location(conn: psycopg.Connection, table_id: int, uris: Sequence[str]) -> str | None:
    """Return the location of another table, dropped ones included, that contains one of these files, or None."""
    folders = list_folders(uri.rpartition("/")[0] for uri in uris)
    row = conn.execute(SELECT_OWNING_LOCATION, {"table_id": table_id, "folders": folders}).fetchone()
    return row[0] if row else None


SELECT_EARLIER = """
SELECT location FROM iceberg_location WHERE table_id = %(table_id)s ORDER BY metadata_version
"""


def list_earlier_locations(conn: psycopg.Connection, table_id: int) -> list[str]:
    """Return the earlier locations of a table, oldest first."""
    return [row[0] for row in conn.execute(SELECT_EARLIER, {"table_id": table_id})]


# Compare by the folder's name, which is the same in every spelling of a store. A lake may have more paths than fit into memory.
SELECT_NAMED_PATHS = """
SELECT path, coalesce(path_is_relative, true) FROM ducklake_data_file
 WHERE table_id = %(table_id)s OR (NOT path_is_relative AND EXISTS (SELECT FROM unnest(%(folders)s::text[]) n WHERE strpos(path, n) > 0))
UNION
SELECT path, coalesce(path_is_relative, true) FROM ducklake_delete_file
 WHERE table_id = %(table_id)s OR (NOT path_is_relative AND EXISTS (SELECT FROM unnest(%(folders)s::text[]) n WHERE strpos(path, n) > 0))
"""


def list_named_paths(conn: psycopg.Connection, table_id: int, locations: Sequence[str]) -> list[tuple[str, bool]]:
    """Return the paths of a table's files, live or not, and the full paths in any table that may lie in one of the locations.

    The result may contain paths outside of them. With each path comes True if it is relative.
    """
    parameters = {"table_id": table_id, "folders": list_folder_names(locations)}
    return [(row[0], row[1]) for row in conn.execute(SELECT_NAMED_PATHS, parameters)]


SELECT_OTHER_PATHS = """
SELECT o.path FROM (
    SELECT path FROM ducklake_files_scheduled_for_deletion WHERE NOT path_is_relative
    UNION
    SELECT path FROM iceberg_kept_file WHERE table_id <> %(gone_id)s
    UNION
    SELECT metadata_location FROM iceberg_view
) o
 WHERE EXISTS (SELECT FROM unnest(%(folders)s::text[]) n WHERE strpos(o.path, n) > 0)
"""


def list_other_paths(conn: psycopg.Connection, locations: Sequence[str], gone_id: int = -1) -> list[str]:
    """Return other full paths that may lie in one of the locations; the result may contain paths outside of them.

    These are files that DuckLake has scheduled for deletion, files that clients added off main, and views' metadata files. The files
    that clients added off main to the table `gone_id` are left out.
    """
    parameters = {"folders": list_folder_names(locations), "gone_id": gone_id}
    return [row[0] for row in conn.execute(SELECT_OTHER_PATHS, parameters)]


def list_folder_names(locations: Sequence[str]) -> list[str]:
    """Return the last folder name of each location, which every path in the location contains."""
    return [location.rstrip("/").rpartition("/")[2] for location in locations]


SELECT_NAMESPACE_LOCATIONS = """
SELECT t.value
  FROM ducklake_schema s
 -- With OFFSET, Postgres looks the tags of each namespace up and does not read those of all tables.
 CROSS JOIN LATERAL (SELECT * FROM ducklake_tag d WHERE d.object_id = s.schema_id AND d.end_snapshot IS NULL OFFSET 0) t
 WHERE s.end_snapshot IS NULL AND t.key = 'location' AND t.value IS NOT NULL
"""


def list_namespace_locations(conn: psycopg.Connection) -> list[str]:
    """Return the properties `location` of all namespaces."""
    return [row[0] for row in conn.execute(SELECT_NAMESPACE_LOCATIONS)]


@dataclass(frozen=True, slots=True)
class StagedLocation:
    """`iceberg_staged`: the location of a staged create whose commit has not been seen."""

    location: str
    staged_at: datetime


INSERT_STAGED = """
INSERT INTO iceberg_staged (location) VALUES (%(location)s)
ON CONFLICT (location) DO UPDATE SET staged_at = excluded.staged_at
"""


def write_staged(conn: psycopg.Connection, location: str) -> None:
    """Note the location of a staged create, before the client gets it."""
    conn.execute(INSERT_STAGED, {"location": location})


DELETE_CREATED_STAGED = """
DELETE FROM iceberg_staged s
 WHERE EXISTS (SELECT FROM iceberg_table t WHERE t.location = s.location)
    OR EXISTS (SELECT FROM iceberg_location l WHERE l.location = s.location)
"""


def delete_created_staged(conn: psycopg.Connection) -> None:
    """Delete the notes of staged locations at which a table was created, even if it was dropped later."""
    conn.execute(DELETE_CREATED_STAGED)


SELECT_STAGED = """
SELECT location, staged_at FROM iceberg_staged WHERE staged_at < %(before)s ORDER BY staged_at, location
"""


def list_staged(conn: psycopg.Connection, before: datetime) -> list[StagedLocation]:
    """Return the locations that were staged before that time."""
    return fetch_rows(conn, StagedLocation, SELECT_STAGED, before=before)


SELECT_HAS_TABLE = """
SELECT EXISTS (SELECT FROM (
    SELECT regexp_replace(regexp_replace(p.location, '^s3[an]://', 's3://'), '^file:/+', 'file:///') AS plain FROM (
        SELECT location FROM iceberg_table
        UNION ALL
        SELECT location FROM iceberg_location
        UNION ALL
        SELECT unnest(locations) FROM iceberg_purge
    ) p
) n
 WHERE starts_with(%(location)s || '/', n.plain || '/') OR starts_with(n.plain || '/', %(location)s || '/'))
"""


def has_table(conn: psycopg.Connection, location: str) -> bool:
    """Return True if a table, dropped ones included, has or had this location, or one inside or around it."""
    row = conn.execute(SELECT_HAS_TABLE, {"location": location}).fetchone()
    return bool(row and row[0])


SELECT_STATISTICS_PATHS = """
SELECT s.path FROM (SELECT json::json ->> 'statistics-path' AS path FROM iceberg_statistics) s WHERE strpos(s.path, %(folder)s) > 0
"""


def list_statistics_paths(conn: psycopg.Connection, location: str) -> list[str]:
    """Return the paths of statistics files that may lie in a location; the result may contain paths outside of it."""
    return [row[0] for row in conn.execute(SELECT_STATISTICS_PATHS, {"folder": list_folder_names([location])[0]})]


DELETE_STAGED = """
DELETE FROM iceberg_staged WHERE location = %(location)s AND staged_at = %(staged_at)s
"""


def delete_staged(conn: psycopg.Connection, staged: StagedLocation) -> None:
    """Delete the note of a staged location, unless it was staged again."""
    conn.execute(DELETE_STAGED, {"location": staged.location, "staged_at": staged.staged_at})


@dataclass(frozen=True, slots=True)
class TableLocation:
    """A current or earlier place of a table's files: DuckLake's folder (with its schema's, each maybe relative), or an Iceberg location."""

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
    -- The files of an unregistered table stay, unless another table was registered with them.
    OR EXISTS (SELECT FROM ducklake_delete_file p
                WHERE p.table_id = 9223372036854775807
                  AND starts_with(regexp_replace(p.path, '^s3[an]://', 's3://'), regexp_replace(n.location, '^s3[an]://', 's3://') || '/')
                  AND NOT EXISTS (SELECT FROM ducklake_data_file f WHERE f.path = p.path))
UNION ALL
-- DuckLake has removed the rows of these tables but not yet their files. -2 is no table's id; -1 stands for a table to be created.
SELECT DISTINCT -2, '', regexp_replace(g.path, '[^/]*$', ''), g.path_is_relative, '', true
  FROM iceberg_gone_file g
 WHERE EXISTS (SELECT FROM ducklake_files_scheduled_for_deletion f WHERE f.path = g.path)
"""


def list_table_locations(conn: psycopg.Connection) -> list[TableLocation]:
    """Return the places of all tables with rows in DuckLake, dropped tables and earlier places included, and of files yet to be deleted."""
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


def list_outside_paths(conn: psycopg.Connection, table_id: int, folder: str, folders: list[str], most: int) -> list[tuple[str, bool]]:
    """Return up to `most` paths of a table's files, live or not, that lie in none of the folders; with each, True if it is relative."""
    parameters = {"table_id": table_id, "folder": folder, "alone": folders, "most": most}
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
    """Return True if a table has or had a file with the relative path, or with one of the full paths."""
    row = conn.execute(SELECT_HAS_PATH, {"table_id": table_id, "relative": relative, "whole": whole}).fetchone()
    return row is not None and bool(row[0])


@dataclass(frozen=True, slots=True)
class LiveTableName:
    """The names of a live table."""

    table_id: int
    schema_name: str
    table_name: str


SELECT_LIVE_NAMES = "".join(
    (
        """
SELECT t.table_id, n.schema_name, t.table_name
  FROM ducklake_table t """,
        NAMED_SCHEMA.format("t"),
        """
 WHERE t.end_snapshot IS NULL AND n.schema_name IS NOT NULL ORDER BY t.table_id
""",
    )
)


def list_live_table_names(conn: psycopg.Connection) -> list[LiveTableName]:
    """Return the names of all live tables."""
    return fetch_rows(conn, LiveTableName, SELECT_LIVE_NAMES)
