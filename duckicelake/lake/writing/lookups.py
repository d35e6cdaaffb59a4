"""What a commit asks of the lake under its lock, and no load ever asks."""

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
    """Tell whether a schema holds a table, view or macro."""
    row = conn.execute(SELECT_CHILD, {"schema_id": schema_id}).fetchone()
    return bool(row and row[0])


SELECT_TOUCHED = "".join(
    (
        """
SELECT EXISTS (""",
        TOKENS_SINCE.format(since="%(lake_snapshot_id)s::bigint", tokens="tokens"),
        """)
    -- a lake snapshot that says nothing may have changed anything
    OR (SELECT count(*) FROM ducklake_snapshot WHERE snapshot_id > %(lake_snapshot_id)s)
       > (SELECT count(changes_made) FROM ducklake_snapshot_changes WHERE snapshot_id > %(lake_snapshot_id)s)
    OR NOT EXISTS (SELECT FROM ducklake_table
                    WHERE table_id = %(table_id)s AND end_snapshot IS NULL AND begin_snapshot <= %(lake_snapshot_id)s)
    OR (SELECT max(id) FROM iceberg_change WHERE table_id IS NULL) > %(change_id)s
    OR (SELECT max(id) FROM iceberg_change WHERE table_id = %(table_id)s) > %(change_id)s
    -- a Postgres that was restored knows less than it did
    OR (SELECT max(snapshot_id) FROM ducklake_snapshot) < %(lake_snapshot_id)s
    OR (SELECT coalesce(max(id), 0) FROM iceberg_change) < %(change_id)s
""",
    )
)


def is_touched(conn: psycopg.Connection, table_id: int, since: Position) -> bool:
    """Tell whether anything that concerns a table happened after a position, its dropping and renaming included."""
    known = {"table_id": table_id, "tokens": format_tokens(table_id, TABLE_KINDS)}
    position = {"lake_snapshot_id": since.lake_snapshot_id, "change_id": since.change_id}
    row = conn.execute(SELECT_TOUCHED, known | position).fetchone()
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
 -- in any case and namespace: whoever asks knows which table is meant
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
    """A table, where it has been before, the lake snapshots of those of a client's ids that have been committed to it, DATA_PATH."""

    seen: TableAtPosition
    earlier: Sequence[str]
    known: Mapping[int, int]
    data_path: str = ""


def read_replay_check(conn: psycopg.Connection, schema_name: str, table_name: str, ids: Sequence[int]) -> ReplayCheck:
    """Return what tells whether a request has landed."""
    queries = (*POSITION_QUERIES, SELECT_EARLIER_BY_NAME, SELECT_KNOWN_BY_NAME, SELECT_DATA_PATH)
    found = fetch_queries(conn, queries, schema_name=schema_name, table_name=table_name, ids=list(ids))
    seen = to_table_at_position(found)
    if seen.table is None:
        return ReplayCheck(seen, [], {})
    table_id = seen.table.table_id
    earlier = [row["location"] for row in found.found[SELECT_EARLIER_BY_NAME] if row["table_id"] == table_id]
    known = [row for row in found.found[SELECT_KNOWN_BY_NAME] if row["table_id"] == table_id]
    ids_by_client = {row["client_snapshot_id"]: row["lake_snapshot_id"] for row in known}
    return ReplayCheck(seen, earlier, ids_by_client, found.value(SELECT_DATA_PATH) or "")


SELECT_VIEW = """
SELECT EXISTS (SELECT FROM ducklake_view
                WHERE schema_id = %(schema_id)s AND end_snapshot IS NULL
                  AND lower(view_name COLLATE "C") = lower(%(name)s COLLATE "C"))
"""


def has_view(conn: psycopg.Connection, schema_id: int, name: str) -> bool:
    """Tell whether a schema holds a view of that name, in any case."""
    row = conn.execute(SELECT_VIEW, {"schema_id": schema_id, "name": name}).fetchone()
    return bool(row and row[0])


class LiveFile(NamedTuple):
    """A live data file, found by its path as DuckLake has it."""

    data_file_id: int
    path: str
    record_count: int


SELECT_FILES_BY_PATH = """
SELECT data_file_id, path, record_count FROM ducklake_data_file
 WHERE table_id = %(table_id)s AND end_snapshot IS NULL AND path = ANY(%(paths)s::text[])
 ORDER BY data_file_id
"""


def list_files_by_path(conn: psycopg.Connection, table_id: int, paths: Iterable[str]) -> list[LiveFile]:
    """Return the live data files of a table with one of these paths."""
    return [LiveFile._make(row) for row in conn.execute(SELECT_FILES_BY_PATH, {"table_id": table_id, "paths": list(paths)})]


SELECT_IS_NAMED = """
SELECT (SELECT count(*) FROM ducklake_data_file WHERE path = ANY(%(paths)s::text[]))
     + (SELECT count(*) FROM iceberg_kept_file WHERE path = ANY(%(paths)s::text[]))
     -- a row that keeps a file for a ref; EXISTS would have the tables read from end to end
     + (SELECT count(*) FROM ducklake_delete_file WHERE path = ANY(%(paths)s::text[])) > 0
"""


def is_any_named(conn: psycopg.Connection, paths: Iterable[str]) -> bool:
    """Tell whether one of these paths is, or was, that of some table's file, on main or beside it."""
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
    """Return the newest data file, live or not, of each of these paths that a table has had; those that a merge replaced, too."""
    return dict(conn.execute(SELECT_FILE_IDS_BY_PATH, {"table_id": table_id, "paths": list(paths)}).fetchall())


SELECT_MULTI_SNAPSHOT_PATHS = """
SELECT DISTINCT path FROM ducklake_data_file
 WHERE table_id = %(table_id)s AND path = ANY(%(paths)s::text[]) AND partial_max IS NOT NULL
 UNION
SELECT path FROM iceberg_merged_file
 WHERE table_id = %(table_id)s AND path = ANY(%(paths)s::text[]) AND partial_max IS NOT NULL
"""


def list_multi_snapshot_paths(conn: psycopg.Connection, table_id: int, paths: Iterable[str]) -> set[str]:
    """Return those of these paths of a table's files whose rows carry lake snapshots of their own."""
    return {row[0] for row in conn.execute(SELECT_MULTI_SNAPSHOT_PATHS, {"table_id": table_id, "paths": list(paths)})}


SELECT_INLINED_BATCH = sql.SQL("""
SELECT row_id, end_snapshot FROM {table} WHERE begin_snapshot = %(begin_snapshot)s ORDER BY row_id
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
    found = fetch_rows(conn, DeleteFileRow, SELECT_LIVE_DELETE_FILE, table_id=table_id, data_file_id=data_file_id)
    return found[0] if found else None


SELECT_INLINED_VERSIONS = """
SELECT schema_version FROM ducklake_inlined_data_tables WHERE table_id = %(table_id)s ORDER BY schema_version
"""


def list_inlined_versions(conn: psycopg.Connection, table_id: int) -> list[int]:
    """Return the schema versions that a table has inlined rows of."""
    return [row[0] for row in conn.execute(SELECT_INLINED_VERSIONS, {"table_id": table_id})]


@dataclass(frozen=True, slots=True)
class LiveTableRows:
    """A table's notes, its live tags, its columns in all their versions, the live comments on them, and what DuckDB sorts by."""

    notes: TableNotes
    tags: Mapping[str, str]
    columns: Sequence[ColumnRow]
    comments: Mapping[int, str]
    sort_keys: Sequence[str]


def to_live_rows(state: TableState) -> LiveTableRows:
    """Return what a change of a table is compared with, when nothing has concerned the table since it was read."""
    return LiveTableRows(
        notes=state.notes,
        tags={tag.key: tag.value for tag in state.tags if tag.value is not None},
        columns=state.columns,
        comments={tag.column_id: tag.value for tag in state.column_tags if tag.end_snapshot is None and tag.value is not None},
        sort_keys=[row.expression for row in state.sort_keys],
    )
