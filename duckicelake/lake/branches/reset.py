"""Reset of a branch: it forgets what it changed, and goes on from the lake's newest snapshot under its name.

`commands.branches` calls `reset_branch` on a connection that is in no transaction, `catalog.repositories` calls `reset_locked` in a
transaction. All of it is one transaction, under the locks of both.
"""

import time

import psycopg

from duckicelake.errors import BadRequest, LakeBusy, NoSuchRef, ServiceUnavailable, Unsupported
from duckicelake.lake.branches.changes import read_changes
from duckicelake.lake.branches.merge import LOCK_BOTH, list_branch_tokens, list_main_tokens
from duckicelake.lake.branches.merge_write import read_head
from duckicelake.lake.branches.refork import Restart, refork
from duckicelake.lake.branches.registry import Branch, check_installed, find_branch_in, get_branch, list_children, lock_branch, read_point
from duckicelake.lake.install import LOCK_PAUSE_S, LOCK_TRIES, NEVER_IDLE, format_search_path


def reset_branch(conn: psycopg.Connection, lake_schema: str, name: str, tries: int = LOCK_TRIES) -> Branch:
    """Let a branch begin again with the lake's newest snapshot, and return it. What it alone reached is scheduled for deletion.

    The branch is the one that has the name when this function is called, also if it is renamed while the reset waits.

    Raises: NoSuchRef: there is no such branch. BadRequest: it is a tag
            Unsupported: branches or tags were made of it, or another version made it
            ServiceUnavailable: the lake or the branch is never idle
    """
    conn.execute(format_search_path(lake_schema))
    schema_name = get_branch(conn, name).schema_name
    for _ in range(tries):
        try:
            with conn.transaction():
                return reset_locked(conn, lake_schema, schema_name)
        except LakeBusy:
            time.sleep(LOCK_PAUSE_S)
    raise ServiceUnavailable(NEVER_IDLE)


def reset_locked(conn: psycopg.Connection, lake_schema: str, schema_name: str) -> Branch:
    """Reset the branch in that metadata schema in the caller's transaction, which commits, and return it.

    Raises: what `reset_branch` raises; LakeBusy: others hold a lock that is needed
    """
    try:
        # Shorter than Postgres' deadlock timeout: in a circle of waiting sessions this one gives way.
        conn.execute("SET LOCAL lock_timeout = '500ms'")
        _reset(conn, lake_schema, _get_branch_in(conn, schema_name))
        return _get_branch_in(conn, schema_name)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.UndefinedTable) as error:
        # DuckDB drops empty tables of inlined rows after a flush, without a snapshot.
        raise LakeBusy("The lake or the branch is busy with other commits; nothing was reset. Try again.") from error


def _get_branch_in(conn: psycopg.Connection, schema_name: str) -> Branch:
    branch = find_branch_in(conn, schema_name)
    if branch is None:
        raise NoSuchRef(f"The branch in the schema {schema_name!r} has just been deleted.")
    return branch


def _reset(conn: psycopg.Connection, lake_schema: str, branch: Branch) -> None:
    check_installed(conn, branch)
    point = read_point(conn, lake_schema, branch)
    conn.execute(LOCK_BOTH.format(**point.names))
    if lock_branch(conn, branch) != branch.number:
        raise BadRequest(f"The branch {branch.name!r} has just been deleted, merged or reset. Try again.")
    children = list_children(conn, branch)
    if children:
        raise Unsupported(
            f"Branches and tags were made of {branch.name!r}, which read files that it would forget: {', '.join(children)}. "
            "Delete them first."
        )
    changes = read_changes(conn, point)
    head, lake = read_head(conn, point.source), read_head(conn, point.target)
    refork(conn, point, branch, Restart(head, lake, [*list_main_tokens(changes), *list_branch_tokens(changes)]))
