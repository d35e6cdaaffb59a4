"""The notes of a merge: what Iceberg clients said on the branch and DuckLake has no column for. `merge` calls it in its transaction.

So does `rebase`, for a merge of the lake into a branch: there `point.target` is the branch, and `point.source` a copy of its changes.

Tables that the branch made bring all of their notes, at locations of the lake. A table that both have brings schemas, specs and sort orders
that the branch's clients made, if no id means another one on the lake, and the notes of its data files. The ids that clients gave to
snapshots are known from then on.
"""

import psycopg
from psycopg import sql

from duckicelake.errors import MergeConflicts
from duckicelake.lake.branches.merge_rules import REBASE, MergePlan
from duckicelake.lake.branches.registry import MergePoint

ADD_TABLES = sql.SQL("""
INSERT INTO {p}.iceberg_table (table_id, location, format_version, sequence_base, metadata_version, lake_snapshot_id, change_id,
                               token, updated_ms, last_column_id, last_partition_id, is_native, current_snapshot_id, numbered_until)
SELECT n.table_id, w.location, n.format_version, n.sequence_base,
       -- No metadata file is written twice: numbers go on after those of any table that the lake has had at the location.
       greatest(n.metadata_version,
                (SELECT max(o.metadata_version)
                   FROM (SELECT location, metadata_version FROM {p}.iceberg_table
                         UNION ALL SELECT location, metadata_version FROM {p}.iceberg_location) o
                  WHERE regexp_replace(regexp_replace(o.location, '^s3[an]://', 's3://'), '^file:/+', 'file:///')
                      = regexp_replace(regexp_replace(w.location, '^s3[an]://', 's3://'), '^file:/+', 'file:///'))),
       -1, -1, '', n.updated_ms, n.last_column_id, n.last_partition_id, n.is_native, -1, n.numbered_until
  FROM {b}.iceberg_table n
 CROSS JOIN (SELECT CASE WHEN starts_with(iceberg_path, '/') THEN 'file://' ELSE '' END || iceberg_path AS branch_uri,
                    CASE WHEN starts_with(lake_iceberg_path, '/') THEN 'file://' ELSE '' END || lake_iceberg_path AS lake_uri
               FROM {folders} f) k
 CROSS JOIN LATERAL (SELECT CASE WHEN starts_with(n.location, k.branch_uri)
                                 THEN k.lake_uri || substr(n.location, length(k.branch_uri) + 1) ELSE n.location END AS location) w
 WHERE n.table_id = ANY(%(new)s)
    ON CONFLICT DO NOTHING
""")
RAISE_TABLES = sql.SQL("""
UPDATE {p}.iceberg_table t
   SET format_version = greatest(t.format_version, n.format_version), last_column_id = greatest(t.last_column_id, n.last_column_id),
       last_partition_id = greatest(t.last_partition_id, n.last_partition_id),
       numbered_until = coalesce(t.numbered_until, n.numbered_until)
  FROM {b}.iceberg_table n WHERE n.table_id = t.table_id AND t.table_id = ANY(%(kept)s)
   AND (n.format_version > t.format_version OR n.last_column_id > t.last_column_id OR n.last_partition_id > t.last_partition_id)
""")
SELECT_FITTING = sql.SQL("""
SELECT w.id FROM unnest(%(kept)s::bigint[]) AS w(id)
 WHERE NOT EXISTS (SELECT FROM {b}.iceberg_schema m JOIN {p}.iceberg_schema t USING (table_id, schema_id)
                    WHERE m.table_id = w.id AND m.json <> t.json)
   AND NOT EXISTS (SELECT FROM {b}.iceberg_spec m JOIN {p}.iceberg_spec t USING (table_id, spec_id)
                    WHERE m.table_id = w.id AND m.json <> t.json)
   AND NOT EXISTS (SELECT FROM {b}.iceberg_sort_order m JOIN {p}.iceberg_sort_order t USING (table_id, order_id)
                    WHERE m.table_id = w.id AND m.json <> t.json)
""")
ADD_DEFINITIONS = sql.SQL("""
INSERT INTO {p}.iceberg_schema (table_id, schema_id, json, is_removed)
SELECT table_id, schema_id, json, is_removed FROM {b}.iceberg_schema WHERE table_id = ANY(%(fitting)s) ON CONFLICT DO NOTHING
""")
ADD_SPECS = sql.SQL("""
INSERT INTO {p}.iceberg_spec (table_id, spec_id, json, is_removed)
SELECT table_id, spec_id, json, is_removed FROM {b}.iceberg_spec WHERE table_id = ANY(%(fitting)s) ON CONFLICT DO NOTHING
""")
ADD_ORDERS = sql.SQL("""
INSERT INTO {p}.iceberg_sort_order (table_id, order_id, json)
SELECT table_id, order_id, json FROM {b}.iceberg_sort_order WHERE table_id = ANY(%(fitting)s) ON CONFLICT DO NOTHING
""")
# What the branch's clients made current is current from the merge on, unless the lake's clients made another one current since.
ADD_SHAPES = sql.SQL("""
INSERT INTO {p}.iceberg_shape (table_id, lake_snapshot_id, schema_id, spec_id, order_id)
SELECT DISTINCT ON (n.table_id) n.table_id, {m}, n.schema_id, n.spec_id, n.order_id FROM {b}.iceberg_shape n
 WHERE n.table_id = ANY(%(fitting)s) AND n.lake_snapshot_id > {n}
   AND NOT EXISTS (SELECT FROM {p}.iceberg_shape t WHERE t.table_id = n.table_id AND t.lake_snapshot_id > {n})
 ORDER BY n.table_id, n.lake_snapshot_id DESC
""")
ADD_FILES = sql.SQL("""
INSERT INTO {p}.iceberg_file (data_file_id, table_id, spec_id, partition, sort_order_id, split_offsets, sequence_number)
SELECT f.data_file_id, f.table_id, f.spec_id, f.partition, f.sort_order_id, f.split_offsets, f.sequence_number
  FROM {b}.iceberg_file f
  JOIN {p}.ducklake_data_file d ON d.data_file_id = f.data_file_id AND d.begin_snapshot = {m}
  JOIN {b}.iceberg_spec m ON m.table_id = f.table_id AND m.spec_id = f.spec_id
  JOIN {p}.iceberg_spec t ON t.table_id = f.table_id AND t.spec_id = f.spec_id AND t.json = m.json
""")
# A client that sends a commit again has an answer that was lost: the commit is known by the snapshot ids that the client chose. There is no
# lake snapshot of these rows, so none of them is shown. After a rebase, the fork point may be above the branch's own ids: every row that
# the lake lacks is copied.
ADD_CLIENT_IDS = sql.SQL("""
INSERT INTO {p}.iceberg_snapshot (table_id, lake_snapshot_id, commit_snapshot_id, client_snapshot_id, schema_id, summary)
SELECT n.table_id, n.lake_snapshot_id, n.commit_snapshot_id, n.client_snapshot_id, n.schema_id, n.summary FROM {b}.iceberg_snapshot n
 WHERE n.table_id = ANY(%(merged)s)
    ON CONFLICT DO NOTHING
""")


def copy_merged_notes(conn: psycopg.Connection, point: MergePoint, plan: MergePlan, snapshot_id: int) -> None:
    """Copy the notes of the tables that a merge changes.

    Raises: MergeConflicts: an id of a definition that is to be taken means another one on the lake
    """
    names = {**point.names, "m": sql.Literal(snapshot_id), "folders": point.folders}
    kept = sorted((set(plan.files) | plan.reshaped | plan.noted) - plan.new_tables)
    # Clients may have loaded a table from the branch alone, so the lake has no note of it.
    conn.execute(ADD_TABLES.format(**names), {"new": sorted(plan.new_tables | plan.noted)})
    conn.execute(RAISE_TABLES.format(**names), {"kept": kept})
    fitting = [row[0] for row in conn.execute(SELECT_FITTING.format(**names), {"kept": kept}).fetchall()]
    if plan.noted - set(fitting):
        raise MergeConflicts(
            f"Nothing was merged: both sides gave the same ids to different schemas, specs or sort orders of the tables with the "
            f"ids {', '.join(map(str, sorted(plan.noted - set(fitting))))}. {REBASE}."
        )
    for query in (ADD_DEFINITIONS, ADD_SPECS, ADD_ORDERS, ADD_SHAPES):
        conn.execute(query.format(**names), {"fitting": [*fitting, *sorted(plan.new_tables)]})
    conn.execute(ADD_FILES.format(**names))
    conn.execute(ADD_CLIENT_IDS.format(**names), {"merged": [*kept, *sorted(plan.new_tables)]})
