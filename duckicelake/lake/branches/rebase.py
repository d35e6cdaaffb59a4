"""A rebase of a branch: it shows the newest snapshot of the lake, or of its parent branch, and its own changes as one snapshot on top.

`merge` calls it for a merge of what the branch was made of into the branch, in the transaction that holds the locks of both. What is a
conflict is decided as for a merge the other way. Then the branch's changes are copied into a schema that exists in this transaction alone,
the branch begins again with that newest snapshot (`refork`), and the changes are merged into it from the copy.
"""

from dataclasses import dataclass, replace

import psycopg
from psycopg import sql

from duckicelake.lake.branches.changes import get_table_id
from duckicelake.lake.branches.layout import (
    OF_DELETES,
    PREFIX,
    SELECT_INLINED,
    VIEWED,
    list_copied,
    read_columns,
)
from duckicelake.lake.branches.merge_notes import copy_merged_notes
from duckicelake.lake.branches.merge_rules import MergePlan
from duckicelake.lake.branches.merge_write import Head, MergeWriter, read_head
from duckicelake.lake.branches.registry import MergePoint

NOT_NEEDED = ("snapshot", "snapshot_changes", "files_scheduled_for_deletion", "table_column_stats")
FILE_TABLES = ("data_file", "delete_file")
NOTES = ("table", "schema", "spec", "sort_order", "shape", "file", "snapshot")
VIEW_NOTES = "iceberg_view"

# A table that the branch made keeps its place below the branch's folders.
COPY_FORK = sql.SQL("""
CREATE SCHEMA {s};
CREATE TABLE {s}.branch_fork AS
SELECT data_path AS lake_data_path, data_path, iceberg_path AS lake_iceberg_path, iceberg_path
  FROM {b}.branch_fork
""")
COPY_FILES = sql.SQL("""
CREATE TABLE {s}.{own} AS SELECT * FROM {b}.{own} WHERE ({key} >= {nf} OR begin_snapshot > {n}) AND end_snapshot IS NULL
""")
COPY_FILE_PARTS = sql.SQL("""
CREATE TABLE {s}.{own} AS SELECT f.* FROM {b}.{own} f WHERE f.data_file_id IN (SELECT d.data_file_id FROM {s}.own_data_file d)
""")
COPY_TABLE = sql.SQL("CREATE TABLE {s}.{t} AS SELECT {columns} FROM {b}.{t}{condition}")
OF_TABLES = sql.SQL(" WHERE table_id = ANY({tables}::bigint[])")
COPY_ROWS = sql.SQL("""
CREATE TABLE {s}.{t} (LIKE {b}.{t} INCLUDING ALL);
INSERT INTO {s}.{t} SELECT * FROM {b}.{t} WHERE {begin} > {n}
""")
# DuckLake has a stand-in for a view whose text is not translated: the view itself is in its note alone.
RESTORE_VIEWS = sql.SQL("""
INSERT INTO {p}.iceberg_view ({columns}) SELECT {columns} FROM {b}.iceberg_view n
 WHERE EXISTS (SELECT FROM {p}.ducklake_view v
                WHERE v.view_id = n.view_id AND v.end_snapshot IS NULL
                  AND v.sql = n.sql AND coalesce(v.column_aliases, '') = n.column_aliases)
    ON CONFLICT DO NOTHING
""")


@dataclass(frozen=True, slots=True)
class ChangesCopy:
    """A copy of a branch's changes, in a schema that is dropped in the same transaction. `head`: the branch's newest snapshot."""

    point: MergePoint
    head: Head


def copy_changes(conn: psycopg.Connection, point: MergePoint, plan: MergePlan) -> ChangesCopy:
    """Copy what a merge of the branch reads of it. `drop_copy` removes the copy."""
    copied_point = replace(point, target=point.source, source=f"rebase@{conn.info.backend_pid}", has_parent_branch=False)
    copy = ChangesCopy(copied_point, read_head(conn, point.source))
    names = {**point.names, "s": sql.Identifier(copy.point.source)}
    conn.execute(COPY_FORK.format(**names))
    for table in VIEWED:
        own = sql.Identifier("own_" + table.name)
        if table.name in FILE_TABLES:
            conn.execute(COPY_FILES.format(**names, own=own, key=sql.Identifier(table.key[0])))
        elif table.limit == "next_file_id":
            conn.execute(COPY_FILE_PARTS.format(**names, own=own))
    tables = sorted({*plan.files, *plan.new_tables, *plan.reshaped, *plan.noted, *(int(v[0]) for v in plan.versions["table"].added)})
    copied = [PREFIX + table.name for table in VIEWED if table.limit != "next_file_id"]
    copied += [PREFIX + name for name in list_copied(point.lake_format) if name not in NOT_NEEDED]
    for name in (*copied, *(f"iceberg_{note}" for note in NOTES), VIEW_NOTES):
        _copy_table(conn, names, point.source, name, tables)
    for name, has_deletes in conn.execute(SELECT_INLINED, {"schema": point.source}).fetchall():
        if get_table_id(name) in tables:
            conn.execute(COPY_ROWS.format(**{**names, **(OF_DELETES if has_deletes else {})}, t=sql.Identifier(name)))
    return copy


def _copy_table(conn: psycopg.Connection, names: dict[str, sql.Composable], branch: str, name: str, tables: list[int]) -> None:
    columns = read_columns(conn, branch, name)
    # Columns and their comments are looked up by the versions that are merged, which may be of any table.
    is_filtered = name == PREFIX + "schema_versions" or (name.startswith("iceberg_") and name != VIEW_NOTES)
    condition = OF_TABLES.format(tables=sql.Literal(tables)) if is_filtered else sql.SQL("")
    listed = sql.SQL(", ").join(map(sql.Identifier, columns))
    conn.execute(COPY_TABLE.format(**names, t=sql.Identifier(name), columns=listed, condition=condition))


def merge_copy(conn: psycopg.Connection, copy: ChangesCopy, plan: MergePlan) -> tuple[Head, Head]:
    """Write the changes into the branch, but for the lake snapshot itself; return the branch's newest snapshot and the one to write."""
    before = read_head(conn, copy.point.target)
    writer = MergeWriter(conn, copy.point, plan, before, copy.head)
    writer.write()
    copy_merged_notes(conn, copy.point, plan, writer.snapshot_id)
    next_catalog_id, next_file_id = before.next_catalog_id, before.next_file_id + 1
    return before, Head(writer.snapshot_id, writer.schema_version, next_catalog_id, next_file_id)


def restore_views(conn: psycopg.Connection, copy: ChangesCopy) -> None:
    """Give the branch the notes of its views back, for those that have the same text as before."""
    columns = sql.SQL(", ").join(map(sql.Identifier, read_columns(conn, copy.point.source, VIEW_NOTES)))
    conn.execute(RESTORE_VIEWS.format(**copy.point.names, columns=columns))


def drop_copy(conn: psycopg.Connection, copy: ChangesCopy) -> None:
    """Remove the copy of the changes."""
    conn.execute("SET LOCAL client_min_messages = error")
    conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(copy.point.source)))
