"""Details of some data files of a table, and their column statistics: a table may have a million of them."""

from collections.abc import Sequence

import psycopg

from duckicelake.lake.bulk.quick import fetch_tuples
from duckicelake.lake.rows import ColumnStatsRow, DataFileRow, PackedColumnStats

_DATA_FILES = """
       f.data_file_id, f.begin_snapshot, f.path, coalesce(f.path_is_relative, true) AS path_is_relative,
       f.record_count, f.file_size_bytes, f.row_id_start, f.partition_id, f.mapping_id, f.partial_max, f.encryption_key,
       CASE WHEN f.partition_id IS NOT NULL THEN
           ARRAY(SELECT p.partition_value FROM ducklake_file_partition_value p
                  WHERE p.data_file_id = f.data_file_id ORDER BY p.partition_key_index)
       END AS partition_values
  FROM ducklake_data_file f
 WHERE """
SELECT_MERGED_FILES = """
SELECT data_file_id, begin_snapshot, path, coalesce(path_is_relative, true) AS path_is_relative,
       record_count, file_size_bytes, row_id_start, partition_id, mapping_id, partial_max, encryption_key, partition_values
  FROM iceberg_merged_file
 WHERE data_file_id = ANY(%(data_file_ids)s)
"""
SELECT_DATA_FILES = "SELECT" + _DATA_FILES + "f.data_file_id = ANY(%(data_file_ids)s)"
SELECT_DATA_FILES_BETWEEN = "SELECT" + _DATA_FILES + "f.data_file_id BETWEEN %(first)s AND %(last)s"


def read_data_files(conn: psycopg.Connection, data_file_ids: Sequence[int]) -> list[DataFileRow]:
    """Return the details of some data files, in no order; of those that a merge replaced, as they were."""
    if is_run(data_file_ids):
        rows = fetch_tuples(conn, DataFileRow, SELECT_DATA_FILES_BETWEEN, first=min(data_file_ids), last=max(data_file_ids))
    else:
        rows = fetch_tuples(conn, DataFileRow, SELECT_DATA_FILES, data_file_ids=list(data_file_ids))
    replaced = set(data_file_ids) - {row.data_file_id for row in rows} if len(rows) < len(data_file_ids) else ()
    return [*rows, *fetch_tuples(conn, DataFileRow, SELECT_MERGED_FILES, data_file_ids=sorted(replaced))] if replaced else rows


def is_run(data_file_ids: Sequence[int]) -> bool:
    """Tell whether files follow each other, as those of one snapshot do: Postgres need not look for each of them."""
    return len(data_file_ids) > 1 and max(data_file_ids) - min(data_file_ids) == len(set(data_file_ids)) - 1


SELECT_COLUMN_STATS = """
SELECT data_file_id, column_id, column_size_bytes, value_count, null_count, min_value, max_value, contains_nan
  FROM ducklake_file_column_stats
 WHERE data_file_id = ANY(%(data_file_ids)s) AND table_id = %(table_id)s
 UNION ALL
SELECT data_file_id, column_id, column_size_bytes, value_count, null_count, min_value, max_value, contains_nan
  FROM iceberg_merged_column_stats
 WHERE data_file_id = ANY(%(data_file_ids)s) AND table_id = %(table_id)s
"""


def read_column_stats(conn: psycopg.Connection, table_id: int, data_file_ids: Sequence[int]) -> list[ColumnStatsRow]:
    """Return the column statistics of some data files, in no order."""
    return fetch_tuples(conn, ColumnStatsRow, SELECT_COLUMN_STATS, table_id=table_id, data_file_ids=list(data_file_ids))


_PACK = """
       -- one value for each row, where one for each column of it takes Postgres half as long again
       string_agg(int8send(data_file_id) || int8send(coalesce(column_id, -1)) || int8send(coalesce(column_size_bytes, -1))
                  || int8send(coalesce(value_count, -1)) || int8send(coalesce(null_count, -1))
                  || int8send(coalesce(contains_nan::integer, 2)::bigint << 32
                              | coalesce(CASE WHEN utf8 THEN octet_length(low) ELSE octet_length(convert_to(low, 'UTF8')) END + 1, 0) << 16
                              | coalesce(CASE WHEN utf8 THEN octet_length(high) ELSE octet_length(convert_to(high, 'UTF8')) END + 1, 0)),
                  ''::bytea) AS numbers,
       string_agg(low, '') AS min_value,
       string_agg(high, '') AS max_value
  FROM (SELECT data_file_id, column_id, column_size_bytes, value_count, null_count, contains_nan,
               -- only texts are longer than this, and no bound needs all of a long text
               left(min_value, 64) AS low, left(max_value, 64) AS high,
               (SELECT current_setting('server_encoding') = 'UTF8') AS utf8
          FROM ducklake_file_column_stats
         WHERE table_id = %(table_id)s AND """
_PACK_END = """
        -- or Postgres would cut every text three times
        OFFSET 0) s
"""

_SOME, _RUN = "data_file_id = ANY(%(data_file_ids)s)", "data_file_id BETWEEN %(first)s AND %(last)s"
_STATS, _MERGED_STATS = "ducklake_file_column_stats", "iceberg_merged_column_stats"
SELECT_PACKED_COLUMN_STATS = "SELECT" + _PACK + _SOME + _PACK_END
SELECT_PACKED_COLUMN_STATS_BETWEEN = "SELECT" + _PACK + _RUN + _PACK_END
SELECT_PACKED_MERGED_STATS = "SELECT" + _PACK.replace(_STATS, _MERGED_STATS) + _SOME + _PACK_END
SELECT_PACKED_MERGED_STATS_BETWEEN = "SELECT" + _PACK.replace(_STATS, _MERGED_STATS) + _RUN + _PACK_END


def read_packed_column_stats(conn: psycopg.Connection, table_id: int, data_file_ids: Sequence[int]) -> PackedColumnStats:
    """Return the same rows column by column, of one file at least: for more files than are worth an object per row."""
    if is_run(data_file_ids):
        queries = SELECT_PACKED_COLUMN_STATS_BETWEEN, SELECT_PACKED_MERGED_STATS_BETWEEN
        known = {"first": min(data_file_ids), "last": max(data_file_ids)}
    else:
        queries = SELECT_PACKED_COLUMN_STATS, SELECT_PACKED_MERGED_STATS
        known = {"data_file_ids": list(data_file_ids)}
    found = [conn.execute(query, {"table_id": table_id, **known}, binary=True).fetchone() for query in queries]
    rows = [row for row in found if row is not None]
    return PackedColumnStats(b"".join(row[0] or b"" for row in rows), *("".join(row[i] or "" for row in rows) for i in (1, 2)))
