"""What DuckLake's statistics tell about values that not every reader shows rightly."""

import psycopg

from duckicelake.lake.null_proofs import read_nullable
from duckicelake.lake.rows import RepeatedFileRow, TableState
from duckicelake.values import replace

SELECT_TOO_LARGE = """
SELECT DISTINCT c.column_id
  FROM ducklake_column c
  -- files from before the column was changed to another type
  JOIN ducklake_data_file f ON f.table_id = c.table_id
   AND (c.end_snapshot IS NULL OR f.begin_snapshot < c.end_snapshot
        -- a transaction of DuckDB may insert rows and then change the type; a client's commit writes its files by the new one
        OR (f.begin_snapshot = c.end_snapshot
            AND NOT EXISTS (SELECT FROM iceberg_snapshot n WHERE n.table_id = c.table_id AND n.lake_snapshot_id = c.end_snapshot)))
  LEFT JOIN ducklake_file_column_stats s ON s.data_file_id = f.data_file_id AND s.table_id = f.table_id AND s.column_id = c.column_id
 WHERE c.table_id = %(table_id)s AND lower(c.column_type) = 'uint32' AND f.data_file_id >= %(next_file_id)s
   AND CASE WHEN s.data_file_id IS NULL
            -- DuckDB writes statistics of every column; an added file that has the column may have come without
            THEN EXISTS (SELECT FROM ducklake_name_mapping n WHERE n.mapping_id = f.mapping_id AND n.target_field_id = c.column_id)
            WHEN s.max_value IS NULL THEN coalesce(s.value_count, 1) > 0
            WHEN s.max_value ~ '^[0-9]{1,10}$' THEN s.max_value::bigint > 2147483647
            ELSE true END
 ORDER BY c.column_id
"""


SELECT_WITHOUT_DEFAULTED = """
SELECT a.column_id
  -- as they began: what was renamed since was in the files before
  FROM (SELECT column_id, min(begin_snapshot) AS begin_snapshot, max(coalesce(end_snapshot, 9223372036854775807)) AS end_snapshot
          FROM ducklake_column
         WHERE table_id = %(table_id)s GROUP BY column_id HAVING bool_or(initial_default IS NOT NULL)) a
 WHERE EXISTS (SELECT FROM ducklake_data_file f
                WHERE f.table_id = %(table_id)s AND f.data_file_id >= %(next_file_id)s
                  AND f.begin_snapshot >= a.begin_snapshot AND f.begin_snapshot < a.end_snapshot
                  AND NOT EXISTS (SELECT FROM ducklake_file_column_stats s
                                   WHERE s.table_id = f.table_id AND s.data_file_id = f.data_file_id AND s.column_id = a.column_id
                                   -- looked up for each file: else Postgres may make a hash of the statistics of all tables
                                  OFFSET 0)
                  -- whoever told nothing of any column did not leave this one out
                  AND EXISTS (SELECT FROM ducklake_file_column_stats s
                               WHERE s.table_id = f.table_id AND s.data_file_id = f.data_file_id OFFSET 0))
 ORDER BY a.column_id
"""


def with_value_checks(conn: psycopg.Connection, state: TableState, next_file_id: int) -> TableState:
    """Return the state with what files tell of its columns.

    `too_large`: the uint32 columns of which a file not read before may hold numbers from 2^31 on. `lacked`: the columns with a
    default that such a file has none of though it came later than they did. DuckLake's rewrites leave them out where the rows are older,
    and so do files that a transaction wrote before it added them, and those of clients that did not know them yet. `nullable`: the
    required columns that such a file is not proven to hold no NULL of.
    """
    known = {"table_id": state.table.table_id, "next_file_id": next_file_id}
    if any(row.column_type.lower() == "uint32" for row in state.columns):
        state = replace(state, too_large=[row[0] for row in conn.execute(SELECT_TOO_LARGE, known)])
    if any(row.initial_default is not None for row in state.columns):
        state = replace(state, lacked=[row[0] for row in conn.execute(SELECT_WITHOUT_DEFAULTED, known)])
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
    """Return the files that a table holds more than once, whether at the same time or not; `folder` is the table's."""
    known = {"table_id": table_id, "folder": folder}
    return [RepeatedFileRow._make(row) for row in conn.execute(SELECT_REPEATED_FILES, known)]
