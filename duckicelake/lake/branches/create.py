"""Creation of a branch: one transaction that takes a spare or makes its relations, and then takes the lake's lock to fill them.

`commands.branches` calls it on a connection that is in no transaction. `catalog.repositories` calls its two parts on a worker thread of the
server: the second is in the transaction that claims the key of a request.
The server also creates a tag when a client reads a lake snapshot by its id. The lock is given up and taken again if it is not granted in
time, so main's commits do not wait for it. Before, transactions of their own add what branches need to the lake's schema, if it is missing,
and drop the schemas of deleted branches. `commands.prepare` calls `remove_repository` for `duckicelake init --remove`, which takes away
what the first branch added to the lake.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.resources import files
from typing import LiteralString

import psycopg
from psycopg import sql

from duckicelake.errors import AlreadyExists, BadRequest, LakeBusy, ServiceUnavailable
from duckicelake.lake.branches.layout import (
    FOLDER,
    NO_DATA_FILE,
    SELECT_INLINED,
    VIEWED,
    Schemas,
    build_moved_path,
    format_copying,
    has_inlined,
    name_inlined,
    read_columns,
    read_format,
)
from duckicelake.lake.branches.notes import COPY_OWN_FILE_NOTES, copy_notes
from duckicelake.lake.branches.registry import (
    MAIN,
    Branch,
    assign_number,
    check_name,
    choose_schema,
    drop_deleted,
    find_branch,
    has_repository,
    list_branches,
    lock_branch,
    raise_number,
)
from duckicelake.lake.branches.spare import catch_up, claim_spare, copy_ahead, copy_large, create_schema, drop_spare, empty_large
from duckicelake.lake.install import LOCK_PAUSE_S, LOCK_TRIES, NEVER_IDLE, drop_objects, format_search_path, lock_tables, with_slash
from duckicelake.lake.lake_format import LakeFormat

STRIDE_BITS, ROW_ID_BITS = 32, 40
"""Branch number k gives ids of snapshots, tables and files, and schema versions, from k·2³² on, and row ids from k·2⁴⁰ on."""


@dataclass(frozen=True, slots=True)
class BranchRequest:
    """A branch to make. `at`: the snapshot it begins with, a time, or the name of a tag; None: the parent's newest snapshot.

    `is_tag`: it is never changed.
    """

    name: str
    parent: str = MAIN
    at: int | datetime | str | None = None
    is_tag: bool = False

    @property
    def origin(self) -> str:
        """The branch, or the tag, that it is made of."""
        return self.at if isinstance(self.at, str) else self.parent

    @property
    def is_automatic(self) -> bool:
        """True for the tag that a server makes to show a snapshot: its name is the snapshot's number."""
        return self.is_tag and self.parent == MAIN and isinstance(self.at, int) and self.name == str(self.at)


def parse_at(at: object) -> int | datetime | str | None:
    """Return a snapshot id or a time (a number, or text), or else a tag's name; a time without a zone is in UTC. Raises: ValueError."""
    if at is None or (isinstance(at, int) and not isinstance(at, bool)):
        return at
    if not isinstance(at, str):
        raise ValueError("neither a number nor a text")
    if at.isdecimal():
        return int(at)
    try:
        time = datetime.fromisoformat(at)
    except ValueError:
        return at
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Fork:
    """The snapshot that a branch begins with, and the parent's counters when the branch is made. `is_head`: it is the newest one."""

    snapshot_id: int
    schema_version: int
    next_catalog_id: int
    next_file_id: int
    is_head: bool


def create_branch(conn: psycopg.Connection, lake_schema: str, request: BranchRequest, tries: int = LOCK_TRIES) -> Branch:
    """Create a branch of the lake in that schema, all or nothing, and return it.

    Raises: AlreadyExists: there is a branch of that name. BadRequest: the name, the parent or the snapshot cannot be used
            ServiceUnavailable: the lake is never idle. LakeBusy: the parent was deleted, or the lake migrated, meanwhile
    """
    prepare_creation(conn, lake_schema, request, tries)
    return create_prepared(conn, lake_schema, request, tries)


def prepare_creation(conn: psycopg.Connection, lake_schema: str, request: BranchRequest, tries: int = LOCK_TRIES) -> None:
    """Prepare the lake for a branch, in transactions of its own, and set the search path to the lake's. Raises: as `create_branch`."""
    if not request.is_automatic:
        check_name(request.name, lake_schema)
    _install_repository(conn, lake_schema, tries)
    drop_deleted(conn, lake_schema)
    conn.execute(format_search_path(lake_schema))


def create_prepared(conn: psycopg.Connection, lake_schema: str, request: BranchRequest, tries: int = LOCK_TRIES) -> Branch:
    """Create a branch of a prepared lake in a transaction, which may be the caller's. Raises: as `create_branch`."""
    if find_branch(conn, request.name) is not None:
        raise AlreadyExists(f"Branch already exists: {request.name!r}. Delete it first, or choose another name.")
    parent = None if request.parent == MAIN else find_branch(conn, request.parent)
    if parent is None and request.parent != MAIN:
        raise BadRequest(f"Branch does not exist: {request.parent!r}. --from names {MAIN!r} or a branch.")
    if isinstance(request.at, str):
        tag = _get_tag(conn, request.at, parent)
        request, parent = replace(request, parent=tag.name, at=None), tag
    if parent is not None and request.at is not None:
        raise BadRequest("A branch of a branch begins at its newest snapshot; leave out --at.")
    try:
        with conn.transaction():
            claim = _Claim.prepare(conn, lake_schema, request, parent)
            return _claim_in_turn(conn, claim, tries)
    except psycopg.errors.UniqueViolation as error:
        raise AlreadyExists(f"Branch already exists: {request.name!r}. Another session has just made it.") from error
    except psycopg.errors.DuplicateSchema as error:
        taken = f"{lake_schema}@{request.name}"
        raise AlreadyExists(f"Postgres has a schema {taken!r} already, which is no branch of this lake. Choose another name.") from error


def _get_tag(conn: psycopg.Connection, name: str, parent: Branch | None) -> Branch:
    """Return the tag that a branch begins at. Raises: BadRequest: there is none of that name, or it is of another branch."""
    tag = find_branch(conn, name)
    if tag is None or not tag.is_tag:
        raise BadRequest(f"Tag does not exist: {name[:64]!r}. --at is a snapshot id, a time like 2026-03-01T12:00:00+00:00, or a tag.")
    if parent is not None and tag.parent != parent.schema_name:
        raise BadRequest(f"The tag {tag.name!r} was not made of {parent.name!r}. Leave --from out, or name the branch it was made of.")
    return tag


def read_repository_script() -> bytes:
    """Return the script that prepares a lake for its first branch."""
    return files("duckicelake.lake.branches").joinpath("repository.sql").read_bytes()


SELECT_IS_INSTALLED = """
SELECT FROM iceberg_setting WHERE key = 'repository' AND value = %(digest)s
"""

UPSERT_IS_INSTALLED = """
INSERT INTO iceberg_setting (key, value) VALUES ('repository', %(digest)s) ON CONFLICT (key) DO UPDATE SET value = excluded.value
"""


def _install_repository(conn: psycopg.Connection, lake_schema: str, tries: int) -> None:
    """Prepare the lake for its first branch, or for those of this version; triggers are added without making writers wait.

    Raises: ServiceUnavailable: the lake is never idle
    """
    conn.execute(format_search_path(lake_schema))
    script = read_repository_script()
    digest = hashlib.sha256(script).hexdigest()
    if has_repository(conn) and conn.execute(SELECT_IS_INSTALLED, {"digest": digest}).fetchone() is not None:
        return
    for _ in range(tries):
        try:
            with conn.transaction():
                lock_tables(conn, script, "SHARE ROW EXCLUSIVE")
                conn.execute(script)
                conn.execute(UPSERT_IS_INSTALLED, {"digest": digest})
        except psycopg.errors.LockNotAvailable:
            time.sleep(LOCK_PAUSE_S)
        else:
            return
    raise ServiceUnavailable(NEVER_IDLE)


# Text of statements that a lake without branches cannot prepare.
INSERT_BRANCH = sql.SQL("""
INSERT INTO iceberg_branch (number, name, schema_name, parent, fork_snapshot_id, data_path, iceberg_path, is_tag)
VALUES (%(number)s, %(name)s, %(schema)s, %(parent)s, -1, %(data_path)s, %(iceberg_path)s, %(is_tag)s)
""")

SELECT_PATHS = """
SELECT (SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL),
       (SELECT value FROM iceberg_setting WHERE key = 'iceberg_path')
"""

INSERT_FORK = sql.SQL("""
INSERT INTO {branch}.branch_fork (fork_snapshot_id, next_file_id, next_catalog_id, parent_snapshot_id, parent_file_id,
                                  lake_data_path, data_path, lake_iceberg_path, iceberg_path)
VALUES (-1, 0, 0, -1, 0, {lake_data_path}, {data_path}, {lake_iceberg_path}, {iceberg_path});
INSERT INTO {branch}.iceberg_setting (key, value) VALUES ('iceberg_path', {iceberg_path})
""")

SELECT_FORK = sql.SQL("""
SELECT s.snapshot_id, s.schema_version, h.next_catalog_id, h.next_file_id, s.snapshot_id = h.snapshot_id AS is_head
  FROM {source}.ducklake_snapshot h
  JOIN {source}.ducklake_snapshot s ON {wanted}
 WHERE h.snapshot_id = (SELECT max(snapshot_id) FROM {source}.ducklake_snapshot)
""")

SELECT_IS_COMPACTED = sql.SQL("""
SELECT EXISTS (SELECT FROM {source}.ducklake_data_file WHERE begin_snapshot <= {fork} AND partial_max > {fork})
    OR EXISTS (SELECT FROM {source}.ducklake_delete_file WHERE begin_snapshot <= {fork} AND partial_max > {fork})
""")


@dataclass(frozen=True, slots=True)
class _Claim:
    """A branch whose relations exist in the open transaction; `source` is the parent's schema.

    `unchanged_before`: the first transaction whose changes its copies of the parent's rows may lack; None: it has no copies yet.
    """

    schemas: Schemas
    source: str
    number: int
    request: BranchRequest
    paths: Mapping[str, str]
    unchanged_before: str | None
    lake_format: LakeFormat

    @classmethod
    def prepare(cls, conn: psycopg.Connection, lake_schema: str, request: BranchRequest, parent: Branch | None) -> "_Claim":
        """Create everything that needs no lock of the lake. Raises: LakeBusy: the parent has just been deleted or merged"""
        if parent is not None and lock_branch(conn, parent) != parent.number:
            raise LakeBusy(f"The branch {parent.name!r} has just been deleted or merged. Try again, or name another one.")
        lake_format = read_format(conn, lake_schema)
        number, paths_row = assign_number(conn), conn.execute(SELECT_PATHS).fetchone()
        assert paths_row is not None
        wanted = f"snapshot-{request.name}" if request.is_automatic else request.name
        schemas = Schemas(lake_schema, choose_schema(conn, lake_schema, wanted, number))
        paths = {"lake_data_path": paths_row[0], "lake_iceberg_path": paths_row[1]}
        paths |= {"data_path": build_branch_path(paths_row[0], number), "iceberg_path": build_branch_path(paths_row[1], number)}
        paths["source_iceberg_path"] = paths_row[1] if parent is None else parent.iceberg_path
        source = lake_schema if parent is None else parent.schema_name
        own = {"data_path": paths["data_path"], "iceberg_path": paths["iceberg_path"]}
        own["is_tag"] = request.is_tag
        conn.execute(INSERT_BRANCH, {"number": number, "name": request.name, "schema": schemas.branch, "parent": source, **own})
        unchanged_before = claim_spare(conn, schemas, number)
        if unchanged_before is None:
            create_schema(conn, schemas, number)
        names = {"branch": sql.Identifier(schemas.branch), "source": sql.Identifier(source)}
        conn.execute(INSERT_FORK.format(**names, **{name: sql.Literal(path) for name, path in paths.items()}))
        if unchanged_before is None or parent is not None or request.at is not None:
            unchanged_before = _copy_ahead(conn, names, request, has_copies=unchanged_before is not None)
        return cls(schemas, source, number, request, paths, unchanged_before, lake_format)

    @property
    def base(self) -> int:
        """The first id of the branch's own."""
        return self.number << STRIDE_BITS


def _copy_ahead(conn: psycopg.Connection, names: Mapping[str, sql.Composable], request: BranchRequest, *, has_copies: bool) -> str | None:
    """Copy what a branch at the newest snapshot has of its parent's large tables. `has_copies`: there are the lake's, from a spare."""
    if has_copies:
        empty_large(conn, names)
    # Which snapshot a time means is only known under the lock.
    return copy_ahead(conn, names) if request.at is None else None


def build_branch_path(path: str, number: int) -> str:
    """Return the branch's folder, a sibling of the lake's. Raises: BadRequest: the lake's is a whole bucket or disk."""
    folder = path.rstrip("/")
    if not folder.partition("://")[2].partition("/")[2] if "://" in folder and not folder.startswith("file:") else not folder:
        raise BadRequest(f"The lake's folder {path!r} is a whole bucket, so a branch has no place next to it. Copy the lake into a folder.")
    return with_slash(f"{folder}-branch-{number}")


def _claim_in_turn(conn: psycopg.Connection, claim: _Claim, tries: int) -> Branch:
    """Fill the branch under the lock. Raises: ServiceUnavailable: the lock was not granted; BadRequest: there is no such snapshot."""
    for _ in range(tries):
        try:
            with conn.transaction():
                # Shorter than Postgres' deadlock timeout: in a circle of waiting sessions this one gives way.
                conn.execute("SET LOCAL lock_timeout = '500ms'")
                return _fill(conn, claim)
        except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected, psycopg.errors.UndefinedTable):
            # DuckDB drops empty tables of inlined rows after a flush, without a snapshot.
            time.sleep(LOCK_PAUSE_S)
    raise ServiceUnavailable(NEVER_IDLE)


LOCK_MEMBERS = sql.SQL("LOCK TABLE {repository}.ducklake_snapshot, {source}.ducklake_snapshot IN SHARE ROW EXCLUSIVE MODE")
CHANGE_SETTINGS = sql.SQL("""
UPDATE {repository}.iceberg_setting SET value = (value::bigint + 1)::text WHERE key = 'branches';
INSERT INTO {repository}.iceberg_setting (key, value) VALUES ('open_branches', '1') ON CONFLICT (key) DO UPDATE SET value = '1'
""")
UPDATE_FORK_OF_BRANCH = sql.SQL("""
UPDATE iceberg_branch SET fork_snapshot_id = %(fork)s WHERE number = %(number)s
RETURNING name, number, schema_name, parent, fork_snapshot_id, data_path, iceberg_path, created_at, is_tag
""")


REFUSE_CHANGES = sql.SQL("""
CREATE TRIGGER iceberg_refuse_changes
    BEFORE INSERT OR UPDATE OR DELETE ON {branch}.ducklake_snapshot
    FOR EACH STATEMENT EXECUTE FUNCTION {repository}.iceberg_refuse_changes()
""")


def _fill(conn: psycopg.Connection, claim: _Claim) -> Branch:
    identifiers = {"repository": sql.Identifier(claim.schemas.repository), "source": sql.Identifier(claim.source)}
    conn.execute(LOCK_MEMBERS.format(**identifiers))
    conn.execute(CHANGE_SETTINGS.format(**identifiers))
    if read_format(conn, claim.schemas.repository) is not claim.lake_format:
        raise LakeBusy("The lake has just been migrated to another version of DuckLake. Try again.")
    # A branch that was merged while the relations were made may have got a newer number. The folders keep the old one.
    claim = replace(claim, number=raise_number(conn, claim.schemas.repository, claim.source, claim.number))
    fork = _read_fork(conn, claim)
    names: dict[str, sql.Composable] = {
        **identifiers,
        "branch": sql.Identifier(claim.schemas.branch),
        "fork": sql.Literal(fork.snapshot_id),
        "next_file_id": sql.Literal(fork.next_file_id),
        "next_catalog_id": sql.Literal(fork.next_catalog_id),
        "schema_version": sql.Literal(fork.schema_version),
        "base": sql.Literal(claim.base),
        "row_base": sql.Literal(claim.number << ROW_ID_BITS),
        "message": sql.Literal(f"branch {claim.request.name} of {claim.request.parent} at snapshot {fork.snapshot_id}"),
        "source_uri": sql.Literal(to_uri(claim.paths["source_iceberg_path"])),
        "branch_uri": sql.Literal(to_uri(claim.paths["iceberg_path"])),
        "data_path": sql.Literal(claim.paths["data_path"]),
        "folder": FOLDER.format(**identifiers),
        "moved_path": build_moved_path(sql.SQL("s"), claim.schemas.branch),
        **name_inlined(claim.lake_format),
    }
    is_of_main = claim.source == claim.schemas.repository
    conn.execute((SHOW_LAKE if is_of_main else SHOW_BRANCH).format(**names))
    if not is_of_main:
        copy_own_rows(conn, claim.schemas.branch, claim.source, names)
    if claim.unchanged_before is not None:
        catch_up(conn, claim.unchanged_before, names)
    else:
        copy_large(conn, names, with_bounds=fork.is_head)
    copy_tables(conn, claim.lake_format, names)
    _copy_inlined(conn, claim, names)
    copy_notes(conn, names)
    if claim.request.is_tag:
        conn.execute(REFUSE_CHANGES.format(**names))
    conn.execute(format_search_path(claim.schemas.repository))
    row = conn.execute(UPDATE_FORK_OF_BRANCH, {"fork": fork.snapshot_id, "number": claim.number}).fetchone()
    assert row is not None
    return Branch(*row)


def _read_fork(conn: psycopg.Connection, claim: _Claim) -> Fork:
    source, at = sql.Identifier(claim.source), claim.request.at
    wanted = sql.SQL("s.snapshot_id = h.snapshot_id")
    if isinstance(at, int):
        wanted = sql.SQL("s.snapshot_id = {}").format(sql.Literal(at))
    elif at is not None:
        newest = sql.SQL("s.snapshot_id = (SELECT max(snapshot_id) FROM {}.ducklake_snapshot WHERE snapshot_time <= {})")
        wanted = newest.format(source, sql.Literal(at))
    row = conn.execute(SELECT_FORK.format(source=source, wanted=wanted)).fetchone()
    if row is None:
        raise BadRequest(f"The lake has no snapshot {at}: it has expired, or was never made.")
    fork = Fork(*row)
    if fork.is_head:
        return fork
    compacted = conn.execute(SELECT_IS_COMPACTED.format(source=source, fork=sql.Literal(fork.snapshot_id))).fetchone()
    if compacted is not None and compacted[0]:
        raise BadRequest(
            f"Snapshot {fork.snapshot_id} lies in files that a flush or merge has put together with newer rows. "
            "Choose a newer snapshot, or branch at the newest one."
        )
    return fork


def to_uri(path: str) -> str:
    """Return a folder as clients of Iceberg call it."""
    return f"file://{path}" if path.startswith("/") else path


SHOW_LAKE = sql.SQL("""
UPDATE {branch}.branch_fork SET fork_snapshot_id = {fork}, next_file_id = {next_file_id}, next_catalog_id = {next_catalog_id},
                                parent_snapshot_id = {fork}, parent_file_id = {next_file_id};
WITH root AS (
    SELECT DISTINCT ON (t.table_id) t.table_id, {folder} AS root
      FROM {source}.ducklake_table t JOIN {source}.ducklake_schema s ON s.schema_id = t.schema_id
     WHERE t.begin_snapshot <= {fork}
     ORDER BY t.table_id, t.begin_snapshot DESC
)
INSERT INTO {branch}.branch_root (table_id, root) SELECT table_id, root FROM root
""")


SHOW_BRANCH = sql.SQL("""
UPDATE {branch}.branch_fork b
   SET fork_snapshot_id = p.fork_snapshot_id, next_file_id = p.next_file_id, next_catalog_id = p.next_catalog_id,
       parent_snapshot_id = {fork}, parent_file_id = {next_file_id}
  FROM {source}.branch_fork p;
INSERT INTO {branch}.branch_root (table_id, root) SELECT table_id, root FROM {source}.branch_root
""")

COPY_OWN_FILES = sql.SQL("""
WITH root AS (
    SELECT DISTINCT ON (t.table_id) t.table_id, {folder} AS root
      FROM {source}.ducklake_table t JOIN {source}.ducklake_schema s ON s.schema_id = t.schema_id
     ORDER BY t.table_id, t.begin_snapshot DESC
)
INSERT INTO {own} ({columns}) SELECT {shown} FROM {own_of_source} f JOIN root r ON r.table_id = f.table_id
 -- Rows that belong to no data file keep files from the orphan scan of the parent alone.
 WHERE f.data_file_id < {no_data_file}
""")
COPY_OWN = sql.SQL("INSERT INTO {own} ({columns}) SELECT {columns} FROM {own_of_source}{condition}")
OF_NO_PINS = sql.SQL(" WHERE table_id < {no_data_file}").format(no_data_file=NO_DATA_FILE)


COPY_REMOVED = sql.SQL("""
INSERT INTO {branch}.branch_removed (data_file_id, table_id, begin_snapshot, end_snapshot, is_parents)
SELECT data_file_id, table_id, begin_snapshot, end_snapshot, true FROM {source}.branch_removed
""")


def copy_own_rows(conn: psycopg.Connection, branch: str, source: str, names: Mapping[str, sql.Composable]) -> None:
    """Copy to a branch what its parent has of its own and what it hides of the lake. Relative paths of files become full ones.

    `refork` calls it too, for a branch that goes on from another branch. `branch`, `source`: their metadata schemas.
    """
    conn.execute(COPY_REMOVED.format(**names))
    conn.execute(COPY_OWN_FILE_NOTES.format(**names))
    resolved: Mapping[str, LiteralString] = {
        "path": "CASE WHEN coalesce(f.path_is_relative, true) THEN r.root || f.path ELSE f.path END",
        "path_is_relative": "false",
    }
    for table in VIEWED:
        columns = read_columns(conn, branch, "own_" + table.name)
        listed = sql.SQL(", ").join(sql.Identifier(column) for column in columns)
        relations: dict[str, sql.Composable] = {
            "own": sql.Identifier(branch, "own_" + table.name),
            "own_of_source": sql.Identifier(source, "own_" + table.name),
        }
        if table.has_path:
            shown = sql.SQL(", ").join(sql.SQL(resolved[c]) if c in resolved else sql.Identifier("f", c) for c in columns)
            conn.execute(COPY_OWN_FILES.format(**names, **relations, columns=listed, shown=shown, no_data_file=NO_DATA_FILE))
        else:
            condition = OF_NO_PINS if table.name == "table" else sql.SQL("")
            conn.execute(COPY_OWN.format(**relations, columns=listed, condition=condition))
        gone, gone_of_source = (sql.Identifier(schema, "gone_" + table.name) for schema in (branch, source))
        conn.execute(sql.SQL("INSERT INTO {} SELECT * FROM {}").format(gone, gone_of_source))


# The bridge at the next id of the parent: DuckDB's change feed after the fork point begins with it. The branch counts schema
# versions in its own range: a DuckDB session keeps the columns of each version, and after a merge reads the lake's inlined rows by theirs.
COPY_TABLES = sql.SQL("""
INSERT INTO {branch}.ducklake_metadata (key, value, scope, scope_id)
SELECT key, CASE WHEN key = 'data_path' AND scope IS NULL THEN {data_path} ELSE value END, scope, scope_id
  FROM {source}.ducklake_metadata m
 WHERE NOT (m.key = 'auto_compact' AND m.scope = 'table' AND m.scope_id IN (SELECT table_id FROM {branch}.ducklake_partition_info));
-- DuckLake ends with an internal error when it puts files of one partition together that lie in different folders.
INSERT INTO {branch}.ducklake_metadata (key, value, scope, scope_id)
SELECT DISTINCT 'auto_compact', 'false', 'table', table_id FROM {branch}.ducklake_partition_info;

INSERT INTO {branch}.ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
SELECT n.id, greatest(clock_timestamp(), s.snapshot_time + n.place * interval '1 microsecond'), n.version, {base}, {base}
  FROM {source}.ducklake_snapshot s, (VALUES ({fork} + 1, 1, {schema_version}), ({base}, 2, {base})) AS n(id, place, version)
 WHERE s.snapshot_id = {fork};

INSERT INTO {branch}.ducklake_snapshot_changes (snapshot_id, author, commit_message)
VALUES ({fork} + 1, 'duckicelake', {message}), ({base}, 'duckicelake', {message});

INSERT INTO {branch}.ducklake_schema (schema_id, schema_uuid, begin_snapshot, end_snapshot, schema_name, path, path_is_relative)
SELECT s.schema_id, s.schema_uuid, s.begin_snapshot, CASE WHEN s.end_snapshot > {fork} THEN NULL ELSE s.end_snapshot END, s.schema_name,
       {moved_path}, s.path_is_relative
  FROM {source}.ducklake_schema s WHERE s.begin_snapshot <= {fork};

INSERT INTO {branch}.ducklake_macro (schema_id, macro_id, macro_name, begin_snapshot, end_snapshot)
SELECT schema_id, macro_id, macro_name, begin_snapshot, CASE WHEN end_snapshot > {fork} THEN NULL ELSE end_snapshot END
  FROM {source}.ducklake_macro WHERE begin_snapshot <= {fork};
INSERT INTO {branch}.ducklake_macro_impl SELECT * FROM {source}.ducklake_macro_impl
 WHERE macro_id IN (SELECT macro_id FROM {branch}.ducklake_macro);
INSERT INTO {branch}.ducklake_macro_parameters SELECT * FROM {source}.ducklake_macro_parameters
 WHERE macro_id IN (SELECT macro_id FROM {branch}.ducklake_macro);

INSERT INTO {branch}.ducklake_sort_info (sort_id, table_id, begin_snapshot, end_snapshot)
SELECT sort_id, table_id, begin_snapshot, CASE WHEN end_snapshot > {fork} THEN NULL ELSE end_snapshot END
  FROM {source}.ducklake_sort_info WHERE begin_snapshot <= {fork};
INSERT INTO {branch}.ducklake_sort_expression SELECT * FROM {source}.ducklake_sort_expression
 WHERE sort_id IN (SELECT sort_id FROM {branch}.ducklake_sort_info);

INSERT INTO {branch}.ducklake_column_mapping SELECT * FROM {source}.ducklake_column_mapping WHERE mapping_id < {next_file_id};
INSERT INTO {branch}.ducklake_name_mapping SELECT * FROM {source}.ducklake_name_mapping WHERE mapping_id < {next_file_id};

INSERT INTO {branch}.ducklake_table_stats (table_id, record_count, next_row_id, file_size_bytes)
SELECT table_id, record_count, greatest(next_row_id, {row_base}), file_size_bytes FROM {source}.ducklake_table_stats;
-- DuckDB would number the rows of a table without statistics from 0 on.
INSERT INTO {branch}.ducklake_table_stats (table_id, record_count, next_row_id, file_size_bytes)
SELECT t.table_id, 0, {row_base}, 0 FROM {branch}.ducklake_table t
 WHERE t.end_snapshot IS NULL AND NOT EXISTS (SELECT FROM {branch}.ducklake_table_stats s WHERE s.table_id = t.table_id)
""")

COPY_NESTING = sql.SQL("""
UPDATE {branch}.ducklake_schema c SET parent_schema_id = s.parent_schema_id FROM {source}.ducklake_schema s WHERE s.schema_id = c.schema_id;
INSERT INTO {branch}.ducklake_view_column_tag (view_id, column_name, begin_snapshot, end_snapshot, key, value)
SELECT view_id, column_name, begin_snapshot, CASE WHEN end_snapshot > {fork} THEN NULL ELSE end_snapshot END, key, value
  FROM {source}.ducklake_view_column_tag WHERE begin_snapshot <= {fork}
""")


def copy_tables(conn: psycopg.Connection, lake_format: LakeFormat, names: Mapping[str, sql.Composable]) -> None:
    """Copy the tables that a branch has as tables, as of the fork point."""
    conn.execute(COPY_TABLES.format(**names))
    if lake_format.nests_schemas:
        conn.execute(COPY_NESTING.format(**names))


# The newest table for inlined rows of each table that was altered: without it DuckDB makes one of a number that no change of the columns
# has, and reads its rows by the first columns of the table.
SELECT_NEEDED = sql.SQL("""
WITH newest AS (
    SELECT DISTINCT ON (r.table_id) r.table_id, r.table_name
      FROM {source}.ducklake_inlined_data_tables r
     WHERE r.schema_version <= {schema_version} ORDER BY r.table_id, r.schema_version DESC
)
SELECT n.table_name
  FROM newest n
  JOIN {branch}.ducklake_table t ON t.table_id = n.table_id AND t.end_snapshot IS NULL
 WHERE n.table_id IN (SELECT table_id FROM {branch}.ducklake_schema_versions GROUP BY table_id HAVING count(*) > 1)
""")

# The lake may have dropped that table since an older fork point. Rows of such tables go to files at once.
STOP_INLINING = sql.SQL("""
WITH altered AS (
    SELECT v.table_id, max(v.schema_version) AS schema_version
      FROM {branch}.ducklake_schema_versions v GROUP BY v.table_id HAVING count(*) > 1
), without AS (
    SELECT a.table_id FROM altered a
      JOIN {branch}.ducklake_table t ON t.table_id = a.table_id AND t.end_snapshot IS NULL
     WHERE NOT EXISTS (SELECT FROM {branch}.ducklake_inlined_data_tables r
                        WHERE r.table_id = a.table_id AND r.schema_version >= a.schema_version)
), removed AS (
    DELETE FROM {branch}.ducklake_metadata
     WHERE key = 'data_inlining_row_limit' AND scope = 'table' AND scope_id IN (SELECT table_id FROM without)
)
INSERT INTO {branch}.ducklake_metadata (key, value, scope, scope_id)
SELECT 'data_inlining_row_limit', '0', 'table', table_id FROM without
""")


def _copy_inlined(conn: psycopg.Connection, claim: _Claim, names: Mapping[str, sql.Composable]) -> None:
    """Copy the inlined rows and deletes of the fork point. Each table of them takes a statement of DDL; empty ones are left out."""
    needed = {name for (name,) in conn.execute(SELECT_NEEDED.format(**names)).fetchall()}
    for name, has_deletes in conn.execute(SELECT_INLINED, {"schema": claim.source}).fetchall():
        copy, original = sql.Identifier(claim.schemas.branch, name), sql.Identifier(claim.source, name)
        if name not in needed and not has_inlined(conn, original, names, has_deletes=has_deletes):
            continue
        conn.execute(sql.SQL("CREATE TABLE {} (LIKE {} INCLUDING ALL)").format(copy, original))
        conn.execute(format_copying(read_columns(conn, claim.source, name), copy, original, names, has_deletes=has_deletes))
        if not has_deletes:
            registered = "INSERT INTO {branch}.ducklake_inlined_data_tables SELECT * FROM {source}.ducklake_inlined_data_tables"
            conn.execute(sql.SQL(registered + " WHERE table_name = {name}").format(**names, name=sql.Literal(name)))
    conn.execute(STOP_INLINING.format(**names))


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
    if drop_deleted(conn, lake_schema):
        raise BadRequest("A session still uses a deleted branch of the lake; end it, and try again.")
    for _ in range(tries):
        try:
            with conn.transaction():
                lock_tables(conn, read_repository_script(), "ACCESS EXCLUSIVE")
                drop_spare(conn, lake_schema)
                drop_objects(conn, read_repository_script())
        except psycopg.errors.LockNotAvailable:
            time.sleep(LOCK_PAUSE_S)
        else:
            return
    raise ServiceUnavailable(NEVER_IDLE)
