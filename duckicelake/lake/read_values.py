"""Queries for columns whose values or statistics need care: too large integers, missing defaults, possible NULLs.

`lake.read_table` and `lake.writing.read_back` call them in their own transactions.
"""

from dataclasses import replace

import psycopg

from duckicelake.lake.null_proofs import read_nullable
from duckicelake.lake.rows import RepeatedFileRow, TableState

SELECT_TOO_LARGE = """
SELECT DISTINCT c.column_id
  FROM ducklake_column c
  -- Files from before the column's type was changed.
  JOIN ducklake_data_file f ON f.table_id = c.table_id
   AND (c.end_snapshot IS NULL OR f.begin_snapshot < c.end_snapshot
        -- A DuckDB transaction may insert rows before it changes the type; a client's commit writes its files with the new type.
        OR (f.begin_snapshot = c.end_snapshot
            AND NOT EXISTS (SELECT FROM iceberg_snapshot n WHERE n.table_id = c.table_id AND n.lake_snapshot_id = c.end_snapshot)))
  LEFT JOIN ducklake_file_column_stats s ON s.data_file_id = f.data_file_id AND s.table_id = f.table_id AND s.column_id = c.column_id
 WHERE c.table_id = %(table_id)s AND lower(c.column_type) = 'uint32' AND f.data_file_id >= %(next_file_id)s
   AND CASE WHEN s.data_file_id IS NULL
            -- DuckDB writes statistics of every column; a file that was added may lack them although it has the column.
            THEN EXISTS (SELECT FROM ducklake_name_mapping n WHERE n.mapping_id = f.mapping_id AND n.target_field_id = c.column_id)
            WHEN s.max_value IS NULL THEN coalesce(s.value_count, 1) > 0
            WHEN s.max_value ~ '^[0-9]{1,10}$' THEN s.max_value::bigint > 2147483647
            ELSE true END
 ORDER BY c.column_id
"""


SELECT_WITHOUT_DEFAULTED = """
SELECT a.column_id
  -- Take the first row of the column: a column that was renamed later was already in the files.
  FROM (SELECT column_id, min(begin_snapshot) AS begin_snapshot, max(coalesce(end_snapshot, 9223372036854775807)) AS end_snapshot
          FROM ducklake_column
         WHERE table_id = %(table_id)s GROUP BY column_id HAVING bool_or(initial_default IS NOT NULL)) a
 WHERE EXISTS (SELECT FROM ducklake_data_file f
                WHERE f.table_id = %(table_id)s AND f.data_file_id >= %(next_file_id)s
                  AND f.begin_snapshot >= a.begin_snapshot AND f.begin_snapshot < a.end_snapshot
                  AND NOT EXISTS (SELECT FROM ducklake_file_column_stats s
                                   WHERE s.table_id = f.table_id AND s.data_file_id = f.data_file_id AND s.column_id = a.column_id
                                   -- OFFSET 0 forces a look-up for each file; Postgres might hash the statistics of all tables.
                                  OFFSET 0)
                  -- A file without any statistics says nothing about this column.
                  AND EXISTS (SELECT FROM ducklake_file_column_stats s
                               WHERE s.table_id = f.table_id AND s.data_file_id = f.data_file_id OFFSET 0))
 ORDER BY a.column_id
"""


def with_value_checks(conn: psycopg.Connection, state: TableState, next_file_id: int) -> TableState:
    """Return the state with `too_large`, `lacked` and `nullable` set from files that were not read before.

    `too_large`: the uint32 columns that may hold numbers from 2^31 on in such a file. `lacked`: the columns with a default that
    such a file lacks although it is younger than the column. DuckLake's rewrites leave out columns that are younger than the rows;
    so do files that a transaction wrote before it added the column, and files of clients that did not know it yet. `nullable`: the
    required columns of which such a file is not proven to hold no NULL.
    """
    parameters = {"table_id": state.table.table_id, "next_file_id": next_file_id}
    if any(row.column_type.lower() == "uint32" for row in state.columns):
        state = replace(state, too_large=[row[0] for row in conn.execute(SELECT_TOO_LARGE, parameters)])
    if any(row.initial_default is not None for row in state.columns):
        state = replace(state, lacked=[row[0] for row in conn.execute(SELECT_WITHOUT_DEFAULTED, parameters)])
    nullable = read_nullable(conn, state, next_file_id)
    return replace(state, nullable=nullable) if nullable else state


SELECT_REPEATED_FILES = """
SELECT path, data_file_id, begin_snapshot, end_snapshot
  FROM (SELECT r.*, count(*) OVER (PARTITION BY r.path) AS times
          FROM (SELECT CASE WHEN coalesce(path_is_relative, true) THEN %(folder)s::text || path ELSE path END AS path,
                       data_file_id, begin_snapshot, end_snapshot
                  FROM (SELECT table_id, path, path_is_relative, data_file_id, begin_snapshot, end_snapshot FROM ducklake_data_file
                         UNION ALL
                        SELECT table_id, path, path_is_relative, data_file_id, begin_snapshot, end_snapshot FROM iceberg_merged_file) f
                 WHERE table_id = %(table_id)s) r) counted
 WHERE times > 1
 ORDER BY path, begin_snapshot, data_file_id
"""


def read_repeated_files(conn: psycopg.Connection, table_id: int, folder: str) -> list[RepeatedFileRow]:
    """Return the files that a table has more than one row for, live at the same time or not; `folder` is the table's."""
    parameters = {"table_id": table_id, "folder": folder}
    return [RepeatedFileRow._make(row) for row in conn.execute(SELECT_REPEATED_FILES, parameters)]
