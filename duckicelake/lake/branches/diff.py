"""The difference between the newest states of two members of a repository: what the second has that the first has not, and the reverse.

`catalog.repositories` and `commands.branches` call it in a read transaction of theirs; after the command has read rows, it compares the
files again in a second one. Ids of members are disjoint, so a table, view or file is the same on both sides if its id is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import sql

from duckicelake.lake.branches.layout import (
    FOLDER,
    SELECT_INLINED,
    name_inlined,
    read_format,
)
from duckicelake.lake.lake_format import SHOWN_SCHEMA_NAME

MADE, DROPPED, RENAMED, CHANGED, REPLACED = "made", "dropped", "renamed", "changed", "replaced"


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """A column that was made, dropped or changed: its definition on both sides."""

    change: str
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """A namespace, table or view that differs. `old_name`: what the first side calls it, if it was renamed.

    The rest is for tables. A file that was compacted counts on both sides, with its rows. `ids`: the object's id on both sides; names of
    two objects may be the same text, as those of `"a.b".c` and `a."b.c"`.
    """

    change: str
    name: str
    old_name: str | None = None
    columns: Sequence[ColumnChange] = ()
    properties: Sequence[str] = ()
    layout: Sequence[str] = ()
    files_added: int = 0
    files_removed: int = 0
    rows_added: int = 0
    rows_deleted: int = 0
    rows: "RowChanges | None" = None
    ids: tuple[int | None, int | None] = field(default=(None, None), compare=False)


Row = Mapping[str, Any]
"""A row as JSON shows it, by the names of its columns."""


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Rows that the second side has more often than the first, and the reverse, in the order of their values.

    `has_more_*`: there are more than were asked for.
    """

    added: Sequence[Row] = ()
    deleted: Sequence[Row] = ()
    has_more_added: bool = False
    has_more_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between two members, by kind of object and by name."""

    namespaces: Sequence[ObjectChange] = ()
    tables: Sequence[ObjectChange] = ()
    views: Sequence[ObjectChange] = ()

    @property
    def is_empty(self) -> bool:
        """True if both are the same."""
        return not (self.namespaces or self.tables or self.views)


def name_member(member: str) -> dict[str, sql.Composable]:
    """Return the names in statements about a member: its schema, and the name of a namespace `s` of it."""
    schema = sql.Identifier(member)
    return {"member": schema, "name": sql.SQL(SHOWN_SCHEMA_NAME).format(lake=sql.SQL("{}.").format(schema))}


# Text of statements that name other schemas than the search path's. The rows of `old` are the first side's alone, or as it has them.
SELECT_NAMESPACES = sql.SQL("""
SELECT s.schema_id, '' AS namespace, {name}, '' AS definition FROM {member}.ducklake_schema s WHERE s.end_snapshot IS NULL
""")
SELECT_TABLES = sql.SQL("""
SELECT t.table_id, {name}, t.table_name, '' AS definition
  FROM {member}.ducklake_table t JOIN {member}.ducklake_schema s ON s.schema_id = t.schema_id
 WHERE t.end_snapshot IS NULL AND s.end_snapshot IS NULL AND t.begin_snapshot < 9223372036854775807
""")
SELECT_VIEWS = sql.SQL("""
SELECT v.view_id, {name}, v.view_name, concat_ws(' ', v.column_aliases, v.sql)
  FROM {member}.ducklake_view v JOIN {member}.ducklake_schema s ON s.schema_id = v.schema_id
 WHERE v.end_snapshot IS NULL AND s.end_snapshot IS NULL
""")

LIVE_COLUMNS = sql.SQL("""
SELECT table_id, column_id, parent_column, column_name,
       column_type || CASE WHEN nulls_allowed THEN '' ELSE ' NOT NULL' END
       || CASE WHEN nullif(default_value, 'NULL') IS NULL THEN '' ELSE ' DEFAULT ' || default_value END
       || CASE WHEN initial_default IS NULL THEN '' ELSE ' (rows before: ' || initial_default || ')' END
  FROM {member}.ducklake_column WHERE end_snapshot IS NULL
""")
LIVE_PROPERTIES = sql.SQL("""
SELECT object_id, key, value FROM {member}.ducklake_tag WHERE end_snapshot IS NULL AND value IS NOT NULL
 UNION ALL
SELECT table_id, key || ' of column ' || column_id, value FROM {member}.ducklake_column_tag WHERE end_snapshot IS NULL AND value IS NOT NULL
""")
LIVE_LAYOUT = sql.SQL("""
SELECT i.table_id, 'partitioning', coalesce(string_agg(c.transform || ':' || c.column_id, ',' ORDER BY c.partition_key_index), '')
  FROM {member}.ducklake_partition_info i
  LEFT JOIN {member}.ducklake_partition_column c ON c.partition_id = i.partition_id AND c.table_id = i.table_id
 WHERE i.end_snapshot IS NULL GROUP BY i.table_id
 UNION ALL
SELECT i.table_id, 'sorting', string_agg(concat_ws(' ', e.expression, e.sort_direction, e.null_order), ',' ORDER BY e.sort_key_index)
  FROM {member}.ducklake_sort_info i JOIN {member}.ducklake_sort_expression e ON e.sort_id = i.sort_id
 WHERE i.end_snapshot IS NULL GROUP BY i.table_id
""")
SELECT_ONE_SIDED = sql.SQL("""
(SELECT 0 AS side, * FROM ({old} EXCEPT {new}) a) UNION ALL (SELECT 1 AS side, * FROM ({new} EXCEPT {old}) b) ORDER BY 1, 2, 3
""")

# Deletes are compared one by one: files with as many deletes may have other ones. The folder of a table is that of the snapshot.
LIST_FILES = sql.SQL("""
WITH deletes AS (
    SELECT d.data_file_id, sum(d.delete_count) AS delete_count, string_agg(d.delete_file_id::text, ',' ORDER BY d.delete_file_id) AS deletes
      FROM {member}.ducklake_delete_file d
     WHERE d.begin_snapshot <= {at} AND (d.end_snapshot IS NULL OR d.end_snapshot > {at}) GROUP BY d.data_file_id
), roots AS (
    SELECT t.table_id, {folder} AS root
      FROM {source}.ducklake_table t JOIN {source}.ducklake_schema s ON s.schema_id = t.schema_id
     WHERE t.begin_snapshot <= {at} AND (t.end_snapshot IS NULL OR t.end_snapshot > {at})
       AND s.begin_snapshot <= {at} AND (s.end_snapshot IS NULL OR s.end_snapshot > {at})
)
SELECT f.table_id, f.data_file_id, f.record_count - coalesce(d.delete_count, 0) - coalesce(i.delete_count, 0) AS row_count,
       concat_ws(';', coalesce(d.deletes, ''), coalesce(i.deletes, '')) AS deletes,
       CASE WHEN coalesce(f.path_is_relative, true) THEN r.root ELSE '' END || f.path AS path
  FROM {member}.ducklake_data_file f
  LEFT JOIN roots r ON r.table_id = f.table_id
  LEFT JOIN deletes d ON d.data_file_id = f.data_file_id
  LEFT JOIN ({inlined_deletes}) i ON i.table_id = f.table_id AND i.file_id = f.data_file_id
 WHERE f.begin_snapshot <= {at} AND (f.end_snapshot IS NULL OR f.end_snapshot > {at})
""")
SELECT_FILES = sql.SQL("""
WITH old AS ({old}), new AS ({new})
SELECT coalesce(o.table_id, n.table_id), count(*) FILTER (WHERE o.table_id IS NULL), count(*) FILTER (WHERE n.table_id IS NULL),
       sum(greatest(coalesce(n.row_count, 0) - coalesce(o.row_count, 0), 0))::bigint,
       sum(greatest(coalesce(o.row_count, 0) - coalesce(n.row_count, 0), 0))::bigint
  FROM old o FULL JOIN new n ON n.table_id = o.table_id AND n.data_file_id = o.data_file_id
 WHERE o.deletes IS DISTINCT FROM n.deletes
 GROUP BY 1
""")
SELECT_INLINED_ROWS = sql.SQL("""
WITH old AS ({old}), new AS ({new})
SELECT coalesce(o.table_id, n.table_id), 0, 0, count(*) FILTER (WHERE o.table_id IS NULL), count(*) FILTER (WHERE n.table_id IS NULL)
  FROM old o FULL JOIN new n ON n.table_id = o.table_id AND n.row_id = o.row_id AND n.begin_snapshot = o.begin_snapshot
 WHERE o.table_id IS NULL OR n.table_id IS NULL
 GROUP BY 1
""")
NO_DELETES = sql.SQL("SELECT 0::bigint AS table_id, 0::bigint AS file_id, 0::bigint AS delete_count, '' AS deletes WHERE false")
NO_ROWS = sql.SQL("SELECT 0::bigint AS table_id, ''::text AS name, 0::bigint AS row_id, 0::bigint AS begin_snapshot WHERE false")
LIST_DELETES = sql.SQL("""
SELECT {table_id}::bigint, file_id, count(*), md5(string_agg(row_id::text, ',' ORDER BY row_id))
  FROM {relation} WHERE begin_snapshot <= {at} GROUP BY file_id
""")
LIST_ROWS = sql.SQL("""
SELECT {table_id}::bigint, {name}::text, {row_id}, {begin} FROM {relation}
 WHERE {begin} <= {at} AND ({end} IS NULL OR {end} > {at})
""")


@dataclass(frozen=True, slots=True)
class _NamedObject:
    """A namespace, table or view as one side has it; a namespace is in none."""

    namespace: str
    own_name: str
    definition: str

    @property
    def name(self) -> str:
        """The name that is shown."""
        return f"{self.namespace}.{self.own_name}" if self.namespace else self.own_name

    @property
    def key(self) -> tuple[str, str]:
        """The namespace and name, which no other object of its kind has."""
        return self.namespace, self.own_name


@dataclass(slots=True)
class _TableParts:
    """The parts of a table's change, while they are collected."""

    columns: list[ColumnChange] = field(default_factory=list[ColumnChange])
    properties: list[str] = field(default_factory=list[str])
    layout: list[str] = field(default_factory=list[str])
    counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0])


def read_diff(conn: psycopg.Connection, old: str, new: str) -> Diff:
    """Return the difference between two metadata schemas of one repository."""
    parts = _read_parts(conn, old, new)
    tables, views, namespaces = (
        [_read_objects(conn, query, member) for member in (old, new)] for query in (SELECT_TABLES, SELECT_VIEWS, SELECT_NAMESPACES)
    )
    changed_views = {object_id for object_id, part in parts.items() if part.properties}
    known = tables[0] | tables[1]
    changed = _compare(*tables)
    for table_id in parts:
        if table_id in known and table_id not in changed:
            changed[table_id] = ObjectChange(CHANGED, known[table_id].name, ids=(table_id, table_id))
    described = [_describe(change, parts.get(table_id)) for table_id, change in changed.items()]
    found = (
        _compare(*namespaces, touched=changed_views).values(),
        _pair(described, *tables),
        _pair(_compare(*views, touched=changed_views).values(), *views),
    )
    return Diff(*(sorted(each, key=lambda change: (change.name, change.change)) for each in found))


_Objects = Mapping[int, _NamedObject]
"""The objects of one kind that a side has, by id."""


def _read_objects(conn: psycopg.Connection, query: sql.SQL, member: str) -> dict[int, _NamedObject]:
    rows = conn.execute(query.format(**name_member(member))).fetchall()
    return {object_id: _NamedObject(*names) for object_id, *names in rows}


def _compare(old: _Objects, new: _Objects, *, touched: Iterable[int] = ()) -> dict[int, ObjectChange]:
    found = {object_id: ObjectChange(DROPPED, each.name, ids=(object_id, None)) for object_id, each in old.items() if object_id not in new}
    changed = set(touched)
    for object_id, each in new.items():
        both = (object_id, object_id)
        if object_id not in old:
            found[object_id] = ObjectChange(MADE, each.name, ids=(None, object_id))
        elif old[object_id].key != each.key:
            found[object_id] = ObjectChange(RENAMED, each.name, old[object_id].name, ids=both)
        elif old[object_id] != each or object_id in changed:
            found[object_id] = ObjectChange(CHANGED, each.name, ids=both)
    return found


def _pair(changes: Iterable[ObjectChange], old: _Objects, new: _Objects) -> list[ObjectChange]:
    """Return the changes; an object that was dropped, and another one made under its name, are one that was replaced."""
    each = list(changes)
    dropped = {old[change.ids[0]].key: change for change in each if change.ids[0] is not None and change.change == DROPPED}
    replaced = {new[change.ids[1]].key for change in each if change.ids[1] is not None and change.change == MADE} & dropped.keys()
    paired = list[ObjectChange]()
    for change in each:
        former, present = change.ids
        if change.change == MADE and present is not None and new[present].key in replaced:
            paired.append(_replace_dropped(change, dropped[new[present].key]))
        elif former is None or change.change != DROPPED or old[former].key not in replaced:
            paired.append(change)
    return paired


def _replace_dropped(made: ObjectChange, dropped: ObjectChange) -> ObjectChange:
    ids = (dropped.ids[0], made.ids[1])
    return replace(made, change=REPLACED, ids=ids, files_removed=dropped.files_removed, rows_deleted=dropped.rows_deleted)


def _describe(change: ObjectChange, parts: _TableParts | None) -> ObjectChange:
    if parts is None:
        return change
    added, removed, rows_added, rows_deleted = parts.counts
    has_details = change.change not in (MADE, DROPPED)
    return replace(
        change,
        columns=parts.columns if has_details else (),
        properties=sorted(set(parts.properties)) if has_details else (),
        layout=sorted(set(parts.layout)) if has_details else (),
        files_added=added,
        files_removed=removed,
        rows_added=rows_added,
        rows_deleted=rows_deleted,
    )


def _read_parts(conn: psycopg.Connection, old: str, new: str) -> dict[int, _TableParts]:
    found: dict[int, _TableParts] = {}
    definitions: dict[tuple[int, int], dict[int, tuple[str, str]]] = {}
    for side, table_id, column_id, _, name, definition in _read_one_sided(conn, LIVE_COLUMNS, old, new):
        definitions.setdefault((table_id, column_id), {})[side] = (name, definition)
    for (table_id, _), sides in definitions.items():
        found.setdefault(table_id, _TableParts()).columns.append(_compare_columns(sides))
    for _, table_id, name, _ in _read_one_sided(conn, LIVE_PROPERTIES, old, new):
        found.setdefault(table_id, _TableParts()).properties.append(name)
    for _, table_id, name, _ in _read_one_sided(conn, LIVE_LAYOUT, old, new):
        found.setdefault(table_id, _TableParts()).layout.append(name)
    for table_id, *counts in _read_counts(conn, old, new):
        parts = found.setdefault(table_id, _TableParts())
        parts.counts = [before + count for before, count in zip(parts.counts, counts, strict=True)]
    return found


def _compare_columns(sides: Mapping[int, tuple[str, str]]) -> ColumnChange:
    before, after = sides.get(0), sides.get(1)
    if before is None or after is None:
        name, definition = after or before or ("", "")
        return ColumnChange(MADE if before is None else DROPPED, name, before and definition, after and definition)
    change = RENAMED if before[0] != after[0] else CHANGED
    return ColumnChange(change, after[0], " ".join(before), " ".join(after))


def _read_one_sided(conn: psycopg.Connection, query: sql.SQL, old: str, new: str) -> list[tuple[Any, ...]]:
    sides = {"old": query.format(member=sql.Identifier(old)), "new": query.format(member=sql.Identifier(new))}
    return conn.execute(SELECT_ONE_SIDED.format(**sides)).fetchall()


Side = tuple[str, int]
"""A member's metadata schema, and the snapshot at which it is read."""


def _read_sides(conn: psycopg.Connection, old: str, new: str) -> tuple[Side, Side]:
    """Return both members at their newest snapshots."""
    return (old, _read_head(conn, old)), (new, _read_head(conn, new))


def _read_head(conn: psycopg.Connection, member: str) -> int:
    row = conn.execute(SELECT_HEAD.format(member=sql.Identifier(member))).fetchone()
    assert row is not None
    return row[0]


def _list_live(conn: psycopg.Connection, sides: tuple[Side, Side]) -> tuple[dict[str, sql.Composable], dict[str, sql.Composable]]:
    """Return the statements that list the files, and the inlined rows, of both sides."""
    files, rows, union = dict[str, sql.Composable](), dict[str, sql.Composable](), sql.SQL(" UNION ALL ")
    columns = name_inlined(read_format(conn, sides[0][0]))
    for key, (member, head) in zip(("old", "new"), sides, strict=True):
        at, schema = sql.Literal(head), sql.Identifier(member)
        deletes, inserts = [sql.Composed([NO_DELETES])], [sql.Composed([NO_ROWS])]
        for name, is_delete in conn.execute(SELECT_INLINED, {"schema": member}).fetchall():
            found, query = (deletes, LIST_DELETES) if is_delete else (inserts, LIST_ROWS)
            table_id, relation = sql.Literal(int(name.split("_")[3])), sql.Identifier(member, name)
            found.append(query.format(**columns, table_id=table_id, relation=relation, name=sql.Literal(name), at=at))
        folder = FOLDER.format(source=schema)
        files[key] = LIST_FILES.format(member=schema, source=schema, folder=folder, at=at, inlined_deletes=union.join(deletes))
        rows[key] = union.join(inserts)
    return files, rows


def _read_counts(conn: psycopg.Connection, old: str, new: str) -> list[tuple[int, ...]]:
    """Return (table id, files added, files removed, rows added, rows deleted), of files and of inlined rows."""
    files, rows = _list_live(conn, _read_sides(conn, old, new))
    return [*conn.execute(SELECT_FILES.format(**files)).fetchall(), *conn.execute(SELECT_INLINED_ROWS.format(**rows)).fetchall()]


@dataclass(frozen=True, slots=True)
class DiffColumn:
    """A column of a table: its id, its name, what older rows show in it, and the snapshots at which it was made or changed."""

    column_id: int
    name: str
    initial_default: str | None
    begins: frozenset[int]


@dataclass(frozen=True, slots=True)
class RowSource:
    """A table on one side: its names and columns, and the data files and tables of inlined rows whose rows the other side may not have.

    `former`: the snapshots at which columns of it were made or changed, by id, with those that were dropped.
    """

    table_id: int
    schema_name: str
    table_name: str
    columns: Sequence[DiffColumn]
    former: Mapping[int, frozenset[int]]
    files: Sequence[str]


DifferingFiles = Mapping[int, tuple[tuple[str, ...], tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class RowSources:
    """The tables whose rows may differ, by their ids, each as of the newest snapshot of its side."""

    sides: tuple[Side, Side]
    files: DifferingFiles
    old: Mapping[int, RowSource]
    new: Mapping[int, RowSource]


SELECT_HEAD = sql.SQL("SELECT max(snapshot_id) FROM {member}.ducklake_snapshot")

SELECT_DIFFERING_FILES = sql.SQL("""
WITH old AS ({old}), new AS ({new})
SELECT coalesce(o.table_id, n.table_id), o.path, n.path
  FROM old o FULL JOIN new n ON n.table_id = o.table_id AND n.data_file_id = o.data_file_id
 WHERE o.deletes IS DISTINCT FROM n.deletes
 ORDER BY 1, 2, 3
""")
SELECT_DIFFERING_ROWS = sql.SQL("""
WITH old AS ({old}), new AS ({new})
SELECT DISTINCT coalesce(o.table_id, n.table_id), o.name, n.name
  FROM old o FULL JOIN new n ON n.table_id = o.table_id AND n.row_id = o.row_id AND n.begin_snapshot = o.begin_snapshot
 WHERE o.table_id IS NULL OR n.table_id IS NULL
 ORDER BY 1, 2, 3
""")
SELECT_SOURCE_TABLES = sql.SQL("""
SELECT t.table_id, n.schema_name, t.table_name
  FROM {member}.ducklake_table t JOIN {member}.ducklake_schema n ON n.schema_id = t.schema_id
 WHERE t.end_snapshot IS NULL AND n.end_snapshot IS NULL AND t.table_id = ANY({ids})
""")
SELECT_SOURCE_COLUMNS = sql.SQL("""
SELECT c.table_id, c.column_id,
       max(c.column_name) FILTER (WHERE c.end_snapshot IS NULL),
       max(nullif(c.initial_default, 'NULL')) FILTER (WHERE c.end_snapshot IS NULL),
       array_agg(c.begin_snapshot), bool_or(c.end_snapshot IS NULL)
  FROM {member}.ducklake_column c
 WHERE c.parent_column IS NULL AND c.table_id = ANY({ids})
 GROUP BY c.table_id, c.column_id ORDER BY c.table_id, max(c.column_order) FILTER (WHERE c.end_snapshot IS NULL)
""")


def read_row_sources(conn: psycopg.Connection, old: str, new: str) -> RowSources:
    """Return the tables of two members whose rows may differ, each as of its member's newest snapshot."""
    sides = _read_sides(conn, old, new)
    files = read_differing_files(conn, sides)
    found = [_read_sources(conn, side[0], {table_id: each[place] for table_id, each in files.items()}) for place, side in enumerate(sides)]
    return RowSources(sides, files, *found)


def read_differing_files(conn: psycopg.Connection, sides: tuple[Side, Side]) -> DifferingFiles:
    """Return for each table the data files, and tables of inlined rows, of both sides whose rows may differ."""
    files, rows = _list_live(conn, sides)
    found: dict[int, tuple[set[str], set[str]]] = {}
    for table_id, *paths in conn.execute(SELECT_DIFFERING_FILES.format(**files)).fetchall():
        for side, path in zip(found.setdefault(table_id, (set(), set())), paths, strict=True):
            side.update(() if path is None else (path,))
    for table_id, *names in conn.execute(SELECT_DIFFERING_ROWS.format(**rows)).fetchall():
        for side in found.setdefault(table_id, (set(), set())):
            # DuckLake reads all rows of the table, of which both sides may have some.
            side.update(name for name in names if name is not None)
    return {table_id: (tuple(sorted(old)), tuple(sorted(new))) for table_id, (old, new) in found.items()}


def _read_sources(conn: psycopg.Connection, member: str, files: Mapping[int, Sequence[str]]) -> dict[int, RowSource]:
    names = {"member": sql.Identifier(member), "ids": sql.Literal(list(files))}
    columns, former = dict[int, list[DiffColumn]](), dict[int, dict[int, frozenset[int]]]()
    for table_id, column_id, name, default, begins, is_live in conn.execute(SELECT_SOURCE_COLUMNS.format(**names)).fetchall():
        former.setdefault(table_id, {})[column_id] = frozenset(begins)
        if is_live:
            columns.setdefault(table_id, []).append(DiffColumn(column_id, name, default, frozenset(begins)))
    return {
        table_id: RowSource(table_id, schema, table, columns.get(table_id, ()), former.get(table_id, {}), files[table_id])
        for table_id, schema, table in conn.execute(SELECT_SOURCE_TABLES.format(**names)).fetchall()
    }
