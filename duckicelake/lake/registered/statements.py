"""One statement, or several in order, for each kind of row about registering; arrays as in `lake.writing.statements`."""

from collections.abc import Mapping, Sequence
from typing import LiteralString

from duckicelake.lake.registered import rows

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
 -- begins after every lake snapshot and never ends, so that nothing shows it and nothing expires it
 WHERE NOT EXISTS (SELECT FROM ducklake_table t WHERE t.table_id = n.table_id)
"""

REGISTERED_STATEMENTS: Mapping[type[rows.RegisteredRow], Sequence[LiteralString]] = {
    rows.NewRegistered: (INSERT_REGISTERED,),
    rows.FormerColumn: (INSERT_FORMER_COLUMNS,),
    rows.SequencedFile: (UPDATE_SEQUENCE_NUMBERS,),
    rows.NewMapping: (INSERT_MAPPINGS,),
    rows.MappedName: (INSERT_MAPPED_NAMES,),
    rows.MappedFile: (UPDATE_MAPPED,),
    rows.PinnedFile: (INSERT_PINS,),
    rows.UnpinnedFile: (DELETE_PINS,),
    rows.PlaceholderTable: (INSERT_PLACEHOLDER_SCHEMA, INSERT_PLACEHOLDER_TABLE),
}
