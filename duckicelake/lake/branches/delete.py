"""Deletion of a branch: what it alone reaches is scheduled on its lake, whose clean-up removes it.

`catalog.repositories` and `commands.branches` call it on a connection that is in no transaction. Nothing is removed from the object store
here.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
from psycopg import sql

from duckicelake.errors import BadRequest
from duckicelake.lake.branches.registry import Branch, drop_deleted, find_branch, has_repository, list_branches, lock_branch
from duckicelake.lake.install import format_search_path

UPDATE_DELETED = sql.SQL("""
UPDATE iceberg_setting SET value = (value::bigint + 1)::text WHERE key = 'branches';
UPDATE iceberg_branch SET is_deleted = true WHERE number = {number};
UPDATE iceberg_setting SET value = (SELECT count(*)::text FROM iceberg_branch WHERE NOT is_deleted) WHERE key = 'open_branches'
""")

# The triggers of the lake take from these what the lake itself or another branch names.
SCHEDULE_OWN = sql.SQL("""
WITH root AS (
    SELECT DISTINCT ON (t.table_id) t.table_id,
           CASE WHEN NOT coalesce(t.path_is_relative, true) THEN ''
                WHEN NOT coalesce(s.path_is_relative, true) THEN coalesce(s.path, '')
                ELSE {data_path} || coalesce(s.path, '') END || coalesce(t.path, '') AS folder
      FROM {branch}.ducklake_table t JOIN {branch}.ducklake_schema s ON s.schema_id = t.schema_id
     ORDER BY t.table_id, t.begin_snapshot DESC
), reached AS (
    SELECT data_file_id AS id, table_id, path, coalesce(path_is_relative, true) AS is_relative FROM {branch}.own_data_file
     UNION ALL
    -- A negative id stands for a file that another member named.
    SELECT CASE WHEN delete_file_id < 0 THEN -1 - delete_file_id ELSE delete_file_id END, table_id, path, coalesce(path_is_relative, true)
      FROM {branch}.own_delete_file
), whole AS (
    SELECT f.id, CASE WHEN f.is_relative THEN r.folder || f.path ELSE f.path END AS path
      FROM reached f LEFT JOIN root r ON r.table_id = f.table_id
     UNION ALL
    SELECT s.data_file_id, CASE WHEN coalesce(s.path_is_relative, true) THEN {data_path} ELSE '' END || s.path
      FROM {branch}.ducklake_files_scheduled_for_deletion s
)
INSERT INTO ducklake_files_scheduled_for_deletion (data_file_id, path, path_is_relative, schedule_start)
SELECT DISTINCT ON (w.path) w.id, w.path, false, now() FROM whole w
 WHERE w.path IS NOT NULL AND NOT EXISTS (SELECT FROM ducklake_files_scheduled_for_deletion s WHERE s.path = w.path)
""")

# What a member kept for others is scheduled again; its triggers keep again what another member names.
RELEASE_KEPT = sql.SQL("""
WITH released AS (
    DELETE FROM ducklake_delete_file WHERE data_file_id = 9223372036854775807 AND delete_file_id < 0 RETURNING delete_file_id, path
)
INSERT INTO ducklake_files_scheduled_for_deletion (data_file_id, path, path_is_relative, schedule_start)
SELECT -1 - r.delete_file_id, r.path, false, now() FROM released r
""")


def delete_branch(conn: psycopg.Connection, lake_schema: str, name: str, *, is_tag: bool = False) -> bool:
    """Delete a branch, or a tag: from now on it is not served, and what it alone reached is scheduled for deletion on the lake.

    Returns False if a session still uses its schema, which is dropped another time.
    Raises: BadRequest: there is no such branch, or no such tag
    """
    conn.execute(format_search_path(lake_schema))
    branch = find_branch(conn, name)
    if branch is None:
        if has_repository(conn):
            drop_deleted(conn, lake_schema)
        raise BadRequest(f"{'Tag' if is_tag else 'Branch'} does not exist: {name!r}.")
    if branch.is_tag != is_tag:
        raise BadRequest(f"{name!r} is a {'tag' if branch.is_tag else 'branch'}; delete it as such.")
    with conn.transaction():
        number = lock_branch(conn, branch)
        if number is None:
            raise BadRequest(f"{'Tag' if is_tag else 'Branch'} does not exist: {name!r}. It has just been deleted.")
        # A merge that went on meanwhile has given the branch another number.
        _schedule(conn, replace(branch, number=number))
    return drop_deleted(conn, lake_schema)


# Branches that another version made are deleted too: these columns are in all of them.
MOVE_LINES = sql.SQL("""
INSERT INTO iceberg_audit (logged_at, request_id, principal, operation, objects, lake_snapshot_id, outcome, reason, branch)
SELECT a.logged_at, a.request_id, a.principal, a.operation, a.objects, a.lake_snapshot_id, a.outcome, a.reason, {name}
  FROM {branch}.iceberg_audit a ORDER BY a.id
""")


def _schedule(conn: psycopg.Connection, branch: Branch) -> None:
    names = {"branch": sql.Identifier(branch.schema_name), "data_path": sql.Literal(branch.data_path)}
    conn.execute(UPDATE_DELETED.format(number=sql.Literal(branch.number)))
    conn.execute(MOVE_LINES.format(**names, name=sql.Literal(branch.name)))
    conn.execute(SCHEDULE_OWN.format(**names))
    conn.execute(RELEASE_KEPT)


COUNT_SCHEDULED = """
SELECT count(*) FROM ducklake_files_scheduled_for_deletion
"""


def collect_garbage(conn: psycopg.Connection, lake_schema: str) -> int:
    """Schedule the files that the lake and its branches kept for members that need them no longer; each member's clean-up removes its own.

    Return how many files are scheduled on all of them. It may be killed at any time: each member is one transaction, and the next run
    does the rest.
    """
    conn.execute(format_search_path(lake_schema))
    if not has_repository(conn):
        return 0
    drop_deleted(conn, lake_schema)
    members = [lake_schema, *(branch.schema_name for branch in list_branches(conn) if not branch.is_tag)]
    count = sum(_release(conn, member) for member in members)
    conn.execute(format_search_path(lake_schema))
    return count


def _release(conn: psycopg.Connection, member: str) -> int:
    with conn.transaction():
        conn.execute(format_search_path(member))
        conn.execute(RELEASE_KEPT)
        row = conn.execute(COUNT_SCHEDULED).fetchone()
        assert row is not None
    return row[0]


LEFT_OVER = timedelta(days=1)


def delete_left_snapshots(conn: psycopg.Connection, lake_schema: str) -> None:
    """Delete the automatic tags that are a day old: servers that were killed left them. One that is in use is made again."""
    conn.execute(format_search_path(lake_schema))
    for branch in list_branches(conn):
        if branch.is_automatic and branch.created_at < datetime.now(UTC) - LEFT_OVER:
            delete_branch(conn, lake_schema, branch.name, is_tag=True)
