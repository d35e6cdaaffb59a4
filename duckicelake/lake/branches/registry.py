"""The branches of a lake: which there are, and whether a lake has any.

`catalog`, `commands` and the modules of this package call it on their own connections. The search path is the lake's metadata
schema, for `is_shared` also a branch's. Only `rename_branch` and `drop_deleted` begin transactions.
"""

import hashlib
import re
from collections.abc import Set
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache

import psycopg
from psycopg import sql

from duckicelake.errors import AlreadyExists, BadRequest, LakeBusy, NoSuchRef, Unsupported
from duckicelake.lake.branches.layout import name_inlined, read_format
from duckicelake.lake.install import format_search_path, read_script
from duckicelake.lake.lake_format import LakeFormat
from duckicelake.lake.readers import drop_schema, end_sessions

MAIN = "main"
"""The name of the lake itself among its branches."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
MAX_SCHEMA_BYTES = 63


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

    @property
    def is_automatic(self) -> bool:
        """True for a tag that a server made to show the snapshot whose number is its name. No other branch or tag is called by a number."""
        return self.is_tag and self.name.isdigit()


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


def get_branch(conn: psycopg.Connection, name: str) -> Branch:
    """Return the branch of exactly that name. Raises: NoSuchRef: there is none. BadRequest: it is a tag"""
    branch = find_branch(conn, name)
    # Rights are granted on names with their case, and clients address a branch by it.
    if branch is None or branch.name != name:
        raise NoSuchRef(f"Branch does not exist: {name[:64]!r}. `duckicelake branch list` lists the branches.")
    if branch.is_tag:
        raise BadRequest(f"{name!r} is a tag, which never changes. Name a branch.")
    return branch


def get_ref_schema(conn: psycopg.Connection, lake_schema: str, name: str) -> str:
    """Return the metadata schema of the lake or of one of its branches. Raises: NoSuchRef: there is no branch of that name."""
    if name == MAIN:
        return lake_schema
    conn.execute(format_search_path(lake_schema))
    branch = find_branch(conn, name)
    if branch is None:
        raise NoSuchRef(f"Branch does not exist: {name[:64]!r}. `duckicelake branch list` lists the branches; {MAIN!r} is the lake itself.")
    return branch.schema_name


def find_branch_in(conn: psycopg.Connection, schema_name: str) -> Branch | None:
    """Return the branch or tag in that metadata schema, or None. A rename does not change the schema."""
    return next((branch for branch in list_branches(conn) if branch.schema_name == schema_name), None)


def _is_automatic(branch: Branch) -> bool:
    return branch.is_automatic


def find_tag_of(conn: psycopg.Connection, lake_schema: str, snapshot_id: int) -> Branch | None:
    """Return the oldest tag of that snapshot of the lake, an automatic one only if there is no other, or None."""
    shown = sorted((branch for branch in list_branches(conn) if branch.is_tag and branch.parent == lake_schema), key=_is_automatic)
    return next((tag for tag in shown if tag.fork_snapshot_id == snapshot_id), None)


SELECT_HAS_SNAPSHOT = """
SELECT EXISTS (SELECT FROM ducklake_snapshot WHERE snapshot_id = %(snapshot_id)s)
"""


def has_snapshot(conn: psycopg.Connection, snapshot_id: int) -> bool:
    """Return True if the lake has a snapshot of that id."""
    row = conn.execute(SELECT_HAS_SNAPSHOT, {"snapshot_id": snapshot_id}).fetchone()
    return bool(row and row[0])


FOLDERS = sql.SQL("{b}.branch_fork")
FOLDERS_OF_BRANCHES = sql.SQL("""
(SELECT m.data_path, m.iceberg_path, t.data_path AS lake_data_path, t.iceberg_path AS lake_iceberg_path
   FROM {b}.branch_fork m CROSS JOIN {p}.branch_fork t)""")


@dataclass(frozen=True, slots=True)
class MergePoint:
    """The point where a branch left the lake, or its parent branch: both schemas, the fork point, and the parent's next file id then.

    The changes of `source`, the branch, are applied to `target`, which it left. While a rebase writes, `target` is the branch, and
    `source` a temporary copy of its changes. `repository`: the lake's schema. `has_parent_branch`: both are branches, and neither is a
    copy; the views of both show rows of the lake then. `parent_name`: of what the branch left.
    """

    target: str
    source: str
    repository: str
    fork_snapshot_id: int
    next_file_id: int
    lake_format: LakeFormat
    has_parent_branch: bool = False
    parent_name: str = MAIN

    @property
    def names(self) -> dict[str, sql.Composable]:
        """The names in the statements of a merge."""
        return {
            "p": sql.Identifier(self.target),
            "b": sql.Identifier(self.source),
            "r": sql.Identifier(self.repository),
            "n": sql.Literal(self.fork_snapshot_id),
            "nf": sql.Literal(self.next_file_id),
            **name_inlined(self.lake_format),
        }

    @property
    def folders(self) -> sql.Composed:
        """The relation with the folders of the branch, and those of the target as the lake's."""
        return (FOLDERS_OF_BRANCHES if self.has_parent_branch else FOLDERS).format(**self.names)

    def relation(self, name: str, *, on_branch: bool) -> sql.Identifier:
        """Return a table of one side."""
        return sql.Identifier(self.source if on_branch else self.target, name)


SELECT_POINT = sql.SQL("SELECT fork_snapshot_id, next_file_id, parent_snapshot_id, parent_file_id FROM {b}.branch_fork")


def read_point(conn: psycopg.Connection, lake_schema: str, branch: Branch, parent: Branch | None = None) -> MergePoint:
    """Return the point where a branch left the lake, or its parent branch."""
    row = conn.execute(SELECT_POINT.format(b=sql.Identifier(branch.schema_name))).fetchone()
    assert row is not None
    fork_of_lake, lakes_file_id, fork, file_id = row
    lake_format = read_format(conn, lake_schema)
    if parent is None:
        return MergePoint(lake_schema, branch.schema_name, lake_schema, fork_of_lake, lakes_file_id, lake_format)
    return MergePoint(parent.schema_name, branch.schema_name, lake_schema, fork, file_id, lake_format, True, parent.name)


LOCK_BRANCH = sql.SQL("SELECT number FROM iceberg_branch WHERE schema_name = {schema} AND NOT is_deleted FOR UPDATE")


def lock_branch(conn: psycopg.Connection, branch: Branch) -> int | None:
    """Keep a branch from being deleted, merged and branched from until the end of the transaction, and return its number by now.

    None: it has been deleted. Take this lock before the settings of the lake are changed.
    """
    row = conn.execute(LOCK_BRANCH.format(schema=sql.Literal(branch.schema_name))).fetchone()
    return None if row is None else row[0]


SELECT_NUMBER = """
SELECT nextval('iceberg_branch_number'),
       greatest((SELECT max(greatest(snapshot_id, next_catalog_id, next_file_id)) >> 32 FROM ducklake_snapshot),
                (SELECT max(next_row_id) >> 40 FROM ducklake_table_stats), 0)
"""


def assign_number(conn: psycopg.Connection) -> int:
    """Return the number of a new branch. The lake's ids may lie in ranges of branches that were merged: its ranges are above them."""
    row = conn.execute(SELECT_NUMBER).fetchone()
    assert row is not None
    number, taken = row
    if number > taken:
        return number
    conn.execute("SELECT setval('iceberg_branch_number', %s)", (taken + 1,))
    return taken + 1


SELECT_TAKEN = sql.SQL("""
SELECT greatest(h.snapshot_id >> 32, h.next_catalog_id >> 32, h.next_file_id >> 32,
                (SELECT max(next_row_id) >> 40 FROM {source}.ducklake_table_stats))
  FROM {source}.ducklake_snapshot h WHERE h.snapshot_id = (SELECT max(snapshot_id) FROM {source}.ducklake_snapshot)
""")
CHANGE_NUMBER = sql.SQL("""
UPDATE iceberg_branch SET number = {number} WHERE number = {old};
UPDATE iceberg_branch_copy SET number = {number} WHERE number = {old}
""")


def raise_number(conn: psycopg.Connection, lake_schema: str, source: str, number: int) -> int:
    """Return the number of a new branch, or give it another one if its parent has ids that do not lie below the number's range by now.

    `source`: the parent's metadata schema, whose lock the caller holds. No other branch gets the old number, which folders may have.
    """
    row = conn.execute(SELECT_TAKEN.format(source=sql.Identifier(source))).fetchone()
    assert row is not None
    if number > row[0]:
        return number
    conn.execute(format_search_path(lake_schema))
    other = assign_number(conn)
    conn.execute(CHANGE_NUMBER.format(number=sql.Literal(other), old=sql.Literal(number)))
    return other


def check_name(name: str, lake_schema: str) -> None:
    """Raise BadRequest unless a branch may have that name: it becomes part of the warehouse's name and of the schema's."""
    if not NAME.fullmatch(name) or name.isdigit() or name == MAIN:
        raise BadRequest(
            f"Branch name {name!r} cannot be used. Names have letters, digits, '.', '_' and '-', begin with a letter or digit, "
            f"and are neither a number nor {MAIN!r}."
        )
    if len(f"{lake_schema}@{name}".encode()) > MAX_SCHEMA_BYTES:
        raise BadRequest(f"Branch name {name!r} is too long: with the lake's schema it must have {MAX_SCHEMA_BYTES} bytes at most.")


# A branch that was renamed keeps its schema; DuckDB finds schemas by names without regard to case.
SELECT_IS_TAKEN = sql.SQL("SELECT EXISTS (SELECT FROM iceberg_branch WHERE lower(schema_name) = lower(%(schema)s))")


def choose_schema(conn: psycopg.Connection, lake_schema: str, name: str, number: int) -> str:
    """Return the metadata schema for a new branch: that of its name, or of its number.

    The number is taken if a branch that had the name is in that schema, or if the schema's name is too long, as it may be for a snapshot.
    Raises: BadRequest: the lake's schema leaves no place for the number
    """
    named, numbered = f"{lake_schema}@{name}", f"{lake_schema}@{number}"
    row = conn.execute(SELECT_IS_TAKEN, {"schema": named}).fetchone()
    # No name is a number, so this schema can be no other branch's.
    chosen = numbered if (row is not None and row[0]) or len(named.encode()) > MAX_SCHEMA_BYTES else named
    if len(chosen.encode()) > MAX_SCHEMA_BYTES:
        raise BadRequest(
            f"The lake's metadata schema {lake_schema!r} is too long: with '@{number}' it has more than {MAX_SCHEMA_BYTES} bytes."
        )
    return chosen


UPDATE_NAME = sql.SQL("UPDATE iceberg_branch SET name = %(name)s WHERE number = %(number)s")


def rename_branch(conn: psycopg.Connection, lake_schema: str, name: str, new_name: str) -> Branch:
    """Give a branch another name, on a connection that is in no transaction, and return it. Its schema, folders and ids stay.

    Raises: NoSuchRef: there is no such branch. BadRequest: it is a tag, or the new name cannot be used. AlreadyExists: the name is taken
    """
    prepare_rename(conn, lake_schema, new_name)
    with conn.transaction():
        return rename_locked(conn, name, new_name)


def prepare_rename(conn: psycopg.Connection, lake_schema: str, new_name: str) -> None:
    """Drop deleted branches, one of which may have the new name, on a connection that is in no transaction.

    The branch itself is looked up by `rename_locked`, after the caller has claimed the key of its request: a copy of the request may have
    renamed it meanwhile.
    Raises: BadRequest: the new name cannot be used
    """
    check_name(new_name, lake_schema)
    drop_deleted(conn, lake_schema)


def rename_locked(conn: psycopg.Connection, name: str, new_name: str) -> Branch:
    """Rename a branch in the caller's transaction, which an error ends, and return it.

    Raises: what `rename_branch` raises; LakeBusy: another session holds the branch for longer than the transaction waits for locks
    """
    branch = get_branch(conn, name)
    try:
        number = lock_branch(conn, branch)
        # Another session may have given the name away, or deleted the branch.
        if number is None or get_branch(conn, name).schema_name != branch.schema_name:
            raise NoSuchRef(f"Branch does not exist: {name[:64]!r}. It has just been deleted or renamed.")
        conn.execute(UPDATE_NAME, {"name": new_name, "number": number})
    except psycopg.errors.UniqueViolation as error:
        raise AlreadyExists(f"Branch or tag already exists: {new_name!r}. Delete or rename it first, or choose another name.") from error
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected) as error:
        raise LakeBusy(f"Another session holds branch {name[:64]!r}; it was not renamed. Try again.") from error
    return replace(branch, name=new_name, number=number)


SELECT_IS_SHARED = """
SELECT EXISTS (SELECT FROM iceberg_setting WHERE key = 'open_branches' AND value <> '0')
"""


def is_shared(conn: psycopg.Connection) -> bool:
    """Return True if other members of a repository may read files of this lake: it has branches, or it is one."""
    row = conn.execute(SELECT_IS_SHARED).fetchone()
    return bool(row and row[0])


AWAITED_MS, OTHERS_MS = 5_000, 100
"""How long the drop of the schema that a command has just deleted waits for a lock, and that of the others, which are tried each time."""


def drop_deleted(conn: psycopg.Connection, lake_schema: str, awaited: int | None = None) -> Set[int]:
    """Drop the schemas of deleted branches, after the sessions of readers that hold them are ended.

    Return the numbers of those that other sessions still use; they are dropped another time. `awaited`: the number of the branch that
    has just been deleted.
    """
    conn.execute(format_search_path(lake_schema))
    rows = conn.execute(sql.SQL("SELECT number, schema_name FROM iceberg_branch WHERE is_deleted")).fetchall()
    left: set[int] = set()
    for number, schema_name in rows:
        end_sessions(conn, schema_name)
        try:
            with conn.transaction():
                _drop_deleted(conn, number, schema_name, AWAITED_MS if number == awaited else OTHERS_MS)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            left.add(number)
    return left


def _drop_deleted(conn: psycopg.Connection, number: int, schema_name: str, timeout_ms: int) -> None:
    conn.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(timeout_ms))
    conn.execute("SET LOCAL client_min_messages = error")
    drop_schema(conn, schema_name)
    conn.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema_name)))
    conn.execute(sql.SQL("DELETE FROM iceberg_branch_copy WHERE number = {}").format(sql.Literal(number)))
    conn.execute(sql.SQL("DELETE FROM iceberg_branch WHERE number = {}").format(sql.Literal(number)))


SELECT_MADE_BY = sql.SQL("SELECT value FROM {}.iceberg_setting WHERE key = 'made_by'")
LAYOUT = 3
"""The number of what a branch has: its relations, triggers and copied rows. Raise it when a branch with the former ones is no longer right.

`tests/lake/branches/test_statements.py` compares the statements that make a branch with the recorded ones.
"""
WHOLE_LINE_COMMENT = re.compile(rb"^ *--.*\n", re.MULTILINE)


@cache
def compute_maker() -> str:
    """Return what says that a branch has all that this version needs: the number of its layout, and a digest of the notes' script.

    Comments of the script do not matter. It is computed once, because each request for a branch compares it, and a server that runs stays
    the version that it is.
    """
    return f"{LAYOUT}:{hashlib.sha256(WHOLE_LINE_COMMENT.sub(b'', read_script())).hexdigest()}"


def is_installed(conn: psycopg.Connection, branch: Branch) -> bool:
    """Return True if a version of DuckIceLake made the branch that gives branches the same relations as this one."""
    row = conn.execute(SELECT_MADE_BY.format(sql.Identifier(branch.schema_name))).fetchone()
    return row is not None and row[0] == compute_maker()


def check_installed(conn: psycopg.Connection, branch: Branch) -> None:
    """Raise Unsupported if another version of DuckIceLake made the branch: it may lack what this version needs."""
    if not is_installed(conn, branch):
        raise Unsupported(
            f"Branch {branch.name!r} was made by another version of DuckIceLake. "
            "Serve, merge or reset it with that version, or delete it and make it again."
        )
