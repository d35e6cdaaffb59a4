"""Queries for commits. `catalog` runs most of them in the commit's transaction, under the lake's lock; all only read.

`catalog.commits.prepare` and `catalog.incoming` run some in a read transaction before the lock, and so does server-side scan planning, to
find the lake snapshot of a client's snapshot id. `read_replay_check` also runs in no transaction, and is one statement for that reason.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import psycopg
from psycopg import sql

from duckicelake.lake.changes import TABLE_KINDS, TOKENS_SINCE, format_tokens
from duckicelake.lake.read import POSITION_QUERIES, SELECT_DATA_PATH, TableAtPosition, fetch_queries, fetch_rows, to_table_at_position
from duckicelake.lake.rows import ColumnRow, DeleteFileRow, Position, TableNotes, TableState

SELECT_CHILD = """
SELECT EXISTS (SELECT FROM ducklake_table WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL)
    OR EXISTS (SELECT FROM ducklake_view WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL)
    OR EXISTS (SELECT FROM ducklake_macro WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL)
"""


def has_children(conn: psycopg.Connection, schema_id: int) -> bool:
    """Return True if a schema contains a table, view or macro."""
    row = conn.execute(SELECT_CHILD, {"schema_id": schema_id}).fetchone()
    return bool(row and row[0])


SELECT_TOUCHED = "".join(
    (
        """
SELECT EXISTS (""",
        TOKENS_SINCE.format(since="%(lake_snapshot_id)s::bigint", tokens="tokens"),
        """)
    -- A lake snapshot without a row in snapshot_changes may have changed anything.
    OR (SELECT count(*) FROM ducklake_snapshot WHERE snapshot_id > %(lake_snapshot_id)s)
       > (SELECT count(changes_made) FROM ducklake_snapshot_changes WHERE snapshot_id > %(lake_snapshot_id)s)
    OR NOT EXISTS (SELECT FROM ducklake_table
                    WHERE table_id = %(table_id)s AND end_snapshot IS NULL AND begin_snapshot <= %(lake_snapshot_id)s)
    OR (SELECT max(id) FROM iceberg_change WHERE table_id IS NULL) > %(change_id)s
    OR (SELECT max(id) FROM iceberg_change WHERE table_id = %(table_id)s) > %(change_id)s
    -- A restored Postgres may be behind the position.
    OR (SELECT max(snapshot_id) FROM ducklake_snapshot) < %(lake_snapshot_id)s
    OR (SELECT coalesce(max(id), 0) FROM iceberg_change) < %(change_id)s
""",
    )
)


def is_touched(conn: psycopg.Connection, table_id: int, since: Position) -> bool:
    """Return True if anything that concerns a table happened after a position, including its drop or rename."""
    parameters = {"table_id": table_id, "tokens": format_tokens(table_id, TABLE_KINDS)}
    position = {"lake_snapshot_id": since.lake_snapshot_id, "change_id": since.change_id}
    row = conn.execute(SELECT_TOUCHED, parameters | position).fetchone()
    return bool(row and row[0])


SELECT_KNOWN_SNAPSHOTS = """
SELECT client_snapshot_id, lake_snapshot_id FROM iceberg_snapshot
 WHERE table_id = %(table_id)s AND client_snapshot_id = ANY(%(ids)s::bigint[])
"""


def read_client_snapshots(conn: psycopg.Connection, table_id: int, ids: Iterable[int]) -> dict[int, int]:
    """Return the lake snapshots of those of a client's snapshot ids that have been committed."""
    return dict(conn.execute(SELECT_KNOWN_SNAPSHOTS, {"table_id": table_id, "ids": list(ids)}).fetchall())


SELECT_EARLIER_BY_NAME = """
SELECT l.table_id, l.location
  FROM iceberg_location l JOIN ducklake_table t ON t.table_id = l.table_id AND t.end_snapshot IS NULL
 -- The name matches in any case and namespace; the caller picks the rows of its table.
 WHERE lower(t.table_name COLLATE "C") = lower(%(table_name)s COLLATE "C")
 ORDER BY l.metadata_version
"""

SELECT_KNOWN_BY_NAME = """
SELECT n.table_id, n.client_snapshot_id, n.lake_snapshot_id
  FROM iceberg_snapshot n JOIN ducklake_table t ON t.table_id = n.table_id AND t.end_snapshot IS NULL
 WHERE lower(t.table_name COLLATE "C") = lower(%(table_name)s COLLATE "C") AND n.client_snapshot_id = ANY(%(ids)s::bigint[])
"""


@dataclass(frozen=True, slots=True)
class ReplayCheck:
    """The values that show if a request has landed: the table, its earlier locations, the committed ones of the client's ids, DATA_PATH."""

    current: TableAtPosition
    earlier: Sequence[str]
    committed_ids: Mapping[int, int]
    data_path: str = ""


def read_replay_check(conn: psycopg.Connection, schema_name: str, table_name: str, ids: Sequence[int]) -> ReplayCheck:
    """Return the values that show if a request has landed, in one round trip."""
    queries = (*POSITION_QUERIES, SELECT_EARLIER_BY_NAME, SELECT_KNOWN_BY_NAME, SELECT_DATA_PATH)
    results = fetch_queries(conn, queries, schema_name=schema_name, table_name=table_name, ids=list(ids))
    current = to_table_at_position(results)
    if current.table is None:
        return ReplayCheck(current, [], {})
    table_id = current.table.table_id
    earlier = [row["location"] for row in results.rows_by_query[SELECT_EARLIER_BY_NAME] if row["table_id"] == table_id]
    landed = [row for row in results.rows_by_query[SELECT_KNOWN_BY_NAME] if row["table_id"] == table_id]
    ids_by_client = {row["client_snapshot_id"]: row["lake_snapshot_id"] for row in landed}
    return ReplayCheck(current, earlier, ids_by_client, results.value(SELECT_DATA_PATH) or "")


SELECT_VIEW = """
SELECT EXISTS (SELECT FROM ducklake_view
                WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL
                  AND lower(view_name COLLATE "C") = lower(%(name)s COLLATE "C"))
"""


def has_view(conn: psycopg.Connection, schema_id: int, name: str) -> bool:
    """Return True if a schema contains a view of that name, in any case."""
    row = conn.execute(SELECT_VIEW, {"schema_id": schema_id, "name": name}).fetchone()
    return bool(row and row[0])


class LiveDataFile(NamedTuple):
    """A live data file with its path in DuckLake."""

    data_file_id: int
    path: str
    record_count: int


SELECT_FILES_BY_PATH = """
SELECT data_file_id, path, record_count FROM ducklake_data_file
 WHERE table_id = %(table_id)s AND end_snapshot IS NULL AND path = ANY(%(paths)s::text[])
 ORDER BY data_file_id
"""


def list_files_by_path(conn: psycopg.Connection, table_id: int, paths: Iterable[str]) -> list[LiveDataFile]:
    """Return the live data files of a table with one of these paths."""
    return [LiveDataFile._make(row) for row in conn.execute(SELECT_FILES_BY_PATH, {"table_id": table_id, "paths": list(paths)})]


class FileOrigin(NamedTuple):
    """The writer of a live data file. `is_noted`: DuckLake did not write it under this id. `is_own`: a client's snapshot first added it.

    A file is noted and not a client's own if it came back: by a ref that main was set to, or after DuckLake had forgotten it.
    """

    begin_snapshot: int
    is_noted: bool
    is_own: bool


SELECT_ORIGINS = """
SELECT DISTINCT f.begin_snapshot,
       -- Every file that a client committed has a note.
       EXISTS (SELECT FROM iceberg_file n WHERE n.data_file_id = f.data_file_id) AS is_noted,
       EXISTS (SELECT FROM iceberg_file n WHERE n.data_file_id = f.data_file_id)
       AND NOT starts_with(f.path, %(folder)s::text)
       AND EXISTS (SELECT FROM iceberg_snapshot n WHERE n.table_id = f.table_id AND n.lake_snapshot_id = f.begin_snapshot)
       AND NOT EXISTS (SELECT FROM iceberg_move n WHERE n.table_id = f.table_id AND n.lake_snapshot_id = f.begin_snapshot)
       -- A count instead of EXISTS, which would scan the table.
       AND (SELECT count(*) FROM ducklake_data_file o WHERE o.table_id = f.table_id AND o.path = f.path) = 1 AS is_own
  FROM ducklake_data_file f
 WHERE f.table_id = %(table_id)s AND f.end_snapshot IS NULL AND f.path = ANY(%(paths)s::text[])
"""


def list_file_origins(conn: psycopg.Connection, table_id: int, folder: str, paths: Iterable[str]) -> list[FileOrigin]:
    """Return the origins of the live data files of a table with these paths; `folder` is the one in which DuckLake writes its files."""
    parameters = {"table_id": table_id, "folder": folder, "paths": list(paths)}
    return [FileOrigin._make(row) for row in conn.execute(SELECT_ORIGINS, parameters)]


SELECT_IS_NAMED = """
SELECT (SELECT count(*) FROM ducklake_data_file WHERE path = ANY(%(paths)s::text[]))
     + (SELECT count(*) FROM iceberg_kept_file WHERE path = ANY(%(paths)s::text[]))
     -- These rows retain files for refs. Counts instead of EXISTS, which would scan the tables.
     + (SELECT count(*) FROM ducklake_delete_file WHERE path = ANY(%(paths)s::text[])) > 0
"""


def is_any_named(conn: psycopg.Connection, paths: Iterable[str]) -> bool:
    """Return True if one of these paths is or was the path of a table's file, on main or off main."""
    row = conn.execute(SELECT_IS_NAMED, {"paths": list(paths)}).fetchone()
    return bool(row and row[0])


SELECT_FILE_IDS_BY_PATH = """
SELECT DISTINCT ON (path) path, data_file_id
  FROM (SELECT path, data_file_id FROM ducklake_data_file WHERE table_id = %(table_id)s AND path = ANY(%(paths)s::text[])
         UNION ALL
        SELECT path, data_file_id FROM iceberg_merged_file WHERE table_id = %(table_id)s AND path = ANY(%(paths)s::text[])) f
 ORDER BY path, data_file_id DESC
"""


def read_file_ids_by_path(conn: psycopg.Connection, table_id: int, paths: Iterable[str]) -> dict[str, int]:
    """Return the newest data file, live or not, of each of these paths of a table; files that a merge replaced are included."""
    return dict(conn.execute(SELECT_FILE_IDS_BY_PATH, {"table_id": table_id, "paths": list(paths)}).fetchall())


SELECT_MULTI_SNAPSHOT_PATHS = """
SELECT DISTINCT path FROM ducklake_data_file
 WHERE table_id = %(table_id)s AND path = ANY(%(paths)s::text[]) AND partial_max IS NOT NULL
 UNION
SELECT path FROM iceberg_merged_file
 WHERE table_id = %(table_id)s AND path = ANY(%(paths)s::text[]) AND partial_max IS NOT NULL
"""


def list_multi_snapshot_paths(conn: psycopg.Connection, table_id: int, paths: Iterable[str]) -> set[str]:
    """Return those of a table's file paths whose rows embed their own lake snapshots."""
    return {row[0] for row in conn.execute(SELECT_MULTI_SNAPSHOT_PATHS, {"table_id": table_id, "paths": list(paths)})}


SELECT_INLINED_BATCH = sql.SQL("""
SELECT i._ducklake_internal_row_id, i."_DUCKLAKE_INTERNAL_SNAPSHOT_ID"
  -- These names are reserved in every version of DuckLake, so no user's column has them.
  FROM {table} AS i(_ducklake_internal_row_id, _ducklake_internal_snapshot_id, "_DUCKLAKE_INTERNAL_SNAPSHOT_ID")
 WHERE i._ducklake_internal_snapshot_id = %(begin_snapshot)s ORDER BY i._ducklake_internal_row_id
""")


def read_inlined_batch(conn: psycopg.Connection, table_id: int, version: int, begin_snapshot: int) -> list[tuple[int, int | None]]:
    """Return id and end of the rows that one lake snapshot inlined, in the order of the file derived from them."""
    table = sql.Identifier(f"ducklake_inlined_data_{table_id}_{version}")
    return conn.execute(SELECT_INLINED_BATCH.format(table=table), {"begin_snapshot": begin_snapshot}).fetchall()


SELECT_LIVE_DELETE_FILE = """
SELECT delete_file_id, data_file_id, begin_snapshot, end_snapshot, path, coalesce(path_is_relative, true) AS path_is_relative,
       format, delete_count, file_size_bytes
  FROM ducklake_delete_file
 WHERE table_id = %(table_id)s AND data_file_id = %(data_file_id)s AND end_snapshot IS NULL
"""


def find_delete_file(conn: psycopg.Connection, table_id: int, data_file_id: int) -> DeleteFileRow | None:
    """Return the live delete file of a data file, or None."""
    rows = fetch_rows(conn, DeleteFileRow, SELECT_LIVE_DELETE_FILE, table_id=table_id, data_file_id=data_file_id)
    return rows[0] if rows else None


SELECT_INLINED_VERSIONS = """
SELECT schema_version FROM ducklake_inlined_data_tables WHERE table_id = %(table_id)s ORDER BY schema_version
"""


def list_inlined_versions(conn: psycopg.Connection, table_id: int) -> list[int]:
    """Return the schema versions of which a table has inlined rows."""
    return [row[0] for row in conn.execute(SELECT_INLINED_VERSIONS, {"table_id": table_id})]


@dataclass(frozen=True, slots=True)
class LiveTableRows:
    """The current rows of a table that a commit changes: notes, live tags, all versions of columns, live comments, DuckDB's sort keys."""

    notes: TableNotes
    tags: Mapping[str, str]
    columns: Sequence[ColumnRow]
    comments: Mapping[int, str]
    sort_keys: Sequence[str]


def to_live_rows(state: TableState) -> LiveTableRows:
    """Return the current rows of a table from a state that is known to be up to date."""
    return LiveTableRows(
        notes=state.notes,
        tags={tag.key: tag.value for tag in state.tags if tag.value is not None},
        columns=state.columns,
        comments={tag.column_id: tag.value for tag in state.column_tags if tag.end_snapshot is None and tag.value is not None},
        sort_keys=[row.expression for row in state.sort_keys],
    )
