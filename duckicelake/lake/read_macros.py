"""Queries for DuckLake's macros. `catalog` calls them in its own transactions."""

from collections.abc import Sequence

import psycopg

from duckicelake.lake.lake_format import NAMED_SCHEMA
from duckicelake.lake.read import fetch_rows
from duckicelake.lake.rows import MacroRow

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
