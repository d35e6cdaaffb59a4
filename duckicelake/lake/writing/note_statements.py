"""The SQL statements for rows about refs, retained snapshots, registered tables and views; arrays as in `lake.writing.statements`.

`lake.writing.apply` executes them in the commit's transaction.
"""

from collections.abc import Mapping, Sequence
from typing import LiteralString

from duckicelake.lake import note_rows

DELETE_REFS = """
DELETE FROM iceberg_ref r USING unnest(%(table_id)s::bigint[], %(name)s::text[]) AS n(table_id, name)
 WHERE r.table_id = n.table_id AND r.name = n.name
"""

INSERT_REFS = """
INSERT INTO iceberg_ref (table_id, name, snapshot_id, type, max_ref_age_ms, max_snapshot_age_ms, min_snapshots_to_keep)
SELECT n.table_id, n.name, n.target_id, n.type, n.max_ref_age_ms, n.max_snapshot_age_ms, n.min_snapshots_to_keep
  FROM unnest(%(table_id)s::bigint[], %(name)s::text[], %(target_id)s::bigint[], %(type)s::text[], %(max_ref_age_ms)s::bigint[],
              %(max_snapshot_age_ms)s::bigint[], %(min_snapshots_to_keep)s::integer[])
       AS n(table_id, name, target_id, type, max_ref_age_ms, max_snapshot_age_ms, min_snapshots_to_keep)
"""

INSERT_KEPT = """
INSERT INTO iceberg_kept (table_id, snapshot_id, base_snapshot_id, json, manifest_list)
SELECT n.table_id, n.target_id, n.base_snapshot_id, n.json, n.manifest_list
  FROM unnest(%(table_id)s::bigint[], %(target_id)s::bigint[], %(base_snapshot_id)s::bigint[], %(json)s::text[],
              %(manifest_list)s::bytea[])
       AS n(table_id, target_id, base_snapshot_id, json, manifest_list)
ON CONFLICT (table_id, snapshot_id) DO NOTHING
"""

DELETE_KEPT = """
DELETE FROM iceberg_kept k USING unnest(%(table_id)s::bigint[], %(target_id)s::bigint[]) AS n(table_id, target_id)
 WHERE k.table_id = n.table_id AND k.snapshot_id = n.target_id
"""

DELETE_KEPT_FILES = """
DELETE FROM iceberg_kept_file f
 WHERE f.table_id = ANY(%(table_id)s::bigint[])
   AND NOT EXISTS (SELECT FROM iceberg_kept k WHERE k.table_id = f.table_id AND k.manifest_list IS NOT NULL)
"""

INSERT_KEPT_FILES = """
INSERT INTO iceberg_kept_file (table_id, path)
SELECT n.table_id, n.path FROM unnest(%(table_id)s::bigint[], %(path)s::text[]) AS n(table_id, path)
"""

INSERT_MOVES = """
INSERT INTO iceberg_move (table_id, lake_snapshot_id, snapshot_id)
SELECT n.table_id, %(snapshot_id)s, n.target_id FROM unnest(%(table_id)s::bigint[], %(target_id)s::bigint[]) AS n(table_id, target_id)
"""

INSERT_ROOTS = """
INSERT INTO iceberg_root (table_id, lake_snapshot_id)
SELECT n.table_id, %(snapshot_id)s FROM unnest(%(table_id)s::bigint[]) AS n(table_id)
"""

INSERT_HIDDEN = """
INSERT INTO iceberg_hidden (table_id, snapshot_id)
SELECT n.table_id, n.target_id FROM unnest(%(table_id)s::bigint[], %(target_id)s::bigint[]) AS n(table_id, target_id)
ON CONFLICT (table_id, snapshot_id) DO NOTHING
"""

LOCK_CHANGES = """
LOCK TABLE iceberg_change IN EXCLUSIVE MODE
"""

INSERT_CHANGES = """
INSERT INTO iceberg_change (kind, table_id)
SELECT n.kind, n.table_id FROM unnest(%(kind)s::text[], %(table_id)s::bigint[]) AS n(kind, table_id)
"""

UPDATE_SETTING = """
UPDATE iceberg_setting SET value = (value::bigint + 1)::text WHERE key = 'refs'
"""

REF_STATEMENTS: Mapping[type[note_rows.NewRefRow], Sequence[LiteralString]] = {
    note_rows.NewRef: (DELETE_REFS, INSERT_REFS),
    note_rows.EndedRef: (DELETE_REFS,),
    note_rows.NewKeptSnapshot: (INSERT_KEPT,),
    note_rows.EndedKeptSnapshot: (DELETE_KEPT, DELETE_KEPT_FILES),
    note_rows.NewKeptFile: (INSERT_KEPT_FILES,),
    note_rows.NewMove: (INSERT_MOVES,),
    note_rows.NewRoot: (INSERT_ROOTS,),
    note_rows.NewHiddenSnapshot: (INSERT_HIDDEN,),
    # A clean-up that began before this commit does not see what must be retained now; the changed setting makes it fail and retry.
    note_rows.NewChange: (LOCK_CHANGES, INSERT_CHANGES, UPDATE_SETTING),
}


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

# DuckLake had scheduled these files for deletion when a merge replaced them.
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
"""The statements that bring removed files back, in order."""


INSERT_REGISTERED = """
INSERT INTO iceberg_registered (table_id, lake_snapshot_id, snapshot_id, is_shown, snapshot_log, metadata_log)
SELECT n.table_id, %(snapshot_id)s, n.target_id, n.is_shown, n.snapshot_log, n.metadata_log
  FROM unnest(%(table_id)s::bigint[], %(target_id)s::bigint[], %(is_shown)s::boolean[], %(snapshot_log)s::text[],
              %(metadata_log)s::text[])
       AS n(table_id, target_id, is_shown, snapshot_log, metadata_log)
"""

INSERT_FORMER_COLUMNS = """
INSERT INTO ducklake_column (column_id, begin_snapshot, end_snapshot, table_id, column_order, column_name, column_type,
                             default_value, nulls_allowed, default_value_type, default_value_dialect)
SELECT n.column_id, %(snapshot_id)s, %(snapshot_id)s, n.table_id, n.column_id, n.column_name, n.column_type,
       'NULL', true, 'literal', 'duckdb'
  FROM unnest(%(table_id)s::bigint[], %(column_id)s::bigint[], %(column_name)s::text[], %(column_type)s::text[])
       AS n(table_id, column_id, column_name, column_type)
"""

UPDATE_SEQUENCE_NUMBERS = """
UPDATE iceberg_file f SET sequence_number = n.sequence_number
  FROM unnest(%(data_file_id)s::bigint[], %(sequence_number)s::bigint[]) AS n(data_file_id, sequence_number)
 WHERE f.data_file_id = n.data_file_id
"""

INSERT_MAPPINGS = """
INSERT INTO ducklake_column_mapping (mapping_id, table_id, type)
SELECT n.mapping_id, n.table_id, 'map_by_name'
  FROM unnest(%(mapping_id)s::bigint[], %(table_id)s::bigint[]) AS n(mapping_id, table_id)
"""

INSERT_MAPPED_NAMES = """
INSERT INTO ducklake_name_mapping (mapping_id, column_id, source_name, target_field_id, is_partition)
SELECT n.mapping_id, n.column_id, n.source_name, n.target_field_id, n.is_partition
  FROM unnest(%(mapping_id)s::bigint[], %(column_id)s::bigint[], %(source_name)s::text[], %(target_field_id)s::bigint[],
              %(is_partition)s::boolean[])
       AS n(mapping_id, column_id, source_name, target_field_id, is_partition)
"""

UPDATE_MAPPED = """
UPDATE ducklake_data_file f SET mapping_id = n.mapping_id
  FROM unnest(%(data_file_id)s::bigint[], %(mapping_id)s::bigint[]) AS n(data_file_id, mapping_id)
 WHERE f.data_file_id = n.data_file_id
"""

INSERT_PINS = """
INSERT INTO ducklake_delete_file (delete_file_id, table_id, begin_snapshot, data_file_id, path, path_is_relative, format,
                                  delete_count, file_size_bytes)
SELECT n.delete_file_id, n.table_id, 0, 9223372036854775807, n.path, false, 'parquet', 0, 0
  FROM unnest(%(delete_file_id)s::bigint[], %(table_id)s::bigint[], %(path)s::text[]) AS n(delete_file_id, table_id, path)
"""

DELETE_PINS = """
DELETE FROM ducklake_delete_file
 WHERE table_id = 9223372036854775807 AND data_file_id = 9223372036854775807 AND path = ANY(%(path)s::text[])
"""

INSERT_PLACEHOLDER_SCHEMA = """
INSERT INTO ducklake_schema (schema_id, schema_uuid, begin_snapshot, schema_name, path, path_is_relative)
SELECT n.table_id, gen_random_uuid(), 9223372036854775807, '', '/', false FROM unnest(%(table_id)s::bigint[]) AS n(table_id)
ON CONFLICT (schema_id) DO NOTHING
"""

INSERT_PLACEHOLDER_TABLE = """
INSERT INTO ducklake_table (table_id, table_uuid, begin_snapshot, schema_id, table_name, path, path_is_relative)
SELECT n.table_id, gen_random_uuid(), 9223372036854775807, n.table_id, '', '/', false
  FROM unnest(%(table_id)s::bigint[]) AS n(table_id)
 -- It begins after every lake snapshot and never ends, so nothing shows or expires it.
 WHERE NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = n.table_id)
"""

REGISTERED_STATEMENTS: Mapping[type[note_rows.RegisteredRow], Sequence[LiteralString]] = {
    note_rows.NewRegistered: (INSERT_REGISTERED,),
    note_rows.FormerColumn: (INSERT_FORMER_COLUMNS,),
    note_rows.FileSequenceNumber: (UPDATE_SEQUENCE_NUMBERS,),
    note_rows.NewMapping: (INSERT_MAPPINGS,),
    note_rows.MappedName: (INSERT_MAPPED_NAMES,),
    note_rows.MappedFile: (UPDATE_MAPPED,),
    note_rows.PinnedFile: (INSERT_PINS,),
    note_rows.UnpinnedFile: (DELETE_PINS,),
    note_rows.PlaceholderTable: (INSERT_PLACEHOLDER_SCHEMA, INSERT_PLACEHOLDER_TABLE),
}


INSERT_VIEWS = """
INSERT INTO ducklake_view (view_id, view_uuid, begin_snapshot, schema_id, view_name, dialect, sql, column_aliases)
SELECT n.view_id, n.view_uuid, %(snapshot_id)s, n.schema_id, n.view_name, 'duckdb', n.sql, n.column_aliases
  FROM unnest(%(view_id)s::bigint[], %(view_uuid)s::uuid[], %(schema_id)s::bigint[], %(view_name)s::text[], %(sql)s::text[],
              %(column_aliases)s::text[])
       AS n(view_id, view_uuid, schema_id, view_name, sql, column_aliases)
"""

UPDATE_VIEWS = """
UPDATE ducklake_view SET end_snapshot = %(snapshot_id)s
 WHERE view_id = ANY(%(view_id)s::bigint[]) AND end_snapshot IS NULL
"""

UPDATE_TAGS_OF_VIEWS = """
UPDATE ducklake_tag SET end_snapshot = %(snapshot_id)s
 WHERE object_id = ANY(%(view_id)s::bigint[]) AND end_snapshot IS NULL
"""

UPDATE_COLUMN_TAGS_OF_VIEWS = """
UPDATE ducklake_view_column_tag SET end_snapshot = %(snapshot_id)s
 WHERE view_id = ANY(%(view_id)s::bigint[]) AND end_snapshot IS NULL
"""

DELETE_VIEW_NOTES = """
DELETE FROM iceberg_view WHERE view_id = ANY(%(view_id)s::bigint[])
"""

UPSERT_VIEW_NOTES = """
INSERT INTO iceberg_view (view_id, metadata_version, metadata_location, metadata, sql, column_aliases, is_told)
SELECT n.view_id, n.metadata_version, n.metadata_location, n.metadata, n.sql, n.column_aliases, n.is_told
  FROM unnest(%(view_id)s::bigint[], %(metadata_version)s::integer[], %(metadata_location)s::text[], %(metadata)s::text[],
              %(sql)s::text[], %(column_aliases)s::text[], %(is_told)s::boolean[])
       AS n(view_id, metadata_version, metadata_location, metadata, sql, column_aliases, is_told)
ON CONFLICT (view_id) DO UPDATE
   SET metadata_version = excluded.metadata_version, metadata_location = excluded.metadata_location,
       metadata = excluded.metadata, sql = excluded.sql, column_aliases = excluded.column_aliases, is_told = excluded.is_told
"""

VIEW_STATEMENTS: Mapping[type[note_rows.ViewRow], Sequence[LiteralString]] = {
    note_rows.NewView: (INSERT_VIEWS,),
    note_rows.EndedView: (UPDATE_VIEWS,),
    note_rows.DroppedView: (UPDATE_VIEWS, UPDATE_TAGS_OF_VIEWS, DELETE_VIEW_NOTES),
    note_rows.ViewNote: (UPSERT_VIEW_NOTES,),
}
"""The statements of each kind of row, in order."""

NESTING_STATEMENTS: Mapping[type[object], Sequence[LiteralString]] = {note_rows.DroppedView: (UPDATE_COLUMN_TAGS_OF_VIEWS,)}
"""The further statements of a row in a lake whose version nests schemas; older versions lack the tables."""
