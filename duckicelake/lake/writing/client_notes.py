"""What Iceberg clients said about their snapshots and files, as far as a load needs it."""

from collections.abc import Sequence

import psycopg

from duckicelake.lake.read import fetch_rows
from duckicelake.lake.rows import FileNote

SELECT_SNAPSHOT_NOTES = """
SELECT lake_snapshot_id, client_snapshot_id, schema_id, summary
  FROM iceberg_snapshot
 WHERE table_id = %(table_id)s AND lake_snapshot_id > %(since)s
 ORDER BY lake_snapshot_id
"""

SELECT_ALIASES = """
WITH latest AS (
    -- the snapshots of the commit that changed a table last, when a client made it
    SELECT commit_snapshot_id FROM iceberg_snapshot WHERE table_id = %(table_id)s ORDER BY lake_snapshot_id DESC LIMIT 1
)
SELECT n.lake_snapshot_id, n.client_snapshot_id, n.schema_id, n.summary
  FROM latest l JOIN iceberg_snapshot n ON n.table_id = %(table_id)s AND n.commit_snapshot_id = l.commit_snapshot_id
 WHERE NOT EXISTS (SELECT FROM ducklake_snapshot_changes c
                    -- quoted names are no tokens; the expression is that of the index
                    WHERE string_to_array(regexp_replace(c.changes_made, '"[^"]*"', '', 'g'), ',') && %(living_tokens)s
                      AND c.snapshot_id > l.commit_snapshot_id)
 ORDER BY n.lake_snapshot_id
"""

SELECT_CHANGED_AT = """
SELECT least('9999-01-01Z', greatest('1970-01-01Z', s.snapshot_time))
       -- when a table was changed last after a lake snapshot
  FROM ducklake_snapshot_changes c JOIN ducklake_snapshot s ON s.snapshot_id = c.snapshot_id
 -- quoted names are no tokens; the expression is that of the index
 WHERE string_to_array(regexp_replace(c.changes_made, '"[^"]*"', '', 'g'), ',') && %(any_tokens)s AND c.snapshot_id > %(since)s
 ORDER BY c.snapshot_id DESC LIMIT 1
"""

SELECT_FILE_NOTES = """
SELECT data_file_id, spec_id, partition, sort_order_id, split_offsets, sequence_number
  FROM iceberg_file
 WHERE data_file_id = ANY(%(data_file_ids)s)
"""


def read_file_notes(conn: psycopg.Connection, data_file_ids: Sequence[int]) -> dict[int, FileNote]:
    """Return what was said about some data files, by id; nothing is known about those DuckDB wrote."""
    return {row.data_file_id: row for row in fetch_rows(conn, FileNote, SELECT_FILE_NOTES, data_file_ids=list(data_file_ids))}
