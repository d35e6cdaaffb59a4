"""The branches of a lake: which there are, and whether a lake has any. The search path is the lake's metadata schema."""

from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg import sql

from duckicelake.errors import Unsupported
from duckicelake.lake.install import compute_digest, format_search_path

MAIN = "main"
"""The name of the lake itself among its branches."""


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch: its name, its number, its own metadata schema and folders, and the snapshot of the parent's schema it begins with.

    `is_tag`: it is never changed.
    """

    name: str
    number: int
    schema_name: str
    parent: str
    fork_snapshot_id: int
    data_path: str
    iceberg_path: str
    created_at: datetime
    is_tag: bool = False


SELECT_HAS_REPOSITORY = """
SELECT to_regclass('iceberg_branch') IS NOT NULL
"""


def has_repository(conn: psycopg.Connection) -> bool:
    """Return True if the lake has or had a branch."""
    row = conn.execute(SELECT_HAS_REPOSITORY).fetchone()
    return bool(row and row[0])


# Text of statements that a lake without branches cannot prepare.
SELECT_BRANCHES = sql.SQL("""
SELECT b.name, b.number, b.schema_name, b.parent, b.fork_snapshot_id, b.data_path, b.iceberg_path, b.created_at,
       -- A lake that an older version prepared has no tags.
       coalesce((to_jsonb(b) ->> 'is_tag')::boolean, false)
  FROM iceberg_branch b WHERE NOT b.is_deleted ORDER BY b.number
""")


def list_branches(conn: psycopg.Connection) -> list[Branch]:
    """Return the branches and tags of a lake, oldest first."""
    if not has_repository(conn):
        return []
    return [Branch(*row) for row in conn.execute(SELECT_BRANCHES).fetchall()]


def list_children(conn: psycopg.Connection, branch: Branch) -> list[str]:
    """Return the names of the branches and tags that were made of a branch, and not of a deleted one that had its name."""
    return [each.name for each in list_branches(conn) if each.parent == branch.schema_name and each.number > branch.number]


def find_branch(conn: psycopg.Connection, name: str) -> Branch | None:
    """Return the branch or tag of that name, without regard to case, or None."""
    return next((branch for branch in list_branches(conn) if branch.name.lower() == name.lower()), None)


def find_tag_of(conn: psycopg.Connection, lake_schema: str, snapshot_id: int) -> Branch | None:
    """Return the oldest tag of that snapshot of the lake, or None."""
    shown = (branch for branch in list_branches(conn) if branch.is_tag and branch.parent == lake_schema)
    return next((tag for tag in shown if tag.fork_snapshot_id == snapshot_id), None)


LOCK_BRANCH = sql.SQL("SELECT number FROM iceberg_branch WHERE schema_name = {schema} AND NOT is_deleted FOR UPDATE")


def lock_branch(conn: psycopg.Connection, branch: Branch) -> int | None:
    """Keep a branch from being deleted, merged and branched from until the end of the transaction, and return its number by now.

    None: it has been deleted. Take this lock before the settings of the lake are changed.
    """
    row = conn.execute(LOCK_BRANCH.format(schema=sql.Literal(branch.schema_name))).fetchone()
    return None if row is None else row[0]


SELECT_IS_SHARED = """
SELECT EXISTS (SELECT FROM iceberg_setting WHERE key = 'open_branches' AND value <> '0')
"""


def is_shared(conn: psycopg.Connection) -> bool:
    """Return True if other members of a repository may read files of this lake: it has branches, or it is one."""
    row = conn.execute(SELECT_IS_SHARED).fetchone()
    return bool(row and row[0])


DROP_TIMEOUT = "SET LOCAL lock_timeout = '5s'"


def drop_deleted(conn: psycopg.Connection, lake_schema: str) -> bool:
    """Drop the schemas of deleted branches. Return False if one is still in use; it is dropped another time."""
    conn.execute(format_search_path(lake_schema))
    rows = conn.execute(sql.SQL("SELECT number, schema_name FROM iceberg_branch WHERE is_deleted")).fetchall()
    for number, schema_name in rows:
        try:
            with conn.transaction():
                conn.execute(DROP_TIMEOUT)
                conn.execute(sql.SQL("SET LOCAL client_min_messages = error"))
                conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema_name)))
                conn.execute(sql.SQL("DELETE FROM iceberg_branch_copy WHERE number = {}").format(sql.Literal(number)))
                conn.execute(sql.SQL("DELETE FROM iceberg_branch WHERE number = {}").format(sql.Literal(number)))
        except psycopg.errors.LockNotAvailable:
            return False
    return True


SELECT_INSTALLED_IN = sql.SQL("SELECT value FROM {}.iceberg_setting WHERE key = 'installed'")


def check_installed(conn: psycopg.Connection, branch: Branch) -> None:
    """Raise Unsupported if another version of DuckIceLake made the branch: its notes may lack what this version needs."""
    row = conn.execute(SELECT_INSTALLED_IN.format(sql.Identifier(branch.schema_name))).fetchone()
    if row is None or row[0] != compute_digest():
        raise Unsupported(
            f"Branch {branch.name!r} was made by another version of DuckIceLake. "
            "Serve it with that version, or delete it and make it again."
        )
