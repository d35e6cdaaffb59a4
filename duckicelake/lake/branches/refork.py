"""After a merge or reset the branch goes on from the lake's newest snapshot: with its rows, no rows of its own, and new ranges of ids.

A branch that is merged with its parent branch goes on from that one's, with a copy of its rows. In a rebase it gets rows of its own again
afterwards. `merge` and `reset` call it in their transaction, under the locks of both. After a merge the lake, or the parent branch, goes on
with the ids of the branch's old ranges. Sessions of DuckDB that are open on the branch find the next snapshot id taken, and conflict with
what the lake changed, with what the branch forgets, and with names that are taken by now: the branch's first lake snapshot names all of it.
Files of the old ranges stay in the branch's DATA_PATH; those that the branch forgets are scheduled for deletion on the lake or the parent
branch, and nothing is removed from the object store.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import psycopg
from psycopg import sql

from duckicelake.lake.branches.create import (
    CHANGE_SETTINGS,
    FOLDER,
    ROW_ID_BITS,
    SELECT_NEEDED,
    SHOW_BRANCH,
    SHOW_LAKE,
    STOP_INLINING,
    STRIDE_BITS,
    build_branch_path,
    copy_own_rows,
    copy_tables,
    to_uri,
)
from duckicelake.lake.branches.layout import (
    NO_DATA_FILE,
    SELECT_INLINED,
    VIEWED,
    build_moved_path,
    format_copying,
    has_inlined,
    list_copied,
    read_columns,
)
from duckicelake.lake.branches.merge_write import Head
from duckicelake.lake.branches.notes import COPY_NOTES
from duckicelake.lake.branches.registry import Branch, MergePoint, list_branches
from duckicelake.lake.branches.spare import copy_large
from duckicelake.lake.changes import Change, format_changes, quote_names
from duckicelake.lake.lake_format import SCHEMA_NAMES
from duckicelake.lake.reader_views import ReadMember
from duckicelake.lake.readers import refresh_views

Version = tuple[int, int]
"""The id of an object, and the `begin_snapshot` of its row."""

# The row that stands for kept files begins after every lake snapshot.
SELECT_LIVE = sql.SQL("""
WITH live AS (
    SELECT s.schema_id, s.begin_snapshot, {names} AS names
      FROM {b}.ducklake_schema s WHERE s.end_snapshot IS NULL AND s.begin_snapshot < {placeholder}
)
SELECT schema_id, begin_snapshot, 'created_schema', names, NULL FROM live WHERE names IS NOT NULL
 UNION ALL
SELECT t.table_id, t.begin_snapshot, 'created_table', s.names, t.table_name
  FROM {b}.ducklake_table t JOIN live s USING (schema_id) WHERE t.end_snapshot IS NULL
 UNION ALL
SELECT v.view_id, v.begin_snapshot, 'created_view', s.names, v.view_name
  FROM {b}.ducklake_view v JOIN live s USING (schema_id) WHERE v.end_snapshot IS NULL
 UNION ALL
SELECT m.macro_id, m.begin_snapshot, 'created_scalar_macro', s.names, m.macro_name
  FROM {b}.ducklake_macro m JOIN live s USING (schema_id) WHERE m.end_snapshot IS NULL
 ORDER BY 1, 2
""")


def read_shown(conn: psycopg.Connection, branch: str, fork_snapshot_id: int) -> Set[Version]:
    """Return the versions of objects that the branch has shown ever since its fork point."""
    return {version for version in _read_live(conn, branch) if version[1] <= fork_snapshot_id}


def list_arrivals(conn: psycopg.Connection, branch: str, shown: Set[Version]) -> list[Change]:
    """Return entries for the objects that the branch shows now and that are not among those it has shown ever since.

    An object that the branch had dropped or renamed is one of them: a name that was free, for however short, may be taken by then.
    """
    return [change for version, change in _read_live(conn, branch).items() if version not in shown]


def _read_live(conn: psycopg.Connection, branch: str) -> Mapping[Version, Change]:
    schema = sql.Identifier(branch)
    names = {"b": schema, "names": sql.SQL(SCHEMA_NAMES).format(lake=sql.SQL("{}.").format(schema))}
    rows = conn.execute(SELECT_LIVE.format(**names, placeholder=NO_DATA_FILE)).fetchall()
    return {
        (object_id, begin): Change(kind, quote_names(*levels, *(() if name is None else (name,))))
        for object_id, begin, kind, levels, name in rows
    }


NOTES = (
    *("table", "schema", "spec", "sort_order", "shape", "snapshot", "root", "hidden", "ref", "kept", "kept_file", "move"),
    *("merged_file", "merged_column_stats", "location", "metadata_log", "statistics", "registered", "view", "manifest", "staged"),
)
"""The notes that are the parent's again."""

REACHED = sql.SQL("""
WITH root AS (
    SELECT DISTINCT ON (t.table_id) t.table_id, {folder} AS folder
      FROM {member}.ducklake_table t JOIN {member}.ducklake_schema s ON s.schema_id = t.schema_id
     ORDER BY t.table_id, t.begin_snapshot DESC
), reached AS (
    SELECT data_file_id AS id, table_id, path, coalesce(path_is_relative, true) AS is_relative FROM {member}.own_data_file
     UNION ALL
    -- A negative id stands for a file that another member named.
    SELECT CASE WHEN delete_file_id < 0 THEN -1 - delete_file_id ELSE delete_file_id END, table_id, path, coalesce(path_is_relative, true)
      FROM {member}.own_delete_file
), whole AS (
    SELECT f.id, CASE WHEN f.is_relative THEN r.folder || f.path ELSE f.path END AS path
      FROM reached f LEFT JOIN root r ON r.table_id = f.table_id
)
""")
"""The files of a branch's own rows, with their full paths."""

COPY_REACHED = sql.SQL("""
CREATE TEMP TABLE merged_reached ON COMMIT DROP AS
{reached}
SELECT id, path FROM whole
 UNION
SELECT s.data_file_id, CASE WHEN coalesce(s.path_is_relative, true) THEN {data_path} ELSE '' END || s.path
  FROM {b}.ducklake_files_scheduled_for_deletion s
""")
# What the lake itself names is not offered to its clean-up; its triggers keep what other members name.
SCHEDULE_REACHED = sql.SQL("""
INSERT INTO {p}.ducklake_files_scheduled_for_deletion (data_file_id, path, path_is_relative, schedule_start)
SELECT DISTINCT ON (r.path) r.id, r.path, false, now() FROM merged_reached r
 WHERE r.path IS NOT NULL
   AND NOT EXISTS (SELECT FROM {p}.ducklake_data_file d WHERE d.data_file_id = r.id)
   AND NOT EXISTS (SELECT FROM {p}.ducklake_delete_file d WHERE d.delete_file_id = r.id)
   -- those that a rebase has given back to the branch
   AND NOT EXISTS (SELECT FROM {b}.own_data_file d WHERE d.data_file_id = r.id)
   AND NOT EXISTS (SELECT FROM {b}.own_delete_file d WHERE d.delete_file_id = r.id)
   AND NOT EXISTS (SELECT FROM {p}.ducklake_files_scheduled_for_deletion s WHERE s.path = r.path)
""")

# The branch keeps its DATA_PATH, where files lie that other branches and tags read. It shows those that the lake has rows of.
# Rows that belong to no data file let the branch's orphan scan know the others, as the lake's triggers do it in `repository.sql`.
PIN_NAMED = sql.SQL("""
{reached}
INSERT INTO {b}.own_delete_file (delete_file_id, table_id, begin_snapshot, data_file_id, path, path_is_relative, format, delete_count,
                                 file_size_bytes)
SELECT DISTINCT ON (w.id) -1 - w.id, {placeholder}, 0, {placeholder}, w.path, false, 'parquet', 0, 0
  FROM whole w
 WHERE starts_with(w.path, {data_path})
   AND NOT EXISTS (SELECT FROM {b}.ducklake_data_file d WHERE d.data_file_id = w.id)
   AND NOT EXISTS (SELECT FROM {b}.ducklake_delete_file d WHERE d.delete_file_id IN (w.id, -1 - w.id))
""")
# The orphan scan joins tables and schemas; these begin after every lake snapshot and never end.
ADD_PINS_TABLE = sql.SQL("""
INSERT INTO {b}.ducklake_schema (schema_id, schema_uuid, begin_snapshot, schema_name, path, path_is_relative)
SELECT {placeholder}, gen_random_uuid(), {placeholder}, '', '/', false
 WHERE NOT EXISTS (SELECT FROM {b}.ducklake_schema WHERE schema_id = {placeholder});
INSERT INTO {b}.own_table (table_id, table_uuid, begin_snapshot, schema_id, table_name, path, path_is_relative)
SELECT {placeholder}, gen_random_uuid(), {placeholder}, {placeholder}, '', '/', false
 WHERE NOT EXISTS (SELECT FROM {b}.ducklake_table WHERE table_id = {placeholder})
""")

KEEP_VERSIONS = sql.SQL("""
CREATE TEMP TABLE merged_versions ON COMMIT DROP AS
SELECT n.table_id, n.metadata_version, n.location FROM {b}.iceberg_table n
""")
RAISE_VERSIONS = sql.SQL("""
UPDATE {b}.iceberg_table n SET metadata_version = greatest(n.metadata_version, k.metadata_version)
  FROM merged_versions k WHERE k.table_id = n.table_id AND k.location = n.location
""")

# No metadata file is written twice: tables that get the location of one that a rebase has left out go on with its numbers.
KEEP_LOCATIONS = sql.SQL("""
INSERT INTO {b}.iceberg_location (table_id, metadata_version, location)
SELECT k.table_id, k.metadata_version, k.location FROM merged_versions k
 WHERE k.metadata_version IS NOT NULL AND NOT EXISTS (SELECT FROM {b}.iceberg_table n WHERE n.table_id = k.table_id)
ON CONFLICT DO NOTHING
""")

FOLLOW_SNAPSHOTS = sql.SQL("""
UPDATE {b}.ducklake_snapshot_changes SET changes_made = %(changes)s, commit_message = %(message)s WHERE snapshot_id = {base};
""")
# A transaction of DuckDB that is open on the branch finds this id taken.
TAKE_NEXT_ID = sql.SQL("""
INSERT INTO {b}.ducklake_snapshot (snapshot_id, snapshot_time, schema_version, next_catalog_id, next_file_id)
SELECT {next}, s.snapshot_time, s.schema_version, s.next_catalog_id, s.next_file_id FROM {b}.ducklake_snapshot s
 WHERE s.snapshot_id = (SELECT max(snapshot_id) FROM {b}.ducklake_snapshot WHERE snapshot_id < {next})
   AND NOT EXISTS (SELECT FROM {b}.ducklake_snapshot WHERE snapshot_id = {next});
INSERT INTO {b}.ducklake_snapshot_changes (snapshot_id, author, commit_message)
SELECT {next}, 'duckicelake', {message} WHERE NOT EXISTS (SELECT FROM {b}.ducklake_snapshot_changes WHERE snapshot_id = {next})
""")

# Files that the branch's clients wrote are the lake's now: keys for the branch open another location from here on.
MOVE_OBJECTS = sql.SQL("""
UPDATE {b}.branch_fork SET iceberg_path = {iceberg_path};
UPDATE {b}.iceberg_setting SET value = {iceberg_path} WHERE key = 'iceberg_path'
""")
UPDATE_BRANCH = sql.SQL("""
UPDATE {r}.iceberg_branch SET number = {number}, fork_snapshot_id = {fork}, parent = {parent}, iceberg_path = {iceberg_path}
 WHERE number = {old};
UPDATE {r}.iceberg_branch_copy SET number = {number} WHERE number = {old};
INSERT INTO {b}.iceberg_setting (key, value) VALUES ('forked_at', clock_timestamp()::text)
ON CONFLICT (key) DO UPDATE SET value = excluded.value
""")


@dataclass(frozen=True, slots=True)
class Restart:
    """A new beginning of a branch at the newest snapshot of the lake, or of its parent branch (`target` of the merge's point).

    `head`, `lake`: the newest snapshots of the branch and of the target. `changes`: what the target changed
    since the fork point, and what the branch forgets. `keeps_files`: the branch gets its own files back and keeps its folder; the caller
    calls `forget_rest` afterwards.
    """

    head: Head
    lake: Head
    changes: Sequence[Change]
    keeps_files: bool = False


def refork(conn: psycopg.Connection, point: MergePoint, branch: Branch, restart: Restart) -> None:
    """Let the branch go on from the newest snapshot of the point's target."""
    row = conn.execute(
        sql.SQL("SELECT nextval(format('%I.iceberg_branch_number', {})::regclass)").format(sql.Literal(point.repository))
    ).fetchone()
    assert row is not None
    names = _build_names(conn, point, branch, row[0], restart)
    if restart.keeps_files:
        names |= {"iceberg_path": sql.Literal(branch.iceberg_path), "branch_uri": sql.Literal(to_uri(branch.iceberg_path))}
    conn.execute(CHANGE_SETTINGS.format(repository=names["r"]))
    conn.execute(COPY_REACHED.format(**names, reached=_format_reached(point.source)))
    conn.execute(KEEP_VERSIONS.format(**names))
    before = read_shown(conn, point.source, point.fork_snapshot_id)
    _empty(conn, point, kept=("location",) if restart.keeps_files else ())
    conn.execute(MOVE_OBJECTS.format(**names))
    conn.execute((SHOW_BRANCH if point.has_parent_branch else SHOW_LAKE).format(**names))
    if point.has_parent_branch:
        copy_own_rows(conn, point.source, point.target, names)
    copy_large(conn, names, with_bounds=True)
    copy_tables(conn, point.lake_format, names)
    _copy_inlined(conn, point, names)
    conn.execute(COPY_NOTES.format(**names))
    conn.execute(RAISE_VERSIONS.format(**names))
    message = f"branch {branch.name} goes on from snapshot {restart.lake.snapshot_id} of {point.parent_name}"
    # In capitals: DuckDB reads entries in any case, and the server takes none of these for a snapshot of a table.
    named = [*list_arrivals(conn, point.source, before), *restart.changes]
    shown = format_changes(Change(change.kind.upper(), change.value) for change in named)
    conn.execute(FOLLOW_SNAPSHOTS.format(**names), {"changes": shown, "message": message})
    conn.execute(TAKE_NEXT_ID.format(**names, next=sql.Literal(restart.head.snapshot_id + 1)))
    conn.execute(UPDATE_BRANCH.format(**names))
    if not restart.keeps_files:
        _forget(conn, point, branch)


def forget_rest(conn: psycopg.Connection, point: MergePoint, branch: Branch) -> None:
    """Let the branch forget what it has not got back: its files, and tables, whose locations it remembers."""
    conn.execute(KEEP_LOCATIONS.format(**point.names))
    _forget(conn, point, branch)


def _forget(conn: psycopg.Connection, point: MergePoint, branch: Branch) -> None:
    """Schedule, on the lake or the parent branch, the files that the branch reached before and that neither of them names now."""
    names = {**point.names, "data_path": sql.Literal(branch.data_path)}
    conn.execute(SCHEDULE_REACHED.format(**names))
    _pin_named(conn, branch, names)


def _format_reached(member: str) -> sql.Composed:
    return REACHED.format(member=sql.Identifier(member), folder=FOLDER.format(source=sql.Identifier(member)))


def _pin_named(conn: psycopg.Connection, branch: Branch, names: Mapping[str, sql.Composable]) -> None:
    """Let the branch's orphan scan know the files below its DATA_PATH that other branches and tags name."""
    found = 0
    for member in list_branches(conn):
        if member.schema_name != branch.schema_name:
            pinning = PIN_NAMED.format(**names, reached=_format_reached(member.schema_name), placeholder=NO_DATA_FILE)
            found += conn.execute(pinning).rowcount
    if found:
        conn.execute(ADD_PINS_TABLE.format(**names, placeholder=NO_DATA_FILE))


def _build_names(conn: psycopg.Connection, point: MergePoint, branch: Branch, number: int, restart: Restart) -> dict[str, sql.Composable]:
    lake = restart.lake
    paths = sql.SQL("SELECT b.lake_iceberg_path, k.lake_iceberg_path FROM {b}.branch_fork b, {folders} k")
    row = conn.execute(paths.format(**point.names, folders=point.folders)).fetchone()
    assert row is not None
    source = sql.Identifier(point.target)
    message = f"branch {branch.name} of {point.parent_name} at snapshot {lake.snapshot_id}"
    iceberg_path = build_branch_path(row[0], number)
    return {
        **point.names,
        "source": source,
        "branch": sql.Identifier(point.source),
        "fork": sql.Literal(lake.snapshot_id),
        "next_file_id": sql.Literal(lake.next_file_id),
        "next_catalog_id": sql.Literal(lake.next_catalog_id),
        "schema_version": sql.Literal(lake.schema_version),
        "base": sql.Literal(number << STRIDE_BITS),
        "row_base": sql.Literal(number << ROW_ID_BITS),
        "message": sql.Literal(message),
        "source_uri": sql.Literal(to_uri(row[1])),
        "branch_uri": sql.Literal(to_uri(iceberg_path)),
        "iceberg_path": sql.Literal(iceberg_path),
        "data_path": sql.Literal(branch.data_path),
        "folder": FOLDER.format(source=source),
        "moved_path": build_moved_path(sql.SQL("s"), point.source),
        "number": sql.Literal(number),
        "old": sql.Literal(branch.number),
        "parent": sql.Literal(point.target),
    }


def _empty(conn: psycopg.Connection, point: MergePoint, kept: Sequence[str]) -> None:
    """Delete everything that the branch has of its own or as a copy, but for some notes."""
    # Notes first: the triggers on rows keep files that notes name.
    names = [f"iceberg_{name}" for name in NOTES if name not in kept]
    names += [f"{prefix}_{table.name}" for table in VIEWED for prefix in ("own", "gone")]
    names += ["own_iceberg_file", "branch_root", "branch_removed", *(f"ducklake_{name}" for name in list_copied(point.lake_format))]
    conn.execute(sql.SQL("DELETE FROM {} WHERE key = 'restored_max_bytes'").format(sql.Identifier(point.source, "iceberg_setting")))
    # The views show nothing meanwhile: a trigger keeps the schemas that rows of tables name.
    fork = sql.Identifier(point.source, "branch_fork")
    conn.execute(sql.SQL("UPDATE {} SET fork_snapshot_id = -1, next_file_id = 0, next_catalog_id = 0").format(fork))
    for name in names:
        conn.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(point.source, name)))


def _copy_inlined(conn: psycopg.Connection, point: MergePoint, names: Mapping[str, sql.Composable]) -> None:
    """Copy inlined rows and deletes of the lake; tables of the branch that have the same columns are used again."""
    mine, theirs = (
        {row[0]: row[1] for row in conn.execute(SELECT_INLINED, {"schema": schema}).fetchall()} for schema in (point.source, point.target)
    )
    for name in mine:
        is_same = name in theirs and _read_types(conn, point.source, name) == _read_types(conn, point.target, name)
        _clear(conn, point.relation(name, on_branch=True), drops=not is_same, must_drop=name in theirs and not is_same)
    needed = {name for (name,) in conn.execute(SELECT_NEEDED.format(**names)).fetchall()}
    for name, has_deletes in theirs.items():
        copy, original = point.relation(name, on_branch=True), point.relation(name, on_branch=False)
        if name not in needed and not has_inlined(conn, original, names, has_deletes=has_deletes):
            continue
        conn.execute(sql.SQL("CREATE TABLE IF NOT EXISTS {} (LIKE {} INCLUDING ALL)").format(copy, original))
        conn.execute(format_copying(read_columns(conn, point.target, name), copy, original, names, has_deletes=has_deletes))
        if not has_deletes:
            registered = (
                "INSERT INTO {b}.ducklake_inlined_data_tables SELECT * FROM {p}.ducklake_inlined_data_tables WHERE table_name = {name}"
            )
            conn.execute(sql.SQL(registered).format(**point.names, name=sql.Literal(name)))
    conn.execute(STOP_INLINING.format(**names))
    refresh_views(conn, ReadMember(point.source, point.repository))


def _clear(conn: psycopg.Connection, relation: sql.Identifier, *, drops: bool, must_drop: bool) -> None:
    """Empty a table of inlined rows, and drop it if no session reads it: nothing registers it any more.

    Raises: psycopg.errors.LockNotAvailable: it must be dropped, for the lake has another one of that name, and a session reads it
    """
    if drops:
        try:
            with conn.transaction():
                conn.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE NOWAIT").format(relation))
                conn.execute(sql.SQL("DROP TABLE {}").format(relation))
                return
        except psycopg.errors.LockNotAvailable:
            if must_drop:
                raise
    conn.execute(sql.SQL("DELETE FROM {}").format(relation))


SELECT_TYPES = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
 WHERE a.attrelid = format('%%I.%%I', %(schema)s::text, %(name)s::text)::regclass AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum
"""


def _read_types(conn: psycopg.Connection, schema: str, name: str) -> Sequence[tuple[str, str]]:
    return conn.execute(SELECT_TYPES, {"schema": schema, "name": name}).fetchall()
