"""One statement for each kind of row of views, taking all rows of that kind at once as arrays."""

from collections.abc import Mapping, Sequence
from typing import LiteralString

from duckicelake.lake.views import rows

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

VIEW_STATEMENTS: Mapping[type[rows.ViewRow], Sequence[LiteralString]] = {
    rows.NewView: (INSERT_VIEWS,),
    rows.EndedView: (UPDATE_VIEWS,),
    rows.DroppedView: (UPDATE_VIEWS, UPDATE_TAGS_OF_VIEWS, DELETE_VIEW_NOTES),
    rows.ViewNote: (UPSERT_VIEW_NOTES,),
}
"""What each kind of row runs, in order."""
