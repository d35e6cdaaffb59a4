"""Deletion of a branch: what it alone reaches is scheduled on its lake, whose clean-up removes it.

`commands.branches` calls it on a connection that is in no transaction, `catalog.repositories` in the one that claims the key of a request.
The branch's audit lines move to the lake, and its schema is dropped afterwards, when no session uses it: the rights of read-only accounts
and their sessions end. Nothing is removed from the object store here. Servers also note here, on worker threads, which automatic tags
they show.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import psycopg
from psycopg import sql

from duckicelake.errors import BadRequest
from duckicelake.lake.branches.registry import Branch, drop_deleted, find_branch, find_branch_in, has_repository, list_branches, lock_branch
from duckicelake.lake.branches.spare import remove_spare
from duckicelake.lake.install import format_search_path
from duckicelake.lake.readers import close_schema

UPDATE_DELETED = sql.SQL("""
UPDATE iceberg_setting SET value = (value::bigint + 1)::text WHERE key = 'branches';
-- Its name is free at once; no other branch or tag may have one that begins so.
UPDATE iceberg_branch SET is_deleted = true, name = '@' || number WHERE number = {number};
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
        number = delete_found(conn, branch)
    return number not in drop_deleted(conn, lake_schema, number)


def delete_found(conn: psycopg.Connection, branch: Branch) -> int:
    """Delete a branch or tag in the caller's transaction and return its number, by which `drop_deleted` drops its schema afterwards.

    The search path is the lake's. Raises: BadRequest: it has just been deleted or renamed
    """
    number, found = lock_branch(conn, branch), find_branch(conn, branch.name)
    if number is None or found is None or found.schema_name != branch.schema_name:
        raise BadRequest(f"{'Tag' if branch.is_tag else 'Branch'} does not exist: {branch.name!r}. It has just been deleted or renamed.")
    # A merge that went on meanwhile has given the branch another number.
    _schedule(conn, replace(branch, number=number))
    return number


# Branches that another version made are deleted too: these columns are in all of them.
MOVE_LINES = sql.SQL("""
INSERT INTO iceberg_audit (logged_at, request_id, principal, operation, objects, lake_snapshot_id, outcome, reason, branch)
SELECT a.logged_at, a.request_id, a.principal, a.operation, a.objects, a.lake_snapshot_id, a.outcome, a.reason, {name}
  FROM {branch}.iceberg_audit a ORDER BY a.id
""")


def _schedule(conn: psycopg.Connection, branch: Branch) -> None:
    names = {"branch": sql.Identifier(branch.schema_name), "data_path": sql.Literal(branch.data_path)}
    conn.execute(UPDATE_DELETED.format(number=sql.Literal(branch.number)))
    close_schema(conn, branch.schema_name)
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
    # A server that was killed has left it.
    remove_spare(conn, lake_schema, LEFT_OVER.total_seconds())
    branches = [branch.schema_name for branch in list_branches(conn) if not branch.is_tag]
    count = _release(conn, lake_schema) + sum(_release_branch(conn, lake_schema, branch) for branch in branches)
    conn.execute(format_search_path(lake_schema))
    return count


def _release_branch(conn: psycopg.Connection, lake_schema: str, member: str) -> int:
    """Do it for a branch; another server may have deleted it, and dropped its schema, since the branches were listed."""
    try:
        return _release(conn, member)
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
        conn.execute(format_search_path(lake_schema))
        if find_branch_in(conn, member) is not None:
            raise
        return 0


def _release(conn: psycopg.Connection, member: str) -> int:
    with conn.transaction():
        conn.execute(format_search_path(member))
        conn.execute(RELEASE_KEPT)
        row = conn.execute(COUNT_SCHEDULED).fetchone()
        assert row is not None
    return row[0]


# The row of the tag is locked: a server that closes it decides either before this row is there, or with it.
UPSERT_READER = sql.SQL("""
INSERT INTO iceberg_branch_reader AS r (number, server)
SELECT b.number, %(server)s FROM iceberg_branch b WHERE b.number = %(number)s AND NOT b.is_deleted FOR SHARE
    ON CONFLICT (number, server) DO UPDATE SET seen_at = clock_timestamp()
""")
DELETE_READERS = sql.SQL("""
DELETE FROM iceberg_branch_reader r
 WHERE (r.number = %(number)s AND r.server = %(server)s) OR r.seen_at < clock_timestamp() - interval '10 minutes'
""")
SELECT_HAS_READERS = sql.SQL("SELECT EXISTS (SELECT FROM iceberg_branch_reader WHERE number = %(number)s)")
SELECT_NOTES_READERS = """
SELECT to_regclass('iceberg_branch_reader') IS NOT NULL
"""


def _notes_readers(conn: psycopg.Connection, lake_schema: str) -> bool:
    """Return True if the lake has a table of readers: one that an older version prepared gets it with its next branch or tag."""
    conn.execute(format_search_path(lake_schema))
    row = conn.execute(SELECT_NOTES_READERS).fetchone()
    return bool(row and row[0])


def note_reader(conn: psycopg.Connection, lake_schema: str, tag: Branch, server: str) -> bool:
    """Note that a server shows an automatic tag, which it does every minute. Return False if the tag has just been deleted."""
    if not _notes_readers(conn, lake_schema):
        return True
    return conn.execute(UPSERT_READER, {"number": tag.number, "server": server}).rowcount == 1


def release_tag(conn: psycopg.Connection, lake_schema: str, tag: Branch, server: str) -> bool:
    """Delete an automatic tag that a server shows no longer. Return False if another server shows it, and it stays."""
    parameters = {"number": tag.number, "server": server}
    notes_readers = _notes_readers(conn, lake_schema)
    with conn.transaction():
        if lock_branch(conn, tag) != tag.number:
            return True
        if notes_readers:
            conn.execute(DELETE_READERS, parameters)
            row = conn.execute(SELECT_HAS_READERS, parameters).fetchone()
            if row is not None and row[0]:
                return False
        _schedule(conn, tag)
    drop_deleted(conn, lake_schema, tag.number)
    return True


LEFT_OVER = timedelta(days=1)


def delete_left_snapshots(conn: psycopg.Connection, lake_schema: str) -> None:
    """Delete the automatic tags that are a day old and that no server shows: servers that were killed left them."""
    conn.execute(format_search_path(lake_schema))
    for branch in list_branches(conn):
        if branch.is_automatic and branch.created_at < datetime.now(UTC) - LEFT_OVER:
            release_tag(conn, lake_schema, branch, "")
