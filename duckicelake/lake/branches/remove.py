"""The removal of what the first branch added to a lake, when the lake is to be DuckDB's alone again.

`commands.prepare` calls it for `duckicelake init --remove`, on a connection that is in no transaction.
"""

import time

import psycopg

from duckicelake.errors import BadRequest, ServiceUnavailable
from duckicelake.lake.branches.create import read_repository_script
from duckicelake.lake.branches.registry import drop_deleted, has_repository, list_branches
from duckicelake.lake.install import LOCK_PAUSE_S, LOCK_TRIES, NEVER_IDLE, drop_objects, format_search_path, lock_tables


def remove_repository(conn: psycopg.Connection, lake_schema: str, tries: int = LOCK_TRIES) -> None:
    """Remove the tables, functions and triggers for branches from a lake that has none.

    Raises: BadRequest: it has branches, which are named; or a session uses a deleted one. ServiceUnavailable: the lake is never idle
    """
    conn.execute(format_search_path(lake_schema))
    if not has_repository(conn):
        return
    names = [branch.name for branch in list_branches(conn)]
    if names:
        raise BadRequest(f"The lake has branches, which read its tables: {', '.join(names)}. `duckicelake branch delete` deletes them.")
    if not drop_deleted(conn, lake_schema):
        raise BadRequest("A session still uses a deleted branch of the lake; end it, and try again.")
    for _ in range(tries):
        try:
            with conn.transaction():
                lock_tables(conn, read_repository_script(), "ACCESS EXCLUSIVE")
                drop_objects(conn, read_repository_script())
        except psycopg.errors.LockNotAvailable:
            time.sleep(LOCK_PAUSE_S)
        else:
            return
    raise ServiceUnavailable(NEVER_IDLE)
