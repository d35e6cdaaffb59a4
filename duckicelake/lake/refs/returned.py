"""Files that come back into a table: rows like those that they had, statistics, partition values and notes included."""

from collections.abc import Sequence
from typing import LiteralString

HOLD_MERGED = """
SELECT iceberg_hold_merged(%(source_id)s::bigint[])
"""

INSERT_RETURNED_FILES = """
INSERT INTO ducklake_data_file (data_file_id, table_id, begin_snapshot, path, path_is_relative, file_format, record_count,
                                file_size_bytes, footer_size, row_id_start, partition_id, encryption_key, mapping_id, partial_max)
SELECT n.data_file_id, f.table_id, %(snapshot_id)s, f.path, f.path_is_relative, f.file_format, f.record_count, f.file_size_bytes,
       f.footer_size, f.row_id_start, f.partition_id, f.encryption_key, f.mapping_id, f.partial_max
  FROM unnest(%(data_file_id)s::bigint[], %(source_id)s::bigint[]) AS n(data_file_id, source_id)
  JOIN ducklake_data_file f ON f.data_file_id = n.source_id
"""

INSERT_RETURNED_MERGED_FILES = INSERT_RETURNED_FILES.replace("JOIN ducklake_data_file", "JOIN iceberg_merged_file")

INSERT_RETURNED_STATS = """
INSERT INTO ducklake_file_column_stats (data_file_id, table_id, column_id, column_size_bytes, value_count, null_count, min_value,
                                        max_value, contains_nan, extra_stats)
SELECT n.data_file_id, s.table_id, s.column_id, s.column_size_bytes, s.value_count, s.null_count, s.min_value, s.max_value,
       s.contains_nan, s.extra_stats
  FROM unnest(%(data_file_id)s::bigint[], %(source_id)s::bigint[]) AS n(data_file_id, source_id)
  JOIN ducklake_file_column_stats s ON s.data_file_id = n.source_id
"""

INSERT_RETURNED_MERGED_STATS = INSERT_RETURNED_STATS.replace("JOIN ducklake_file_column_stats", "JOIN iceberg_merged_column_stats")

INSERT_RETURNED_PARTITIONS = """
INSERT INTO ducklake_file_partition_value (data_file_id, table_id, partition_key_index, partition_value)
SELECT n.data_file_id, p.table_id, p.partition_key_index, p.partition_value
  FROM unnest(%(data_file_id)s::bigint[], %(source_id)s::bigint[]) AS n(data_file_id, source_id)
  JOIN ducklake_file_partition_value p ON p.data_file_id = n.source_id
"""

INSERT_RETURNED_MERGED_PARTITIONS = """
INSERT INTO ducklake_file_partition_value (data_file_id, table_id, partition_key_index, partition_value)
SELECT n.data_file_id, m.table_id, v.place - 1, v.value
  FROM unnest(%(data_file_id)s::bigint[], %(source_id)s::bigint[]) AS n(data_file_id, source_id)
  JOIN iceberg_merged_file m ON m.data_file_id = n.source_id
 CROSS JOIN LATERAL unnest(m.partition_values) WITH ORDINALITY AS v(value, place)
"""

INSERT_RETURNED_NOTES = """
INSERT INTO iceberg_file (data_file_id, table_id, spec_id, partition, sort_order_id, split_offsets, sequence_number)
SELECT n.data_file_id, i.table_id, i.spec_id, i.partition, i.sort_order_id, i.split_offsets, i.sequence_number
  FROM unnest(%(data_file_id)s::bigint[], %(source_id)s::bigint[]) AS n(data_file_id, source_id)
  JOIN iceberg_file i ON i.data_file_id = n.source_id
"""

# DuckLake was going to delete these, because a merge had replaced them
DELETE_RETURNED_SCHEDULED = """
DELETE FROM ducklake_files_scheduled_for_deletion s USING iceberg_merged_file m
 WHERE m.data_file_id = ANY(%(source_id)s::bigint[]) AND s.data_file_id = m.data_file_id
"""

RETURN_FILES: Sequence[LiteralString] = (
    HOLD_MERGED,
    INSERT_RETURNED_FILES,
    INSERT_RETURNED_MERGED_FILES,
    INSERT_RETURNED_STATS,
    INSERT_RETURNED_MERGED_STATS,
    INSERT_RETURNED_PARTITIONS,
    INSERT_RETURNED_MERGED_PARTITIONS,
    INSERT_RETURNED_NOTES,
    DELETE_RETURNED_SCHEDULED,
)
"""What runs for each file, in order."""
