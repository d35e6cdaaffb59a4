"""Queries for live views and macros, and for our notes about views in `iceberg_view`, which `write_view_note` writes.

`catalog` calls them in its own transactions.
"""

from collections.abc import Sequence
from uuid import UUID

import psycopg

from duckicelake.lake.lake_format import HAS_SCHEMA_NAME, NAMED_SCHEMA
from duckicelake.lake.note_rows import LiveView, ViewNote
from duckicelake.lake.read import fetch_rows
from duckicelake.lake.rows import ColumnRow, MacroRow

SELECT_VIEW_NAMES = """
SELECT view_name FROM ducklake_view
 WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL AND view_name <> ''
 ORDER BY view_name
"""


def read_view_names(conn: psycopg.Connection, schema_id: int) -> list[str]:
    """Return the names of a schema's live views, in order."""
    return [row[0] for row in conn.execute(SELECT_VIEW_NAMES, {"schema_id": schema_id})]


SELECT_VIEW = "".join(
    (
        """
SELECT v.view_id, coalesce(v.view_uuid, md5('view ' || v.view_id)::uuid) AS view_uuid, v.schema_id, n.schema_name, names.schema_names,
       v.view_name,
       coalesce(v.sql, '') AS sql, coalesce(v.column_aliases, '') AS column_aliases,
       (SELECT least('9999-01-01Z', greatest('1970-01-01Z', b.snapshot_time))
          FROM ducklake_snapshot b WHERE b.snapshot_id = v.begin_snapshot) AS begun_at,
       (SELECT least('9999-01-01Z', greatest('1970-01-01Z', h.snapshot_time))
          FROM ducklake_snapshot h ORDER BY h.snapshot_id DESC LIMIT 1) AS head_at,
       (SELECT t.value FROM ducklake_tag t
         WHERE t.object_id = v.view_id AND t.key = 'comment' AND t.end_snapshot IS NULL LIMIT 1) AS comment
  FROM ducklake_view v """,
        NAMED_SCHEMA.format("v"),
        """
 -- DuckDB folds the case of ASCII letters in names; an exact spelling wins over a folded one.
 WHERE v.end_snapshot IS NULL
   AND lower(v.view_name COLLATE "C") = lower(%(view_name)s COLLATE "C")
   AND """,
        HAS_SCHEMA_NAME,
        """
 ORDER BY v.view_name = %(view_name)s DESC, n.schema_name = %(schema_name)s DESC,
          cardinality(names.schema_names) DESC, v.view_id
 LIMIT 1
""",
    )
)


def find_view(conn: psycopg.Connection, schema_name: str, view_name: str) -> LiveView | None:
    """Return the live view of that name, in any case, or None."""
    rows = fetch_rows(conn, LiveView, SELECT_VIEW, schema_name=schema_name, view_name=view_name)
    return rows[0] if rows else None


SELECT_VIEW_NAME = "".join(
    (
        """
SELECT n.schema_name, v.view_name
  FROM ducklake_view v """,
        NAMED_SCHEMA.format("v"),
        """
  LEFT JOIN iceberg_view i ON i.view_id = v.view_id
 WHERE v.end_snapshot IS NULL AND n.schema_name IS NOT NULL
   -- A view that DuckDB has replaced is published with the uuid that clients know.
   AND (v.view_uuid = %(uuid)s OR lower(i.metadata::json ->> 'view-uuid') = %(uuid)s::uuid::text)
 LIMIT 1
""",
    )
)


def find_view_name(conn: psycopg.Connection, uuid: UUID) -> tuple[str, str] | None:
    """Return the names of the live view with that uuid, or None."""
    row = conn.execute(SELECT_VIEW_NAME, {"uuid": uuid}).fetchone()
    return (row[0], row[1]) if row else None


SELECT_VIEW_NOTE = """
WITH RECURSIVE earlier(view_id, begin_snapshot, schema_id, view_name, step) AS (
    SELECT view_id, begin_snapshot, schema_id, view_name, 0
      FROM ducklake_view WHERE view_id = %(view_id)s AND end_snapshot IS NULL
    UNION
    -- DuckDB replaces a view by ending it and creating another of its name at the same lake snapshot.
    SELECT o.view_id, o.begin_snapshot, o.schema_id, o.view_name, e.step + 1
      FROM earlier e JOIN ducklake_view o ON o.end_snapshot = e.begin_snapshot AND o.begin_snapshot < e.begin_snapshot
       AND o.schema_id = e.schema_id
       AND lower(o.view_name COLLATE "C") = lower(e.view_name COLLATE "C")
)
SELECT n.view_id, n.metadata_version, n.metadata_location, n.metadata, n.sql, n.column_aliases, n.is_told
  FROM earlier e JOIN iceberg_view n ON n.view_id = e.view_id
 WHERE e.step = 0 OR NOT EXISTS (SELECT FROM ducklake_view l WHERE l.view_id = e.view_id AND l.end_snapshot IS NULL)
 ORDER BY e.step
 LIMIT 1
"""


def find_view_note(conn: psycopg.Connection, view_id: int) -> ViewNote | None:
    """Return the note of a live view, or else of the view that it replaced, or None."""
    rows = fetch_rows(conn, ViewNote, SELECT_VIEW_NOTE, view_id=view_id)
    return rows[0] if rows else None


SELECT_NAMED_COLUMNS = "".join(
    (
        """
SELECT c.column_id, c.begin_snapshot, c.end_snapshot, c.column_order, c.column_name, c.column_type, c.initial_default,
       c.default_value, c.default_value_type, coalesce(c.nulls_allowed, true) AS nulls_allowed, c.parent_column
  FROM ducklake_table t """,
        NAMED_SCHEMA.format("t"),
        """
  JOIN ducklake_column c ON c.table_id = t.table_id AND c.end_snapshot IS NULL
 WHERE t.end_snapshot IS NULL
   AND lower(t.table_name COLLATE "C") = lower(%(table_name)s COLLATE "C")
   AND """,
        HAS_SCHEMA_NAME,
        """
 ORDER BY c.column_order, c.column_id
""",
    )
)


def read_named_columns(conn: psycopg.Connection, schema_name: str, table_name: str) -> list[ColumnRow]:
    """Return the live columns of the table of that name, in any case; none if there is no such table."""
    return fetch_rows(conn, ColumnRow, SELECT_NAMED_COLUMNS, schema_name=schema_name, table_name=table_name)


INSERT_VIEW_NOTE = """
INSERT INTO iceberg_view (view_id, metadata_version, metadata_location, metadata, sql, column_aliases, is_told)
VALUES (%(view_id)s, %(metadata_version)s, %(metadata_location)s, %(metadata)s, %(sql)s, %(column_aliases)s, %(is_told)s)
ON CONFLICT (view_id) DO NOTHING
"""

UPDATE_VIEW_NOTE = """
UPDATE iceberg_view
   SET view_id = %(view_id)s, metadata_version = %(metadata_version)s, metadata_location = %(metadata_location)s,
       metadata = %(metadata)s, sql = %(sql)s, column_aliases = %(column_aliases)s, is_told = %(is_told)s
 -- If the note has changed since it was read, nothing is written.
 WHERE view_id = %(base_view_id)s AND metadata_version = %(base_version)s
"""


def write_view_note(conn: psycopg.Connection, base: ViewNote | None, note: ViewNote) -> bool:
    """Write the note of a view over the note that was read before; False if that has changed meanwhile."""
    parameters = {
        "view_id": note.view_id,
        "metadata_version": note.metadata_version,
        "metadata_location": note.metadata_location,
        "metadata": note.metadata,
        "sql": note.sql,
        "column_aliases": note.column_aliases,
        "is_told": note.is_told,
    }
    if base is None:
        return conn.execute(INSERT_VIEW_NOTE, parameters).rowcount == 1
    return conn.execute(UPDATE_VIEW_NOTE, parameters | {"base_view_id": base.view_id, "base_version": base.metadata_version}).rowcount == 1


SELECT_MACRO_NAMES = """
SELECT DISTINCT macro_name FROM ducklake_macro
 WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL
 ORDER BY macro_name
"""


def read_macro_names(conn: psycopg.Connection, schema_id: int) -> list[str]:
    """Return the names of a schema's live macros, in order."""
    return [row[0] for row in conn.execute(SELECT_MACRO_NAMES, {"schema_id": schema_id})]


SELECT_MACROS = "".join(
    (
        """
SELECT n.schema_name, coalesce(s.schema_uuid, md5('schema ' || s.schema_id)::uuid) AS schema_uuid,
       m.macro_id, m.macro_name, m.begin_snapshot, m.end_snapshot,
       (SELECT least('9999-01-01Z', greatest('1970-01-01Z', b.snapshot_time))
          FROM ducklake_snapshot b WHERE b.snapshot_id >= m.begin_snapshot ORDER BY b.snapshot_id LIMIT 1) AS begun_at,
       i.impl_id, i.dialect, i.sql, i.type AS kind, p.parameter_name, p.parameter_type,
       coalesce(p.default_value, 'NULL') AS default_value, coalesce(p.default_value_type, 'unknown') AS default_value_type
  FROM ducklake_macro m
  """,
        NAMED_SCHEMA.format("m"),
        """
  JOIN ducklake_macro_impl i ON i.macro_id = m.macro_id
  LEFT JOIN ducklake_macro_parameters p ON p.macro_id = i.macro_id AND p.impl_id = i.impl_id
 WHERE lower(m.macro_name COLLATE "C") = ANY(%(folded_names)s)
   AND n.schema_name IS NOT NULL AND (m.end_snapshot IS NULL OR (%(with_history)s AND m.end_snapshot > m.begin_snapshot))
 ORDER BY m.begin_snapshot, m.macro_id, i.impl_id, p.column_id
""",
    )
)


def read_macros(conn: psycopg.Connection, folded_names: Sequence[str], *, with_history: bool = False) -> list[MacroRow]:
    """Return the macros of these names in all live schemas, from the oldest; `with_history`: also the replaced and the dropped ones."""
    return fetch_rows(conn, MacroRow, SELECT_MACROS, folded_names=list(folded_names), with_history=with_history)
