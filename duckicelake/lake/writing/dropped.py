"""Dropped tables and schemas that DuckLake still has rows of, and the property that protects from drops.

`catalog.dropped.undrop` lists them in a read transaction, and reads them again in the commit that brings them back, under the lake's lock.
It answers a repeated request from a read transaction. `catalog.dropped.protection` calls `list_protected` before a drop or a rename. Every
function takes the caller's connection, and only reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString
from uuid import UUID

import psycopg

from duckicelake.lake.lake_format import SCHEMA_NAMES
from duckicelake.lake.note_rows import PLACEHOLDER_ID
from duckicelake.lake.read import fetch_rows
from duckicelake.lake.rows import TableRow

PAST_NAMES: LiteralString = SCHEMA_NAMES.format(lake="").replace(" AND p.end_snapshot IS NULL", "")
"""The names of a schema `s` and its parents, dropped or not. DuckLake gives a schema one row. NULL if a parent's row has expired."""

PAST_NAME: LiteralString = "array_to_string(" + PAST_NAMES + ", '\u241f')"

LIVE_NAME: LiteralString = "array_to_string(" + SCHEMA_NAMES.format(lake="").replace("(s)", "(l)").replace("[s.", "[l.") + ", '\u241f')"
"""The name of a live schema `l` with those of its parents."""

SCHEMA_COLUMNS: LiteralString = "".join(
    (
        """s.schema_id, s.schema_uuid, """,
        PAST_NAME,
        """ AS schema_name, s.path AS schema_path,
       coalesce(s.path_is_relative, true) AS schema_path_is_relative,
       -- Grants go by uuid and requests by name: a namespace that is back under another name may have a successor under this one.
       EXISTS (SELECT FROM ducklake_schema l
                WHERE l.schema_uuid = s.schema_uuid AND l.end_snapshot IS NULL
                  AND lower(""",
        LIVE_NAME,
        """ COLLATE "C") = lower(""",
        PAST_NAME,
        """ COLLATE "C")) AS has_schema""",
    )
)

DROP_COLUMNS: LiteralString = """
       -- Python has no times outside of these years.
       CASE WHEN p.snapshot_time BETWEEN '1970-01-01Z' AND '9999-12-31Z' THEN p.snapshot_time END AS dropped_time,
       coalesce(c.changes_made, '') AS changes_made,
       c.snapshot_id IS NOT NULL AND EXISTS (SELECT FROM ducklake_snapshot b WHERE b.snapshot_id = d.end_snapshot - 1) AS is_complete
"""
"""What is left of the lake snapshot that dropped `d`. It is complete while the snapshot before it has not expired."""


@dataclass(frozen=True, slots=True)
class DroppedTable(TableRow):
    """A dropped table under its last name, with its namespace, which may be dropped too, and the drop.

    `has_schema`: the namespace that it was dropped from is there, or back, under the same name.
    `is_complete`: no row that was live at the drop has expired.
    `metadata_version`: that of its newest metadata file at `location`; 0 if it has none there.
    """

    schema_id: int
    schema_uuid: UUID
    has_schema: bool
    end_snapshot: int
    dropped_time: datetime | None
    changes_made: str
    is_complete: bool
    location: str | None
    metadata_version: int
    is_purged: bool


SELECT_DROPPED_TABLES = "".join(
    (
        """
WITH d AS (
    SELECT DISTINCT ON (t.table_id) t.*
      FROM ducklake_table t
     WHERE t.end_snapshot IS NOT NULL AND t.table_uuid IS NOT NULL AND t.table_id <> %(placeholder_id)s
       AND NOT EXISTS (SELECT FROM ducklake_table l WHERE l.table_id = t.table_id AND l.end_snapshot IS NULL)
     ORDER BY t.table_id, t.begin_snapshot DESC
)
SELECT d.table_id, d.table_uuid, d.table_name, d.path, coalesce(d.path_is_relative, true) AS path_is_relative, """,
        SCHEMA_COLUMNS,
        """, d.end_snapshot, """,
        DROP_COLUMNS,
        """, n.location, CASE WHEN EXISTS (SELECT FROM iceberg_metadata_log g
                                            WHERE g.table_id = d.table_id AND g.metadata_version = n.metadata_version)
                              THEN n.metadata_version ELSE 0 END AS metadata_version,
       EXISTS (SELECT FROM iceberg_purge u WHERE u.table_id = d.table_id AND u.due_at <= clock_timestamp()) AS is_purged
  FROM d
  JOIN ducklake_schema s ON s.schema_id = d.schema_id
  LEFT JOIN ducklake_snapshot p ON p.snapshot_id = d.end_snapshot
  LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = d.end_snapshot
  LEFT JOIN iceberg_table n ON n.table_id = d.table_id
 WHERE """,
        PAST_NAMES,
        """ IS NOT NULL
   AND (%(schema_id)s::bigint IS NULL OR d.schema_id = %(schema_id)s::bigint)
   AND (%(table_name)s::text IS NULL OR lower(d.table_name COLLATE "C") = lower(%(table_name)s::text COLLATE "C"))
   AND (%(before)s::bigint IS NULL OR (d.end_snapshot, d.table_id) < (%(before)s::bigint, %(before_id)s::bigint))
 ORDER BY d.end_snapshot DESC, d.table_id DESC
 LIMIT %(most)s
""",
    )
)


@dataclass(frozen=True, slots=True)
class DroppedFilter:
    """A choice of dropped objects: those of a name, in a schema, dropped before a place in the list; at most `most`."""

    schema_id: int | None = None
    name: str | None = None
    before: tuple[int, int] | None = None
    most: int | None = None


def read_dropped_tables(conn: psycopg.Connection, wanted: DroppedFilter) -> Sequence[DroppedTable]:
    """Return dropped tables, the last one dropped first."""
    before = wanted.before or (None, None)
    parameters = {"schema_id": wanted.schema_id, "table_name": wanted.name, "before": before[0], "before_id": before[1]}
    return fetch_rows(conn, DroppedTable, SELECT_DROPPED_TABLES, placeholder_id=PLACEHOLDER_ID, most=wanted.most, **parameters)


@dataclass(frozen=True, slots=True)
class DroppedSchema:
    """A dropped schema. `schema_name` holds the names of its parents too; `parent_schema_id`: that of a nested one in DuckLake 1.1."""

    schema_id: int
    schema_uuid: UUID
    schema_name: str
    schema_path: str | None
    schema_path_is_relative: bool
    has_schema: bool
    own_name: str
    parent_schema_id: int | None
    end_snapshot: int
    dropped_time: datetime | None
    changes_made: str
    is_complete: bool


SELECT_DROPPED_SCHEMAS = "".join(
    (
        """
SELECT """,
        SCHEMA_COLUMNS,
        """, s.schema_name AS own_name, (to_jsonb(s) ->> 'parent_schema_id')::bigint AS parent_schema_id, d.end_snapshot, """,
        DROP_COLUMNS,
        """
  FROM ducklake_schema s
 CROSS JOIN LATERAL (SELECT s.end_snapshot) d
  LEFT JOIN ducklake_snapshot p ON p.snapshot_id = d.end_snapshot
  LEFT JOIN ducklake_snapshot_changes c ON c.snapshot_id = d.end_snapshot
 WHERE d.end_snapshot IS NOT NULL AND s.schema_id <> %(placeholder_id)s AND """,
        PAST_NAMES,
        """ IS NOT NULL
   AND NOT EXISTS (SELECT FROM ducklake_schema l
                    -- One that is back has another row with its uuid, and may have been dropped again.
                    WHERE l.schema_uuid = s.schema_uuid AND (l.end_snapshot IS NULL OR l.end_snapshot > d.end_snapshot))
   AND (%(before)s::bigint IS NULL OR (d.end_snapshot, s.schema_id) < (%(before)s::bigint, %(before_id)s::bigint))
 ORDER BY d.end_snapshot DESC, s.schema_id DESC
 LIMIT %(most)s
""",
    )
)


def read_dropped_schemas(conn: psycopg.Connection, wanted: DroppedFilter) -> Sequence[DroppedSchema]:
    """Return dropped schemas that are not back, the last one dropped first."""
    before = wanted.before or (None, None)
    parameters = {"before": before[0], "before_id": before[1], "most": wanted.most, "placeholder_id": PLACEHOLDER_ID}
    return fetch_rows(conn, DroppedSchema, SELECT_DROPPED_SCHEMAS, **parameters)


@dataclass(frozen=True, slots=True)
class RestoredSchema:
    """A schema that came back: its name, the tables that came back in the same lake snapshot, and its row that the drop ended."""

    schema_name: str
    tables: Sequence[str]
    former_schema_id: int
    former_end_snapshot: int


SELECT_RESTORED_SCHEMA = "".join(
    (
        """
SELECT """,
        PAST_NAME,
        """ AS schema_name,
       ARRAY(SELECT t.table_name FROM ducklake_table t
              WHERE t.begin_snapshot = s.begin_snapshot AND t.schema_id = s.schema_id ORDER BY t.table_id DESC) AS tables,
       f.schema_id AS former_schema_id, f.end_snapshot AS former_end_snapshot
  FROM (SELECT * FROM ducklake_schema WHERE schema_uuid = %(uuid)s ORDER BY begin_snapshot DESC LIMIT 1) s
 CROSS JOIN LATERAL (SELECT f.schema_id, f.end_snapshot FROM ducklake_schema f
                      WHERE f.schema_uuid = %(uuid)s AND f.end_snapshot <= s.begin_snapshot
                      ORDER BY f.end_snapshot DESC LIMIT 1) f
 WHERE """,
        PAST_NAME,
        """ IS NOT NULL
""",
    )
)


def find_restored_schema(conn: psycopg.Connection, uuid: UUID) -> RestoredSchema | None:
    """Return the schema with a uuid as it last came back; None if its rows have expired."""
    found = fetch_rows(conn, RestoredSchema, SELECT_RESTORED_SCHEMA, uuid=uuid)
    return found[0] if found else None


SELECT_ENDED_TAGS = """
SELECT key, value FROM ducklake_tag
 -- DuckDB's DROP SCHEMA leaves the tags of a schema live.
 WHERE object_id = %(schema_id)s AND (end_snapshot = %(end_snapshot)s OR end_snapshot IS NULL) AND key IS NOT NULL AND value IS NOT NULL
 ORDER BY key COLLATE "C"
"""


def read_ended_tags(conn: psycopg.Connection, schema: DroppedSchema) -> dict[str, str]:
    """Return the tags that a schema had when it was dropped."""
    parameters = {"schema_id": schema.schema_id, "end_snapshot": schema.end_snapshot}
    return {row[0]: row[1] for row in conn.execute(SELECT_ENDED_TAGS, parameters)}


PROTECTION = "drop-protection"
"""The property by which a table or namespace is not dropped over REST, nor by a merge."""

SELECT_PROTECTED = """
SELECT DISTINCT g.object_id
  FROM ducklake_tag g
 WHERE g.object_id = ANY(%(object_ids)s::bigint[] || ARRAY(SELECT t.schema_id FROM ducklake_table t
                                                           WHERE t.table_id = ANY(%(object_ids)s::bigint[]) AND t.end_snapshot IS NULL))
   AND g.key = %(key)s AND lower(g.value) = 'true' AND g.end_snapshot IS NULL
"""


def list_protected(conn: psycopg.Connection, object_id: int, key: str) -> set[int]:
    """Return which of an object and, for a table, its schema has a property that is true."""
    return {row[0] for row in conn.execute(SELECT_PROTECTED, {"object_ids": [object_id], "key": key})}
