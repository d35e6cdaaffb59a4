"""One statement, or several in order, for each kind of row about refs; arrays as in `lake.writing.statements`."""

from collections.abc import Mapping, Sequence
from typing import LiteralString

from duckicelake.lake.refs import rows

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

REF_STATEMENTS: Mapping[type[rows.NewRefRow], Sequence[LiteralString]] = {
    rows.NewRef: (DELETE_REFS, INSERT_REFS),
    rows.EndedRef: (DELETE_REFS,),
    rows.NewKeptSnapshot: (INSERT_KEPT,),
    rows.EndedKeptSnapshot: (DELETE_KEPT, DELETE_KEPT_FILES),
    rows.NewKeptFile: (INSERT_KEPT_FILES,),
    rows.NewMove: (INSERT_MOVES,),
    rows.NewRoot: (INSERT_ROOTS,),
    rows.NewHiddenSnapshot: (INSERT_HIDDEN,),
    # whoever began to remove files before this cannot know what is to be kept now: the setting makes it fail and try again
    rows.NewChange: (LOCK_CHANGES, INSERT_CHANGES, UPDATE_SETTING),
}
