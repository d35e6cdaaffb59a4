"""Where tables are and were: nobody else's files may come into a table's locations.

Locations are compared in one spelling: `file:/a` is `file:///a`, `s3a://b` is `s3://b`.
"""

from collections.abc import Sequence

import psycopg

SELECT_NEIGHBOUR = """
SELECT n.location FROM (
    SELECT t.table_id, t.location, regexp_replace(regexp_replace(t.location, '^s3[an]://', 's3://'), '^file:/+', 'file:///') AS plain
      FROM iceberg_table t
    UNION ALL
    SELECT l.table_id, l.location, regexp_replace(regexp_replace(l.location, '^s3[an]://', 's3://'), '^file:/+', 'file:///')
      FROM iceberg_location l
) n
 WHERE n.table_id <> %(table_id)s
   AND (starts_with(%(location)s || '/', n.plain || '/') OR starts_with(n.plain || '/', %(location)s || '/'))
   -- a table that is gone gives its place to another, though not to one above or below
   AND (n.plain <> %(location)s
        OR EXISTS (SELECT FROM ducklake_table d WHERE d.table_id = n.table_id AND d.end_snapshot IS NULL))
 LIMIT 1
"""


def find_neighbour(conn: psycopg.Connection, table_id: int, location: str) -> str | None:
    """Return the location of another table that lies in this one or holds it; a dropped table's, unless it is this one."""
    row = conn.execute(SELECT_NEIGHBOUR, {"table_id": table_id, "location": location}).fetchone()
    return row[0] if row else None


SELECT_VIEW_NEIGHBOUR = """
SELECT n.location FROM (
    SELECT p.location, regexp_replace(regexp_replace(rtrim(p.location, '/'), '^s3[an]://', 's3://'), '^file:/+', 'file:///') AS plain
      FROM iceberg_view v
      JOIN ducklake_view d ON d.view_id = v.view_id AND d.end_snapshot IS NULL,
           LATERAL (VALUES (v.metadata::json ->> 'location'), (regexp_replace(v.metadata_location, '/[^/]*$', ''))) AS p(location)
) n
 WHERE starts_with(%(location)s || '/', n.plain || '/') OR starts_with(n.plain || '/', %(location)s || '/')
 LIMIT 1
"""


def find_view_neighbour(conn: psycopg.Connection, location: str) -> str | None:
    """Return the location, or the folder of metadata files, of a view that lies in this place or holds it."""
    row = conn.execute(SELECT_VIEW_NEIGHBOUR, {"location": location}).fetchone()
    return row[0] if row else None


SELECT_LAST_VERSION = """
SELECT coalesce(max(n.metadata_version), 0) FROM (
    SELECT t.location, t.metadata_version FROM iceberg_table t
    UNION ALL
    SELECT l.location, l.metadata_version FROM iceberg_location l
) n
 WHERE regexp_replace(regexp_replace(n.location, '^s3[an]://', 's3://'), '^file:/+', 'file:///') = %(location)s
"""


def find_last_version(conn: psycopg.Connection, location: str) -> int:
    """Return the highest metadata version that any table has been given at a location, 0 when none was there."""
    row = conn.execute(SELECT_LAST_VERSION, {"location": location}).fetchone()
    return row[0] if row else 0


SELECT_OWNER = """
SELECT n.location FROM (
    SELECT t.table_id, t.location FROM iceberg_table t
    UNION ALL
    SELECT l.table_id, l.location FROM iceberg_location l
) n
 WHERE n.table_id <> %(table_id)s
   AND EXISTS (SELECT FROM unnest(%(uris)s::text[]) u
                WHERE starts_with(u, regexp_replace(regexp_replace(n.location, '^s3[an]://', 's3://'), '^file:/+', 'file:///') || '/'))
 LIMIT 1
"""


def find_owner(conn: psycopg.Connection, table_id: int, uris: Sequence[str]) -> str | None:
    """Return the location of another table, dropped ones included, that holds one of these files."""
    row = conn.execute(SELECT_OWNER, {"table_id": table_id, "uris": list(uris)}).fetchone()
    return row[0] if row else None


SELECT_EARLIER = """
SELECT location FROM iceberg_location WHERE table_id = %(table_id)s ORDER BY metadata_version
"""


def list_earlier_locations(conn: psycopg.Connection, table_id: int) -> list[str]:
    """Return where a table has been before, the first place first."""
    return [row[0] for row in conn.execute(SELECT_EARLIER, {"table_id": table_id})]


SELECT_NAMED_PATHS = """
SELECT path, coalesce(path_is_relative, true) FROM ducklake_data_file WHERE table_id = %(table_id)s OR NOT path_is_relative
UNION
SELECT path, coalesce(path_is_relative, true) FROM ducklake_delete_file WHERE table_id = %(table_id)s OR NOT path_is_relative
"""


def list_named_paths(conn: psycopg.Connection, table_id: int) -> list[tuple[str, bool]]:
    """Return the paths of a table's files, live or not, and all full paths that any table names; whether each is relative."""
    return [(row[0], row[1]) for row in conn.execute(SELECT_NAMED_PATHS, {"table_id": table_id})]


SELECT_OTHER_PATHS = """
SELECT path FROM ducklake_files_scheduled_for_deletion WHERE NOT path_is_relative
UNION
SELECT path FROM iceberg_kept_file WHERE table_id <> %(gone_id)s
UNION
SELECT metadata_location FROM iceberg_view
"""


def list_other_paths(conn: psycopg.Connection, gone_id: int = -1) -> list[str]:
    """Return full paths: of files that DuckLake is about to remove itself, of those added beside main, and of views' metadata.

    `gone_id` is a table whose files beside main do not count.
    """
    return [row[0] for row in conn.execute(SELECT_OTHER_PATHS, {"gone_id": gone_id})]
