"""Execution of a commit's steps: each step becomes one lake snapshot.

`catalog` calls it in the commit's transaction, under the lake's lock. It only writes to Postgres; it may create tables of inlined rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import groupby
from typing import LiteralString

import psycopg
from psycopg import sql

from duckicelake.lake.changes import format_changes
from duckicelake.lake.lake_format import LakeFormat
from duckicelake.lake.writing.note_statements import NESTING_STATEMENTS
from duckicelake.lake.writing.rows import EndedInlinedRows, LakeStep, MergedDeletes, NewInlinedTable, NewRow
from duckicelake.lake.writing.statements import STATEMENTS
from duckicelake.lake.writing.transaction import Commit

INSERT_SNAPSHOT = """
WITH made AS (
    INSERT INTO ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
    -- Time travel needs ascending times, and now() is the time at which the transaction began.
    SELECT %(snapshot_id)s::bigint, greatest(clock_timestamp(), max(snapshot_time) + interval '1 microsecond'),
           %(schema_version)s::bigint, %(next_catalog_id)s::bigint, %(next_file_id)s::bigint
      FROM ducklake_snapshot
     WHERE snapshot_id = (SELECT max(snapshot_id) FROM ducklake_snapshot WHERE snapshot_id < %(snapshot_id)s::bigint)
 RETURNING snapshot_id
)
INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made) SELECT snapshot_id, %(changes_made)s::text FROM made
"""

# DuckDB's flush locks these rows before it waits for the lake's lock. Fail first, before Postgres' deadlock detector picks DuckDB.
SET_SHORT_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '500ms'"

UPDATE_INLINED_ROWS = sql.SQL("""
UPDATE {table} SET {end} = %(snapshot_id)s
 WHERE {begin} = %(begin_snapshot)s AND {end} IS NULL
   AND (%(row_ids)s::bigint[] IS NULL OR {row_id} = ANY(%(row_ids)s::bigint[]))
""")


INLINED_TYPES: Mapping[str, LiteralString] = {
    "boolean": "boolean",
    "smallint": "smallint",
    "integer": "integer",
    "bigint": "bigint",
    "real": "real",
    "double precision": "double precision",
    "numeric": "numeric",
    "time": "time",
    "time with time zone": "time with time zone",
    "interval": "interval",
    "uuid": "uuid",
    "bytea": "bytea",
    "varchar": "varchar",
}

DELETE_INLINED_DELETES = sql.SQL("DELETE FROM {} WHERE file_id = %(data_file_id)s")

DELETE_LIVE_DELETE_FILE = """
DELETE FROM ducklake_delete_file WHERE data_file_id = %(data_file_id)s AND end_snapshot IS NULL
"""

INSERT_SCHEDULED = """
INSERT INTO ducklake_files_scheduled_for_deletion (data_file_id, path, path_is_relative, schedule_start)
VALUES (%(data_file_id)s, %(old_path)s, false, clock_timestamp())
"""

INSERT_MERGED_DELETES = """
INSERT INTO ducklake_delete_file (delete_file_id, table_id, begin_snapshot, end_snapshot, data_file_id, path, path_is_relative,
                                  format, delete_count, file_size_bytes, partial_max)
VALUES (%(delete_file_id)s, %(table_id)s, %(begin_snapshot)s, %(snapshot_id)s, %(data_file_id)s, %(path)s, false,
        'parquet', %(delete_count)s, %(file_size_bytes)s, %(partial_max)s)
"""

CREATE_INLINED_TABLE = sql.SQL("CREATE TABLE {table} ({row_id} bigint, {begin} bigint, {end} bigint, {columns})")

INSERT_INLINED_TABLE = """
INSERT INTO ducklake_inlined_data_tables (table_id, table_name, schema_version)
VALUES (%(table_id)s, %(table_name)s, %(schema_version)s)
"""


def write_steps(commit: Commit, steps: Sequence[LakeStep], notes: Sequence[NewRow] = ()) -> int:
    """Write the steps as the next lake snapshots, one each, then the notes, then the audit line; return the last snapshot's id."""
    snapshot_id, schema_version = commit.head.snapshot_id, commit.head.schema_version
    for step in steps:
        snapshot_id += 1
        schema_version += step.changes_catalog
        snapshot = {"snapshot_id": snapshot_id, "schema_version": schema_version}
        _write_all(commit, step.rows, snapshot)
        counters = {"next_catalog_id": step.next_catalog_id, "next_file_id": step.next_file_id}
        commit.conn.execute(INSERT_SNAPSHOT, {**snapshot, **counters, "changes_made": format_changes(step.changes)})
    _write_all(commit, notes, {"snapshot_id": snapshot_id, "schema_version": schema_version})
    if steps or notes:
        commit.note(snapshot_id if steps else None)
    return snapshot_id


def skip_to_snapshot(commit: Commit, snapshot_id: int) -> Commit:
    """Return the commit with its head advanced, so that its first step becomes lake snapshot `snapshot_id`.

    A concurrent DuckDB transaction detects other commits only by a conflict on the id after its own head. If the jump would leave
    that id free, an empty snapshot is written with it.
    """
    head = commit.head
    if snapshot_id > head.snapshot_id + 1:
        made = {"snapshot_id": head.snapshot_id + 1, "schema_version": head.schema_version, "changes_made": None}
        commit.conn.execute(INSERT_SNAPSHOT, {**made, "next_catalog_id": head.next_catalog_id, "next_file_id": head.next_file_id})
    return replace(commit, head=replace(head, snapshot_id=snapshot_id - 1))


def _write_all(commit: Commit, rows: Sequence[NewRow], snapshot: dict[str, int]) -> None:
    for kind, group in groupby(rows, key=type):
        _write(commit, kind, list(group), snapshot)


def _write(commit: Commit, kind: type[NewRow], rows: Sequence[NewRow], snapshot: dict[str, int]) -> None:
    conn, lake_format = commit.conn, commit.head.lake_format
    if kind in STATEMENTS:
        columns = {field.name: [getattr(row, field.name) for row in rows] for field in fields(kind)}
        for statement in (*STATEMENTS[kind], *(NESTING_STATEMENTS.get(kind, ()) if lake_format.nests_schemas else ())):
            conn.execute(statement, snapshot | columns)
        return
    conn.execute(SET_SHORT_LOCK_TIMEOUT)
    for row in rows:
        if isinstance(row, EndedInlinedRows):
            _end_inlined_rows(commit, row, snapshot["snapshot_id"])
        elif isinstance(row, MergedDeletes):
            _merge_deletes(conn, row, snapshot["snapshot_id"])
        elif isinstance(row, NewInlinedTable):
            _create_inlined_table(commit, row, snapshot["schema_version"])


def _merge_deletes(conn: psycopg.Connection, row: MergedDeletes, snapshot_id: int) -> None:
    parameters = {**asdict(row), "snapshot_id": snapshot_id}
    conn.execute(DELETE_INLINED_DELETES.format(sql.Identifier(f"ducklake_inlined_delete_{row.table_id}")), parameters)
    conn.execute(DELETE_LIVE_DELETE_FILE, parameters)
    if row.old_path is not None:
        conn.execute(INSERT_SCHEDULED, parameters)
    conn.execute(INSERT_MERGED_DELETES, parameters)


def _name_inlined_columns(lake_format: LakeFormat) -> dict[str, sql.Identifier]:
    """Return the system columns of a table of inlined rows, by their placeholders."""
    return {key: sql.Identifier(name) for key, name in zip(("row_id", "begin", "end"), lake_format.inlined_columns, strict=True)}


def _create_inlined_table(commit: Commit, row: NewInlinedTable, schema_version: int) -> None:
    name = f"ducklake_inlined_data_{row.table_id}_{schema_version}"
    columns = [sql.SQL("{} {}").format(sql.Identifier(column), format_type(kind)) for column, kind in row.columns]
    system = _name_inlined_columns(commit.head.lake_format)
    commit.conn.execute(CREATE_INLINED_TABLE.format(table=sql.Identifier(name), columns=sql.SQL(", ").join(columns), **system))
    commit.conn.execute(INSERT_INLINED_TABLE, {"table_id": row.table_id, "table_name": name, "schema_version": schema_version})


def format_type(name: str) -> sql.Composed:
    """Return the type of an inlined column as SQL, composed from its name and its numbers."""
    base, _, numbers = name.partition("(")
    words = sql.SQL(INLINED_TYPES[base])
    if not numbers:
        return sql.Composed([words])
    precision, scale = (int(number) for number in numbers.rstrip(")").split(","))
    return sql.SQL("{}({}, {})").format(words, sql.Literal(precision), sql.Literal(scale))


def _end_inlined_rows(commit: Commit, row: EndedInlinedRows, snapshot_id: int) -> None:
    table = sql.Identifier(f"ducklake_inlined_data_{row.table_id}_{row.schema_version}")
    parameters = {
        "snapshot_id": snapshot_id,
        "begin_snapshot": row.begin_snapshot,
        "row_ids": None if row.row_ids is None else list(row.row_ids),
    }
    statement = UPDATE_INLINED_ROWS.format(table=table, **_name_inlined_columns(commit.head.lake_format))
    commit.conn.execute(statement, parameters)
