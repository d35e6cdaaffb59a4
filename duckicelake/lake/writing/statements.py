"""The SQL statements of a commit: one for each kind of row, which takes all rows of the kind as arrays.

`%(snapshot_id)s` is the lake snapshot that the step makes.

`lake.writing.apply` executes them in the commit's transaction, under the lake's lock.
"""

from collections.abc import Mapping, Sequence
from typing import LiteralString

from duckicelake.lake import note_rows
from duckicelake.lake.writing import rows
from duckicelake.lake.writing.note_statements import REF_STATEMENTS, REGISTERED_STATEMENTS, RETURN_FILES, VIEW_STATEMENTS
from duckicelake.lake.writing.rows import BoundsRow, EndedSorting, RewordedSortKey, SortingRow, WidenedFloats

INSERT_SCHEMAS = """
INSERT INTO ducklake_schema (schema_id, schema_uuid, begin_snapshot, schema_name, path, path_is_relative)
SELECT n.schema_id, n.schema_uuid, %(snapshot_id)s, n.schema_name, n.path, true
  FROM unnest(%(schema_id)s::bigint[], %(schema_uuid)s::uuid[], %(schema_name)s::text[], %(path)s::text[])
       AS n(schema_id, schema_uuid, schema_name, path)
"""

INSERT_NESTED_SCHEMAS = """
INSERT INTO ducklake_schema (schema_id, schema_uuid, begin_snapshot, schema_name, path, path_is_relative, parent_schema_id)
SELECT n.schema_id, n.schema_uuid, %(snapshot_id)s, n.schema_name, n.path, true, n.parent_schema_id
  FROM unnest(%(schema_id)s::bigint[], %(schema_uuid)s::uuid[], %(schema_name)s::text[], %(path)s::text[],
              %(parent_schema_id)s::bigint[])
       AS n(schema_id, schema_uuid, schema_name, path, parent_schema_id)
"""

UPDATE_SCHEMAS = """
UPDATE ducklake_schema SET end_snapshot = %(snapshot_id)s
 WHERE schema_id = ANY(%(schema_id)s::bigint[]) AND end_snapshot IS NULL
"""

UPDATE_TAGS_OF_SCHEMAS = """
UPDATE ducklake_tag SET end_snapshot = %(snapshot_id)s
 WHERE object_id = ANY(%(schema_id)s::bigint[]) AND end_snapshot IS NULL
"""

INSERT_TAGS = """
INSERT INTO ducklake_tag (object_id, begin_snapshot, key, value)
SELECT n.object_id, %(snapshot_id)s, n.key, n.value
  FROM unnest(%(object_id)s::bigint[], %(key)s::text[], %(value)s::text[]) AS n(object_id, key, value)
"""

UPDATE_TAGS = """
UPDATE ducklake_tag t SET end_snapshot = %(snapshot_id)s
  FROM unnest(%(object_id)s::bigint[], %(key)s::text[]) AS n(object_id, key)
 WHERE t.object_id = n.object_id AND t.key = n.key AND t.end_snapshot IS NULL
"""

INSERT_TABLES = """
INSERT INTO ducklake_table (table_id, table_uuid, begin_snapshot, schema_id, table_name, path, path_is_relative)
SELECT n.table_id, n.table_uuid, %(snapshot_id)s, n.schema_id, n.table_name, n.path, n.path_is_relative
  FROM unnest(%(table_id)s::bigint[], %(table_uuid)s::uuid[], %(schema_id)s::bigint[], %(table_name)s::text[],
              %(path)s::text[], %(path_is_relative)s::boolean[])
       AS n(table_id, table_uuid, schema_id, table_name, path, path_is_relative)
"""

UPDATE_NAMES = """
UPDATE ducklake_table SET end_snapshot = %(snapshot_id)s
 WHERE table_id = ANY(%(table_id)s::bigint[]) AND end_snapshot IS NULL
"""

UPDATE_COLUMNS_OF_TABLES = """
UPDATE ducklake_column SET end_snapshot = %(snapshot_id)s
 WHERE table_id = ANY(%(table_id)s::bigint[]) AND end_snapshot IS NULL
"""

UPDATE_COMMENTS_OF_TABLES = """
UPDATE ducklake_column_tag SET end_snapshot = %(snapshot_id)s
 WHERE table_id = ANY(%(table_id)s::bigint[]) AND end_snapshot IS NULL
"""

UPDATE_TAGS_OF_TABLES = """
UPDATE ducklake_tag SET end_snapshot = %(snapshot_id)s
 WHERE object_id = ANY(%(table_id)s::bigint[]) AND end_snapshot IS NULL
"""

UPDATE_FILES_OF_TABLES = """
UPDATE ducklake_data_file SET end_snapshot = %(snapshot_id)s
 WHERE table_id = ANY(%(table_id)s::bigint[]) AND end_snapshot IS NULL
"""

UPDATE_DELETES_OF_TABLES = """
UPDATE ducklake_delete_file SET end_snapshot = %(snapshot_id)s
 WHERE table_id = ANY(%(table_id)s::bigint[]) AND end_snapshot IS NULL
"""

UPDATE_PARTITIONINGS = """
UPDATE ducklake_partition_info SET end_snapshot = %(snapshot_id)s
 WHERE table_id = ANY(%(table_id)s::bigint[]) AND end_snapshot IS NULL
"""

INSERT_PARTITIONINGS = """
INSERT INTO ducklake_partition_info (partition_id, table_id, begin_snapshot)
SELECT DISTINCT n.partition_id, n.table_id, %(snapshot_id)s::bigint
  FROM unnest(%(table_id)s::bigint[], %(partition_id)s::bigint[]) AS n(table_id, partition_id)
"""

INSERT_PARTITION_KEYS = """
INSERT INTO ducklake_partition_column (partition_id, table_id, partition_key_index, column_id, transform)
SELECT n.partition_id, n.table_id, n.partition_key_index, n.column_id, n.transform
  FROM unnest(%(partition_id)s::bigint[], %(table_id)s::bigint[], %(partition_key_index)s::bigint[], %(column_id)s::bigint[],
              %(transform)s::text[])
       AS n(partition_id, table_id, partition_key_index, column_id, transform)
"""

UPDATE_REVIVED_COLUMNS = """
UPDATE ducklake_column x SET end_snapshot = NULL
  FROM unnest(%(table_id)s::bigint[], %(dropped_at)s::bigint[]) AS n(table_id, dropped_at)
 WHERE x.table_id = n.table_id AND x.end_snapshot = n.dropped_at
"""

UPDATE_REVIVED_COMMENTS = """
UPDATE ducklake_column_tag x SET end_snapshot = NULL
  FROM unnest(%(table_id)s::bigint[], %(dropped_at)s::bigint[]) AS n(table_id, dropped_at)
 WHERE x.table_id = n.table_id AND x.end_snapshot = n.dropped_at
"""

UPDATE_REVIVED_TAGS = """
UPDATE ducklake_tag x SET end_snapshot = NULL
  FROM unnest(%(table_id)s::bigint[], %(dropped_at)s::bigint[]) AS n(table_id, dropped_at)
 WHERE x.object_id = n.table_id AND x.end_snapshot = n.dropped_at
"""

UPDATE_REVIVED_FILES = """
UPDATE ducklake_data_file x SET end_snapshot = NULL
  FROM unnest(%(table_id)s::bigint[], %(dropped_at)s::bigint[]) AS n(table_id, dropped_at)
 WHERE x.table_id = n.table_id AND x.end_snapshot = n.dropped_at
"""

UPDATE_REVIVED_DELETES = """
UPDATE ducklake_delete_file x SET end_snapshot = NULL
  FROM unnest(%(table_id)s::bigint[], %(dropped_at)s::bigint[]) AS n(table_id, dropped_at)
 WHERE x.table_id = n.table_id AND x.end_snapshot = n.dropped_at
"""

INSERT_REVIVED_PARTITIONINGS = """
-- Between the drop and now no table may have this row: DuckDB cannot attach the lake at a snapshot with a partitioning of no table.
INSERT INTO ducklake_partition_info (partition_id, table_id, begin_snapshot)
SELECT x.partition_id, x.table_id, %(snapshot_id)s::bigint
  FROM unnest(%(table_id)s::bigint[], %(dropped_at)s::bigint[]) AS n(table_id, dropped_at)
  JOIN ducklake_partition_info x ON x.table_id = n.table_id AND x.end_snapshot = n.dropped_at
"""

INSERT_REVIVED_SORTINGS = """
-- As with partitionings, DuckDB refuses the sort order of a table that is not there.
INSERT INTO ducklake_sort_info (sort_id, table_id, begin_snapshot)
SELECT x.sort_id, x.table_id, %(snapshot_id)s::bigint
  FROM unnest(%(table_id)s::bigint[], %(dropped_at)s::bigint[]) AS n(table_id, dropped_at)
  JOIN ducklake_sort_info x ON x.table_id = n.table_id AND x.end_snapshot = n.dropped_at
"""

# Two tables must not write the same metadata file: numbers go on after the highest one that any table has used at the location.
LAST_VERSION_THERE: LiteralString = """(SELECT max(o.metadata_version)
                               FROM (SELECT location, metadata_version FROM iceberg_table
                                     UNION ALL SELECT location, metadata_version FROM iceberg_location) o
                              WHERE regexp_replace(regexp_replace(o.location, '^s3[an]://', 's3://'), '^file:/+', 'file:///')
                                  = regexp_replace(regexp_replace({location}, '^s3[an]://', 's3://'), '^file:/+', 'file:///'))"""

UPDATE_REVIVED_VERSIONS = "".join(
    (
        """
UPDATE iceberg_table t SET metadata_version = """,
        LAST_VERSION_THERE.format(location="t.location"),
        """, token = ''
 WHERE t.table_id = ANY(%(table_id)s::bigint[]) AND t.metadata_version < """,
        LAST_VERSION_THERE.format(location="t.location"),
        """
""",
    )
)

INSERT_COLUMNS = """
INSERT INTO ducklake_column (column_id, begin_snapshot, table_id, column_order, column_name, column_type, initial_default,
                             default_value, nulls_allowed, parent_column, default_value_type, default_value_dialect)
SELECT n.column_id, %(snapshot_id)s, n.table_id, n.column_order, n.column_name, n.column_type, n.initial_default,
       n.default_value, n.nulls_allowed, n.parent_column, n.default_value_type, 'duckdb'
  FROM unnest(%(table_id)s::bigint[], %(column_id)s::bigint[], %(column_order)s::bigint[], %(column_name)s::text[],
              %(column_type)s::text[], %(initial_default)s::text[], %(default_value)s::text[], %(default_value_type)s::text[],
              %(nulls_allowed)s::boolean[], %(parent_column)s::bigint[])
       AS n(table_id, column_id, column_order, column_name, column_type, initial_default, default_value, default_value_type,
            nulls_allowed, parent_column)
"""

UPDATE_COLUMNS = """
UPDATE ducklake_column c SET end_snapshot = %(snapshot_id)s
  FROM unnest(%(table_id)s::bigint[], %(column_id)s::bigint[]) AS n(table_id, column_id)
 WHERE c.table_id = n.table_id AND c.column_id = n.column_id AND c.end_snapshot IS NULL
"""

INSERT_COMMENTS = """
INSERT INTO ducklake_column_tag (table_id, column_id, begin_snapshot, key, value)
SELECT n.table_id, n.column_id, %(snapshot_id)s, 'comment', n.value
  FROM unnest(%(table_id)s::bigint[], %(column_id)s::bigint[], %(value)s::text[]) AS n(table_id, column_id, value)
"""

UPDATE_COMMENTS = """
UPDATE ducklake_column_tag c SET end_snapshot = %(snapshot_id)s
  FROM unnest(%(table_id)s::bigint[], %(column_id)s::bigint[]) AS n(table_id, column_id)
 WHERE c.table_id = n.table_id AND c.column_id = n.column_id AND c.end_snapshot IS NULL
"""

INSERT_SCHEMA_VERSIONS = """
INSERT INTO ducklake_schema_versions (begin_snapshot, schema_version, table_id)
SELECT %(snapshot_id)s, %(schema_version)s, n.table_id FROM unnest(%(table_id)s::bigint[]) AS n(table_id)
"""

INSERT_DATA_FILES = """
INSERT INTO ducklake_data_file (data_file_id, table_id, begin_snapshot, path, path_is_relative, file_format, record_count,
                                file_size_bytes, row_id_start)
SELECT n.data_file_id, n.table_id, %(snapshot_id)s, n.path, false, 'parquet', n.record_count, n.file_size_bytes, n.row_id_start
  FROM unnest(%(data_file_id)s::bigint[], %(table_id)s::bigint[], %(path)s::text[], %(record_count)s::bigint[],
              %(file_size_bytes)s::bigint[], %(row_id_start)s::bigint[])
       AS n(data_file_id, table_id, path, record_count, file_size_bytes, row_id_start)
"""

UPDATE_DATA_FILES = """
UPDATE ducklake_data_file SET end_snapshot = %(snapshot_id)s
 WHERE data_file_id = ANY(%(data_file_id)s::bigint[]) AND end_snapshot IS NULL
"""

UPDATE_DELETE_FILES = """
UPDATE ducklake_delete_file SET end_snapshot = %(snapshot_id)s
 WHERE data_file_id = ANY(%(data_file_id)s::bigint[]) AND end_snapshot IS NULL
"""

INSERT_COLUMN_STATS = """
INSERT INTO ducklake_file_column_stats (data_file_id, table_id, column_id, column_size_bytes, value_count, null_count,
                                        min_value, max_value, contains_nan)
SELECT n.data_file_id, n.table_id, n.column_id, n.column_size_bytes, n.value_count, n.null_count, n.min_value, n.max_value,
       n.contains_nan
  FROM unnest(%(data_file_id)s::bigint[], %(table_id)s::bigint[], %(column_id)s::bigint[], %(column_size_bytes)s::bigint[],
              %(value_count)s::bigint[], %(null_count)s::bigint[], %(min_value)s::text[], %(max_value)s::text[],
              %(contains_nan)s::boolean[])
       AS n(data_file_id, table_id, column_id, column_size_bytes, value_count, null_count, min_value, max_value, contains_nan)
"""

INSERT_TABLE_STATS = """
INSERT INTO ducklake_table_stats (table_id, record_count, next_row_id, file_size_bytes)
SELECT n.table_id, 0, 0, 0 FROM unnest(%(table_id)s::bigint[]) AS n(table_id)
 -- The table has no unique key.
 WHERE NOT EXISTS (SELECT FROM ducklake_table_stats s WHERE s.table_id = n.table_id AND s.table_id = ANY(%(table_id)s::bigint[]))
"""

UPDATE_TABLE_STATS = """
UPDATE ducklake_table_stats s
   SET record_count = s.record_count + n.record_count, next_row_id = s.next_row_id + n.record_count,
       file_size_bytes = s.file_size_bytes + n.file_size_bytes
  FROM unnest(%(table_id)s::bigint[], %(record_count)s::bigint[], %(file_size_bytes)s::bigint[])
       AS n(table_id, record_count, file_size_bytes)
 WHERE s.table_id = n.table_id AND s.table_id = ANY(%(table_id)s::bigint[])
"""

UPDATE_NEXT_ROW_ID = """
UPDATE ducklake_table_stats s SET next_row_id = s.next_row_id + n.count
  FROM unnest(%(table_id)s::bigint[], %(count)s::bigint[]) AS n(table_id, count)
 WHERE s.table_id = n.table_id AND s.table_id = ANY(%(table_id)s::bigint[])
"""

DELETE_TABLE_COLUMN_STATS = """
DELETE FROM ducklake_table_column_stats WHERE table_id = ANY(%(table_id)s::bigint[])
"""

INSERT_DELETE_FILES = """
INSERT INTO ducklake_delete_file (delete_file_id, table_id, begin_snapshot, data_file_id, path, path_is_relative, format,
                                  delete_count, file_size_bytes)
SELECT n.delete_file_id, n.table_id, %(snapshot_id)s, n.data_file_id, n.path, false, n.format, n.delete_count, n.file_size_bytes
  FROM unnest(%(delete_file_id)s::bigint[], %(table_id)s::bigint[], %(data_file_id)s::bigint[], %(path)s::text[],
              %(format)s::text[], %(delete_count)s::bigint[], %(file_size_bytes)s::bigint[])
       AS n(delete_file_id, table_id, data_file_id, path, format, delete_count, file_size_bytes)
"""

INSERT_TABLE_NOTES = """
INSERT INTO iceberg_table (table_id, location, format_version, sequence_base, metadata_version, lake_snapshot_id, change_id,
                           token, updated_ms, last_column_id, last_partition_id, is_native)
SELECT n.table_id, n.location, n.format_version, 0, n.metadata_version, -1, -1, '', 0, n.last_column_id, n.last_partition_id, true
  FROM unnest(%(table_id)s::bigint[], %(location)s::text[], %(format_version)s::integer[], %(last_column_id)s::integer[],
              %(last_partition_id)s::integer[], %(metadata_version)s::bigint[])
       AS n(table_id, location, format_version, last_column_id, last_partition_id, metadata_version)
"""

UPDATE_TABLE_NOTES = "".join(
    (
        """
UPDATE iceberg_table t
   SET location = n.location, format_version = n.format_version, last_column_id = n.last_column_id,
       last_partition_id = n.last_partition_id, sequence_base = coalesce(n.sequence_base, t.sequence_base),
       numbered_until = coalesce(n.numbered_until, t.numbered_until),
       metadata_version = CASE WHEN n.location = t.location THEN t.metadata_version
                               ELSE greatest(t.metadata_version, """,
        LAST_VERSION_THERE.format(location="n.location"),
        """) END
  FROM unnest(%(table_id)s::bigint[], %(location)s::text[], %(format_version)s::integer[], %(last_column_id)s::integer[],
              %(last_partition_id)s::integer[], %(sequence_base)s::bigint[], %(numbered_until)s::bigint[])
       AS n(table_id, location, format_version, last_column_id, last_partition_id, sequence_base, numbered_until)
 WHERE t.table_id = n.table_id
""",
    )
)

INSERT_FORMER_LOCATIONS = """
INSERT INTO iceberg_location (table_id, metadata_version, location)
SELECT t.table_id, t.metadata_version, n.location
  FROM unnest(%(table_id)s::bigint[], %(location)s::text[]) AS n(table_id, location) JOIN iceberg_table t ON t.table_id = n.table_id
   -- FOR NO KEY UPDATE waits for a load that assigns a version now, but not for one that only blocks other assignments.
   FOR NO KEY UPDATE OF t
"""

INSERT_SCHEMA_NOTES = """
INSERT INTO iceberg_schema (table_id, schema_id, json)
SELECT n.table_id, n.id, n.json FROM unnest(%(table_id)s::bigint[], %(id)s::integer[], %(json)s::text[]) AS n(table_id, id, json)
"""

INSERT_SPEC_NOTES = """
INSERT INTO iceberg_spec (table_id, spec_id, json)
SELECT n.table_id, n.id, n.json FROM unnest(%(table_id)s::bigint[], %(id)s::integer[], %(json)s::text[]) AS n(table_id, id, json)
"""

UPSERT_STATISTICS = """
INSERT INTO iceberg_statistics (table_id, kind, snapshot_id, json)
SELECT n.table_id, n.kind, n.snapshot_id, n.json
  FROM unnest(%(table_id)s::bigint[], %(kind)s::text[], %(snapshot_id)s::bigint[], %(json)s::text[])
       AS n(table_id, kind, snapshot_id, json)
ON CONFLICT (table_id, kind, snapshot_id) DO UPDATE SET json = excluded.json
"""

DELETE_STATISTICS = """
DELETE FROM iceberg_statistics s
 USING unnest(%(table_id)s::bigint[], %(kind)s::text[], %(snapshot_id)s::bigint[]) AS n(table_id, kind, snapshot_id)
 WHERE s.table_id = n.table_id AND s.kind = n.kind AND s.snapshot_id = n.snapshot_id
"""

UPDATE_SCHEMA_NOTES = """
UPDATE iceberg_schema s SET is_removed = n.is_removed
  FROM unnest(%(table_id)s::bigint[], %(id)s::integer[], %(is_removed)s::boolean[]) AS n(table_id, id, is_removed)
 WHERE s.table_id = n.table_id AND s.schema_id = n.id
"""

UPDATE_SPEC_NOTES = """
UPDATE iceberg_spec s SET is_removed = n.is_removed
  FROM unnest(%(table_id)s::bigint[], %(id)s::integer[], %(is_removed)s::boolean[]) AS n(table_id, id, is_removed)
 WHERE s.table_id = n.table_id AND s.spec_id = n.id
"""

INSERT_SORT_ORDER_NOTES = """
INSERT INTO iceberg_sort_order (table_id, order_id, json)
SELECT n.table_id, n.id, n.json FROM unnest(%(table_id)s::bigint[], %(id)s::integer[], %(json)s::text[]) AS n(table_id, id, json)
"""

INSERT_SHAPES = """
INSERT INTO iceberg_shape (table_id, lake_snapshot_id, schema_id, spec_id, order_id)
SELECT n.table_id, %(snapshot_id)s, n.schema_id, n.spec_id, n.order_id
  FROM unnest(%(table_id)s::bigint[], %(schema_id)s::integer[], %(spec_id)s::integer[], %(order_id)s::integer[])
       AS n(table_id, schema_id, spec_id, order_id)
"""

INSERT_SNAPSHOT_NOTES = """
INSERT INTO iceberg_snapshot (table_id, lake_snapshot_id, commit_snapshot_id, client_snapshot_id, schema_id, summary)
SELECT n.table_id, %(snapshot_id)s, n.commit_snapshot_id, n.client_snapshot_id, n.schema_id, n.summary
  FROM unnest(%(table_id)s::bigint[], %(commit_snapshot_id)s::bigint[], %(client_snapshot_id)s::bigint[],
              %(schema_id)s::integer[], %(summary)s::text[])
       AS n(table_id, commit_snapshot_id, client_snapshot_id, schema_id, summary)
"""

INSERT_FILE_NOTES = """
INSERT INTO iceberg_file (table_id, data_file_id, spec_id, partition, sort_order_id, split_offsets)
SELECT n.table_id, n.data_file_id, n.spec_id, n.partition, n.sort_order_id, n.split_offsets
  FROM unnest(%(table_id)s::bigint[], %(data_file_id)s::bigint[], %(spec_id)s::integer[], %(partition)s::text[],
              %(sort_order_id)s::integer[], %(split_offsets)s::text[])
       AS n(table_id, data_file_id, spec_id, partition, sort_order_id, split_offsets)
"""
UPDATE_FILE_BOUNDS = """
WITH bounds AS (
    SELECT s.row_place, s.min_value, s.max_value
      FROM unnest(%(table_id)s::bigint[], %(column_id)s::bigint[]) AS n(table_id, column_id)
      -- There is no index on the table id of statistics.
      JOIN ducklake_data_file d ON d.table_id = n.table_id
     CROSS JOIN LATERAL (SELECT s.ctid AS row_place, s.min_value, s.max_value FROM ducklake_file_column_stats s
                          WHERE s.data_file_id = d.data_file_id AND s.column_id = n.column_id OFFSET 0) s
     -- Only numbers that a float represents: a cast of any other text would fail.
     WHERE s.min_value ~ '^-?[0-9]{1,40}([.][0-9]{1,40})?(e[+-]?[0-9]{1,2})?$'
       AND s.max_value ~ '^-?[0-9]{1,40}([.][0-9]{1,40})?(e[+-]?[0-9]{1,2})?$'
),
numbers AS MATERIALIZED (
    SELECT b.row_place, b.min_value::double precision AS least, b.max_value::double precision AS greatest FROM bounds b
),
floats AS MATERIALIZED (
    SELECT * FROM numbers
     WHERE (least = 0 OR abs(least) BETWEEN 1.2e-38 AND 3.4028234e38) AND (greatest = 0 OR abs(greatest) BETWEEN 1.2e-38 AND 3.4028234e38)
)
UPDATE ducklake_file_column_stats s
   SET min_value = f.least::real::double precision::text, max_value = f.greatest::real::double precision::text
  FROM floats f
 WHERE s.ctid = f.row_place
"""

FORGET_TABLE_BOUNDS = """
DELETE FROM ducklake_table_column_stats WHERE table_id = ANY(%(table_id)s::bigint[])
"""

BOUNDS_STATEMENTS: Mapping[type[BoundsRow], Sequence[LiteralString]] = {
    WidenedFloats: (UPDATE_FILE_BOUNDS, FORGET_TABLE_BOUNDS),
}


UPDATE_SORTINGS = """
UPDATE ducklake_sort_info SET end_snapshot = %(snapshot_id)s
 WHERE table_id = ANY(%(table_id)s::bigint[]) AND end_snapshot IS NULL
"""

INSERT_SORT_KEYS = """
INSERT INTO ducklake_sort_expression (sort_id, table_id, sort_key_index, expression, dialect, sort_direction, null_order)
SELECT n.sort_id, n.table_id, n.sort_key_index, n.expression, e.dialect, e.sort_direction, e.null_order
  FROM unnest(%(table_id)s::bigint[], %(sort_id)s::bigint[], %(sort_key_index)s::bigint[], %(expression)s::text[])
       AS n(table_id, sort_id, sort_key_index, expression)
  JOIN ducklake_sort_info i ON i.table_id = n.table_id AND i.end_snapshot IS NULL
  JOIN ducklake_sort_expression e ON e.sort_id = i.sort_id AND e.table_id = i.table_id AND e.sort_key_index = n.sort_key_index
"""

INSERT_SORTINGS = """
INSERT INTO ducklake_sort_info (sort_id, table_id, begin_snapshot)
SELECT DISTINCT n.sort_id, n.table_id, %(snapshot_id)s::bigint
  FROM unnest(%(table_id)s::bigint[], %(sort_id)s::bigint[]) AS n(table_id, sort_id)
"""

SORTING_STATEMENTS: Mapping[type[SortingRow], Sequence[LiteralString]] = {
    EndedSorting: (UPDATE_SORTINGS,),
    RewordedSortKey: (INSERT_SORT_KEYS, UPDATE_SORTINGS, INSERT_SORTINGS),
}


STATEMENTS: Mapping[type[rows.NewRow], Sequence[LiteralString]] = {
    rows.NewSchema: (INSERT_SCHEMAS,),
    rows.NewNestedSchema: (INSERT_NESTED_SCHEMAS,),
    rows.EndedSchema: (UPDATE_SCHEMAS, UPDATE_TAGS_OF_SCHEMAS),
    rows.NewTag: (INSERT_TAGS,),
    rows.EndedTag: (UPDATE_TAGS,),
    rows.NewTable: (INSERT_TABLES,),
    rows.EndedTableName: (UPDATE_NAMES,),
    rows.DroppedTable: (
        UPDATE_NAMES,
        UPDATE_PARTITIONINGS,
        UPDATE_COLUMNS_OF_TABLES,
        UPDATE_COMMENTS_OF_TABLES,
        UPDATE_TAGS_OF_TABLES,
        UPDATE_FILES_OF_TABLES,
        UPDATE_DELETES_OF_TABLES,
        UPDATE_SORTINGS,
    ),
    rows.RevivedTable: (
        UPDATE_REVIVED_COLUMNS,
        UPDATE_REVIVED_COMMENTS,
        UPDATE_REVIVED_TAGS,
        UPDATE_REVIVED_FILES,
        UPDATE_REVIVED_DELETES,
        INSERT_REVIVED_PARTITIONINGS,
        INSERT_REVIVED_SORTINGS,
        UPDATE_REVIVED_VERSIONS,
    ),
    rows.NewColumn: (INSERT_COLUMNS,),
    rows.EndedColumn: (UPDATE_COLUMNS,),
    rows.NewComment: (INSERT_COMMENTS,),
    rows.EndedComment: (UPDATE_COMMENTS,),
    rows.NewSchemaVersion: (INSERT_SCHEMA_VERSIONS,),
    rows.EndedPartitioning: (UPDATE_PARTITIONINGS,),
    rows.NewPartitionKey: (INSERT_PARTITIONINGS, INSERT_PARTITION_KEYS),
    rows.NewDataFile: (INSERT_DATA_FILES,),
    note_rows.ReturnedFile: (*RETURN_FILES, DELETE_TABLE_COLUMN_STATS),
    rows.EndedDataFile: (UPDATE_DATA_FILES,),
    rows.NewColumnStats: (INSERT_COLUMN_STATS,),
    rows.AddedRows: (INSERT_TABLE_STATS, UPDATE_TABLE_STATS),
    note_rows.ReservedRowIds: (INSERT_TABLE_STATS, UPDATE_NEXT_ROW_ID),
    rows.RemovedTableBounds: (DELETE_TABLE_COLUMN_STATS,),
    rows.NewDeleteFile: (INSERT_DELETE_FILES,),
    rows.EndedDeleteFile: (UPDATE_DELETE_FILES,),
    rows.NewTableNote: (INSERT_TABLE_NOTES,),
    rows.ChangedTableNote: (UPDATE_TABLE_NOTES,),
    note_rows.FormerLocation: (INSERT_FORMER_LOCATIONS,),
    rows.NewSchemaNote: (INSERT_SCHEMA_NOTES,),
    rows.NewSpecNote: (INSERT_SPEC_NOTES,),
    note_rows.NewStatistics: (UPSERT_STATISTICS,),
    note_rows.RemovedStatistics: (DELETE_STATISTICS,),
    note_rows.MarkedSchema: (UPDATE_SCHEMA_NOTES,),
    note_rows.MarkedSpec: (UPDATE_SPEC_NOTES,),
    rows.NewSortOrderNote: (INSERT_SORT_ORDER_NOTES,),
    rows.NewShape: (INSERT_SHAPES,),
    rows.NewSnapshotNote: (INSERT_SNAPSHOT_NOTES,),
    rows.NewFileNote: (INSERT_FILE_NOTES,),
    **BOUNDS_STATEMENTS,
    **REF_STATEMENTS,
    **REGISTERED_STATEMENTS,
    **SORTING_STATEMENTS,
    **VIEW_STATEMENTS,
}
"""The statements of each kind of row, in order; `apply` writes the rows of inlined tables."""
