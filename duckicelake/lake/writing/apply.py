"""Steps into rows: each step of a commit becomes one lake snapshot."""

from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby

import psycopg
from psycopg import sql

from duckicelake.lake.changes import format_changes
from duckicelake.lake.new_rows import EndedInlinedRows, LakeStep, NewRow
from duckicelake.lake.writing.statements import STATEMENTS
from duckicelake.lake.writing.transaction import Commit

INSERT_SNAPSHOT = """
INSERT INTO ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
-- time travel by time wants it ascending, and a transaction's own time is that of its begin
SELECT %(snapshot_id)s, greatest(clock_timestamp(), max(snapshot_time) + interval '1 microsecond'), %(schema_version)s,
       %(next_catalog_id)s, %(next_file_id)s
  FROM ducklake_snapshot WHERE snapshot_id = %(snapshot_id)s - 1
"""

INSERT_CHANGES = """
INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made) VALUES (%(snapshot_id)s, %(changes_made)s)
"""

UPDATE_INLINED_ROWS = sql.SQL("""
UPDATE {table} SET end_snapshot = %(snapshot_id)s
 WHERE begin_snapshot = %(begin_snapshot)s AND row_id = ANY(%(row_ids)s::bigint[]) AND end_snapshot IS NULL
""")


def apply(commit: Commit, steps: Sequence[LakeStep]) -> int:
    """Write the steps as the next lake snapshots, one each, and return the id of the last."""
    snapshot_id, schema_version = commit.head.snapshot_id, commit.head.schema_version
    for step in steps:
        snapshot_id += 1
        schema_version += step.changes_catalog
        made = {"snapshot_id": snapshot_id, "schema_version": schema_version}
        for kind, group in groupby(step.rows, key=type):
            _write(commit.conn, kind, list(group), made)
        counters = {"next_catalog_id": step.next_catalog_id, "next_file_id": step.next_file_id}
        commit.conn.execute(INSERT_SNAPSHOT, made | counters)
        commit.conn.execute(INSERT_CHANGES, {"snapshot_id": snapshot_id, "changes_made": format_changes(step.changes)})
    return snapshot_id


def _write(conn: psycopg.Connection, kind: type[NewRow], rows: Sequence[NewRow], made: dict[str, int]) -> None:
    if issubclass(kind, EndedInlinedRows):
        for row in rows:
            assert isinstance(row, EndedInlinedRows)
            _end_inlined_rows(conn, row, made["snapshot_id"])
        return
    columns = {field.name: [getattr(row, field.name) for row in rows] for field in fields(kind)}
    for statement in STATEMENTS[kind]:
        conn.execute(statement, made | columns)


def _end_inlined_rows(conn: psycopg.Connection, row: EndedInlinedRows, snapshot_id: int) -> None:
    table = sql.Identifier(f"ducklake_inlined_data_{row.table_id}_{row.schema_version}")
    known = {"snapshot_id": snapshot_id, "begin_snapshot": row.begin_snapshot, "row_ids": list(row.row_ids)}
    conn.execute(UPDATE_INLINED_ROWS.format(table=table), known)
