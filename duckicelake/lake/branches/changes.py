"""The changes of a branch and of its lake since the branch's fork point, read for a merge or a rebase; `merge_rules` decides by them.

`merge` calls it twice: without locks, for REST in a read transaction and for commands in none, and, if anything moved since, again under
the locks of both. `reset` calls it under these locks.

A version of a row of DuckLake's versioned tables is known by its key and its `begin_snapshot`: what was live at the fork point is compared
with what is live on either side. The branch's own files begin after the fork point, or, if a compaction has put them into the past, have
ids above the lake's counter at the fork point. Those of a branch that was rebased may have smaller ids than that.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from duckicelake.lake.branches.layout import (
    KINDS,
    SELECT_INLINED,
    VersionedKind,
    list_kinds,
)
from duckicelake.lake.branches.registry import MergePoint
from duckicelake.lake.changes import NOTES_KIND, parse_changes
from duckicelake.lake.lake_format import SCHEMA_NAME
from duckicelake.lake.writing.dropped import PROTECTION

PLACEHOLDER = (1 << 63) - 1
NO_PARENT = -1
SAME, AT_FORK, NOW, OTHER = "same", "fork", "now", "other"
"""Shapes of tables of inlined rows: one that the lake has or had, under the same name; another one with the columns of the fork point, or
with those that the branch has now; and one with columns in between.
"""


Version = tuple[int | str, ...]
"""The key of a row, and its `begin_snapshot`."""


@dataclass(slots=True)
class SideVersions:
    """The versions of rows of one kind that one side added and ended."""

    added: list[Version] = field(default_factory=list[Version])
    ended: list[Version] = field(default_factory=list[Version])

    def list_keys(self) -> set[tuple[int | str, ...]]:
        """Return the keys of all changed rows."""
        return {version[:-1] for version in (*self.added, *self.ended)}


@dataclass(slots=True)
class FileChanges:
    """The branch's changes of the data of one table, and those that the lake met with its own.

    `removed`, `cut`: files of the fork point that the branch replaced or removed, and those of which it deleted rows. `lost`: those of
    both that the lake has no longer; `met`: those that lost rows on the lake too. `unflushed`: files whose inlined deletes the lake has
    still, and the branch has flushed. `ended_rows`: inlined rows of the fork point that the branch ended or flushed; `lost_rows`: how
    many of them the lake ended or flushed too. `new_inlined`: the shapes of tables that have inlined rows of the branch.
    """

    added_count: int = 0
    added_rows: int = 0
    removed: list[int] = field(default_factory=list[int])
    cut: set[int] = field(default_factory=set[int])
    cut_by_files: set[int] = field(default_factory=set[int])
    has_inlined_deletes: bool = False
    lost: set[int] = field(default_factory=set[int])
    met: set[int] = field(default_factory=set[int])
    unflushed: set[int] = field(default_factory=set[int])
    new_inlined: dict[str, str] = field(default_factory=dict[str, str])
    ended_rows: dict[str, list[tuple[int, int]]] = field(default_factory=dict[str, list[tuple[int, int]]])
    lost_rows: int = 0

    @property
    def is_empty(self) -> bool:
        """True if the branch did nothing to the rows of the table."""
        changed = self.removed or self.cut or self.new_inlined or self.ended_rows or self.has_inlined_deletes
        return not (self.added_count or changed)

    @property
    def has_old_shapes(self) -> bool:
        """True if inlined rows of the branch have columns that the table has not had on the lake, and has no longer on the branch."""
        return OTHER in self.new_inlined.values()


@dataclass(slots=True)
class SideHistory:
    """The kinds of change in a side's lake snapshots since the fork point, by table id; `is_whole`: none of them has expired."""

    kinds: dict[int, set[str]]
    is_whole: bool


@dataclass(frozen=True, slots=True)
class LiveObject:
    """A live namespace, table, view or macro of one side. `schema_id`: of a namespace its parent, `NO_PARENT` at the top level."""

    kind: str
    object_id: int
    schema_id: int
    name: str


@dataclass(frozen=True, slots=True)
class Definition:
    """What Iceberg clients of one side made current of a table since the fork point: the ids and texts of schema, spec and sort order.

    `changed`: which of these are others than at the fork point, by the kind of row that DuckLake would have for them.
    """

    changed: frozenset[str]
    values: tuple[int | str | None, ...]


@dataclass(slots=True)
class Changes:
    """Everything by which a merge is decided.

    `main_data`: the tables whose rows or files the lake changed, with what the rows show of it. `equal`: what both sides have alike now, by
    kind: columns of a table, definitions of a view, values of a tag. `bucketed`: tables that a side has partitioned into buckets.
    `tables_with_refs`: tables that have Iceberg branches, tags or staged snapshots on the branch.
    `unfit`: tables whose new partitioning or sorting on a side names a column that the other side changed, by kind and that side.
    `protected`: tables and namespaces that the lake protects from being dropped. `namespace_tags`: by schema and key, the properties of
    namespaces that the branch made and the lake too; True: the lake's has the same value, False: another one, None: it has none.
    `definitions`: by side, the tables of which clients noted a schema, spec and sort order. `upgraded`: tables of which the branch's
    clients raised the format version.
    """

    point: MergePoint
    branch: dict[str, SideVersions]
    main: dict[str, SideVersions]
    files: dict[int, FileChanges]
    main_data: dict[int, set[str]]
    branch_history: SideHistory
    main_history: SideHistory
    branch_objects: list[LiveObject]
    main_objects: list[LiveObject]
    equal: Mapping[str, set[tuple[int | str, ...]]]
    bucketed: Mapping[str, set[int]]
    tables_with_refs: set[int]
    unfit: Mapping[tuple[str, str], set[int]]
    protected: set[int]
    namespace_tags: Mapping[tuple[int, str], bool | None]
    definitions: Mapping[str, Mapping[int, Definition]]
    upgraded: set[int]

    @property
    def is_empty(self) -> bool:
        """True if the branch changed nothing."""
        defined = any(each.changed for each in self.definitions[self.point.source].values())
        notes = self.tables_with_refs or defined or self.upgraded
        return not (self.files or notes or any(side.added or side.ended for side in self.branch.values()))


# Text of statements that name the schemas of both sides.
SELECT_VERSIONS = sql.SQL("""
SELECT {keys}, begin_snapshot, bool_or(source = 0) AS is_base, bool_or(source = 1) AS is_branch, bool_or(source = 2) AS is_main
  FROM (SELECT {keys}, begin_snapshot, 0 AS source FROM {p}.{t}
         WHERE begin_snapshot <= {n} AND (end_snapshot IS NULL OR end_snapshot > {n})
         UNION ALL
        -- rows that the lake, or the parent branch, has deleted since
        SELECT {keys}, begin_snapshot, 0 FROM {b}.{kept} WHERE begin_snapshot <= {n} AND (end_snapshot IS NULL OR end_snapshot > {n})
         UNION ALL SELECT {keys}, begin_snapshot, 1 FROM {b}.{t} WHERE end_snapshot IS NULL
         UNION ALL SELECT {keys}, begin_snapshot, 2 FROM {p}.{t} WHERE end_snapshot IS NULL) v
 WHERE begin_snapshot < {placeholder}
 GROUP BY {keys}, begin_snapshot
HAVING NOT (bool_or(source = 0) AND bool_or(source = 1) AND bool_or(source = 2))
""")

SELECT_OBJECTS = sql.SQL("""
SELECT 'schema', s.schema_id, coalesce((to_jsonb(s) ->> 'parent_schema_id')::bigint, {no_parent}), s.schema_name
  FROM {s}.ducklake_schema s WHERE s.end_snapshot IS NULL
 UNION ALL SELECT 'table', table_id, schema_id, table_name FROM {s}.ducklake_table WHERE end_snapshot IS NULL
 UNION ALL SELECT 'view', view_id, schema_id, view_name FROM {s}.ducklake_view WHERE end_snapshot IS NULL
 UNION ALL SELECT 'macro', macro_id, schema_id, macro_name FROM {s}.ducklake_macro WHERE end_snapshot IS NULL
""")

SELECT_EQUAL: Mapping[str, sql.SQL] = {
    "column": sql.SQL("""
        SELECT m.table_id FROM (SELECT table_id FROM {b}.ducklake_column WHERE begin_snapshot > {n} AND end_snapshot IS NULL
                                 UNION SELECT table_id FROM {p}.ducklake_column WHERE begin_snapshot > {n} AND end_snapshot IS NULL
                                 UNION SELECT table_id FROM {p}.ducklake_column WHERE end_snapshot > {n}) m
         WHERE NOT EXISTS (
            SELECT FROM (SELECT column_id, column_order, column_name, column_type, initial_default, default_value, nulls_allowed,
                                parent_column
                           FROM {b}.ducklake_column WHERE table_id = m.table_id AND end_snapshot IS NULL) c
              FULL JOIN (SELECT column_id, column_order, column_name, column_type, initial_default, default_value, nulls_allowed,
                                parent_column
                           FROM {p}.ducklake_column WHERE table_id = m.table_id AND end_snapshot IS NULL) d ON c.column_id = d.column_id
             WHERE c IS DISTINCT FROM d)"""),
    "tag": sql.SQL("""
        SELECT m.object_id, m.key FROM {b}.ducklake_tag m JOIN {p}.ducklake_tag t USING (object_id, key)
         WHERE m.end_snapshot IS NULL AND t.end_snapshot IS NULL AND m.value IS NOT DISTINCT FROM t.value"""),
    "column_tag": sql.SQL("""
        SELECT m.table_id, m.column_id, m.key FROM {b}.ducklake_column_tag m JOIN {p}.ducklake_column_tag t USING (table_id, column_id, key)
         WHERE m.end_snapshot IS NULL AND t.end_snapshot IS NULL AND m.value IS NOT DISTINCT FROM t.value"""),
    "view_column_tag": sql.SQL("""
        SELECT m.view_id, m.column_name, m.key
          FROM {b}.ducklake_view_column_tag m JOIN {p}.ducklake_view_column_tag t USING (view_id, column_name, key)
         WHERE m.end_snapshot IS NULL AND t.end_snapshot IS NULL AND m.value IS NOT DISTINCT FROM t.value"""),
    "view": sql.SQL("""
        SELECT m.view_id FROM {b}.ducklake_view m JOIN {p}.ducklake_view t USING (view_id, schema_id, view_name, sql, column_aliases)
         WHERE m.end_snapshot IS NULL AND t.end_snapshot IS NULL"""),
}
SELECT_BUCKETED = sql.SQL("""
SELECT i.table_id FROM {s}.ducklake_partition_info i
  JOIN {s}.ducklake_partition_column c ON c.partition_id = i.partition_id AND c.table_id = i.table_id
 WHERE i.end_snapshot IS NULL AND i.begin_snapshot > {n} AND c.transform LIKE 'bucket%%'
""")
SELECT_UNFIT: Mapping[str, sql.SQL] = {
    "partition_info": sql.SQL("""
        SELECT i.table_id FROM {s}.ducklake_partition_info i
          JOIN {s}.ducklake_partition_column c ON c.partition_id = i.partition_id AND c.table_id = i.table_id
          JOIN {s}.ducklake_column m ON m.table_id = c.table_id AND m.column_id = c.column_id AND m.end_snapshot IS NULL
         WHERE i.end_snapshot IS NULL AND i.begin_snapshot > {n}
           AND EXISTS (SELECT FROM {b}.ducklake_column k
                        WHERE k.table_id = m.table_id AND k.column_id = m.column_id AND k.begin_snapshot <= {n})
           AND NOT EXISTS (SELECT FROM {o}.ducklake_column t
                            WHERE t.table_id = m.table_id AND t.column_id = m.column_id AND t.end_snapshot IS NULL
                              AND (t.begin_snapshot <= {n} OR t.column_type = m.column_type))"""),
    # An expression of a sort order names columns by their names.
    "sort_info": sql.SQL("""
        SELECT i.table_id FROM {s}.ducklake_sort_info i
          JOIN {s}.ducklake_sort_expression e ON e.sort_id = i.sort_id AND e.table_id = i.table_id
          JOIN {s}.ducklake_column m ON m.table_id = i.table_id AND m.end_snapshot IS NULL
           AND position(lower(m.column_name) IN lower(e.expression)) > 0
         WHERE i.end_snapshot IS NULL AND i.begin_snapshot > {n}
           AND EXISTS (SELECT FROM {b}.ducklake_column k
                        WHERE k.table_id = m.table_id AND k.column_id = m.column_id AND k.begin_snapshot <= {n})
           AND NOT EXISTS (SELECT FROM {o}.ducklake_column t
                            WHERE t.table_id = m.table_id AND t.column_id = m.column_id AND t.end_snapshot IS NULL
                              AND (t.begin_snapshot <= {n} OR t.column_type = m.column_type AND t.column_name = m.column_name))"""),
}
SELECT_PROTECTED = sql.SQL("SELECT object_id FROM {s}.ducklake_tag WHERE key = {key} AND lower(value) = 'true' AND end_snapshot IS NULL")
SELECT_NAMESPACE_TAGS = sql.SQL("""
WITH mine AS (
    SELECT s.schema_id, lower({name_of_b}) AS name FROM {b}.ducklake_schema s WHERE s.end_snapshot IS NULL AND s.begin_snapshot > {n}
), theirs AS (
    SELECT s.schema_id, lower({name_of_p}) AS name FROM {p}.ducklake_schema s WHERE s.end_snapshot IS NULL
)
SELECT m.object_id, m.key, CASE WHEN t.key IS NOT NULL THEN m.value IS NOT DISTINCT FROM t.value END
  FROM {b}.ducklake_tag m
  JOIN mine s ON s.schema_id = m.object_id
  JOIN theirs o ON o.name = s.name AND o.schema_id <> s.schema_id
  LEFT JOIN {p}.ducklake_tag t ON t.object_id = o.schema_id AND t.key = m.key AND t.end_snapshot IS NULL
 WHERE m.end_snapshot IS NULL
""")
# A snapshot with a `wap.id` is staged until main is put there, or a snapshot of main says that it has the same files.
SELECT_REFS = sql.SQL("""
SELECT table_id FROM {s}.iceberg_ref WHERE name <> 'main'
 UNION
SELECT k.table_id FROM {s}.iceberg_kept k
 WHERE k.manifest_list IS NOT NULL AND k.json::json #> '{{summary,wap.id}}' IS NOT NULL
   AND NOT EXISTS (SELECT FROM {s}.iceberg_move m WHERE m.table_id = k.table_id AND m.snapshot_id = k.snapshot_id)
   AND NOT EXISTS (SELECT FROM {s}.iceberg_snapshot o
                    WHERE o.table_id = k.table_id
                      AND (o.client_snapshot_id = k.snapshot_id OR o.summary::json ->> 'source-snapshot-id' = k.snapshot_id::text
                           OR o.summary::json ->> 'published-wap-id' = k.json::json #>> '{{summary,wap.id}}'))
""")
# Where a table had no definition of a client's, DuckLake's own have the ids 0.
SELECT_DEFINITIONS = sql.SQL("""
WITH now AS (
    SELECT DISTINCT ON (table_id) * FROM {s}.iceberg_shape WHERE lake_snapshot_id > {n} ORDER BY table_id, lake_snapshot_id DESC
), fork AS (
    SELECT DISTINCT ON (table_id) * FROM {b}.iceberg_shape WHERE lake_snapshot_id <= {n} ORDER BY table_id, lake_snapshot_id DESC
)
SELECT n.table_id, n.schema_id <> coalesce(f.schema_id, 0), n.spec_id <> coalesce(f.spec_id, 0), n.order_id <> coalesce(f.order_id, 0),
       n.schema_id, c.json, n.spec_id, p.json, n.order_id, o.json
  FROM now n
  LEFT JOIN fork f ON f.table_id = n.table_id
  LEFT JOIN {s}.iceberg_schema c ON c.table_id = n.table_id AND c.schema_id = n.schema_id
  LEFT JOIN {s}.iceberg_spec p ON p.table_id = n.table_id AND p.spec_id = n.spec_id
  LEFT JOIN {s}.iceberg_sort_order o ON o.table_id = n.table_id AND o.order_id = n.order_id
""")
SELECT_UPGRADED = sql.SQL("""
SELECT m.table_id FROM {s}.iceberg_table m
  LEFT JOIN {p}.iceberg_table t ON t.table_id = m.table_id
 -- Clients may never have loaded the table from the lake.
 WHERE m.format_version > coalesce(t.format_version, 2)
""")

SELECT_HISTORY = sql.SQL("""
SELECT c.changes_made FROM {s}.ducklake_snapshot_changes c WHERE c.snapshot_id > {n} AND c.changes_made IS NOT NULL
   -- The branch's first snapshot after a merge names what the lake changed.
   AND c.snapshot_id <> (SELECT r.number << 32 FROM {r}.iceberg_branch r WHERE r.schema_name = {branch})
""")
SELECT_IS_WHOLE = sql.SQL("""
SELECT NOT EXISTS (SELECT FROM {s}.iceberg_change c WHERE c.kind = 'expire' AND c.changed_at > (
           SELECT coalesce((SELECT value::timestamptz FROM {b}.iceberg_setting WHERE key = 'forked_at'), r.created_at)
             FROM {r}.iceberg_branch r WHERE r.schema_name = {branch}))
""")

SELECT_ADDED = sql.SQL("""
SELECT table_id, count(*), sum(record_count)::bigint FROM {b}.own_data_file
 WHERE (data_file_id >= {nf} OR begin_snapshot > {n}) AND end_snapshot IS NULL GROUP BY table_id
""")
SELECT_REMOVED = sql.SQL("""
SELECT table_id, data_file_id FROM {b}.branch_removed
 WHERE data_file_id < {nf} AND begin_snapshot <= {n} AND (end_snapshot IS NULL OR end_snapshot > {n})
   -- A merge into the lake brings what the parent removed along.
   AND NOT (is_parents AND {has_parent_branch})
 UNION
SELECT table_id, data_file_id FROM {b}.own_data_file WHERE data_file_id < {nf} AND begin_snapshot <= {n} AND end_snapshot > {n}
""")
SELECT_CUT = sql.SQL("""
SELECT d.table_id, d.data_file_id FROM {b}.own_delete_file d
 WHERE (d.delete_file_id >= {nf} OR d.begin_snapshot > {n}) AND d.end_snapshot IS NULL AND d.data_file_id < {placeholder}
   AND NOT EXISTS (SELECT FROM {b}.own_data_file f
                    WHERE f.data_file_id = d.data_file_id AND (f.data_file_id >= {nf} OR f.begin_snapshot > {n}))
""")
SELECT_OWN = sql.SQL("SELECT data_file_id FROM {b}.own_data_file WHERE data_file_id >= {nf} OR begin_snapshot > {n}")
SELECT_LOST = sql.SQL("""
SELECT w.id FROM unnest(%(ids)s::bigint[]) AS w(id)
 WHERE NOT EXISTS (SELECT FROM {p}.ducklake_data_file f WHERE f.data_file_id = w.id AND f.end_snapshot IS NULL)
""")
SELECT_MET = sql.SQL("""
SELECT DISTINCT d.data_file_id FROM {p}.ducklake_delete_file d
 WHERE d.data_file_id = ANY(%(ids)s) AND d.end_snapshot IS NULL AND (d.delete_file_id >= {nf} OR d.begin_snapshot > {n})
""")

SELECT_MAIN_DATA = sql.SQL("""
SELECT table_id, CASE WHEN data_file_id >= {nf} OR begin_snapshot > {n} THEN 'append' ELSE 'delete' END
  FROM {p}.ducklake_data_file WHERE begin_snapshot > {n} OR end_snapshot > {n} OR data_file_id >= {nf}
 UNION
SELECT table_id, 'delete' FROM {p}.ducklake_delete_file
 WHERE (begin_snapshot > {n} OR delete_file_id >= {nf}) AND data_file_id < {placeholder}
 UNION
SELECT o.table_id, 'delete' FROM {b}.own_data_file o
 WHERE o.data_file_id < {nf} AND o.begin_snapshot <= {n} AND (o.end_snapshot IS NULL OR o.end_snapshot > {n})
   AND NOT EXISTS (SELECT FROM {p}.ducklake_data_file f WHERE f.data_file_id = o.data_file_id)
 UNION
-- files of which the branch has deleted its rows, and the lake too
SELECT m.table_id, 'delete' FROM {b}.branch_removed m
 WHERE m.data_file_id < {nf} AND m.begin_snapshot <= {n} AND (m.end_snapshot IS NULL OR m.end_snapshot > {n})
   AND NOT (m.is_parents AND {has_parent_branch})
   AND NOT EXISTS (SELECT FROM {p}.ducklake_data_file f WHERE f.data_file_id = m.data_file_id)
""")
# Files of the lake that a parent branch has deleted since are rows of neither branch.
SELECT_PARENT_REMOVED = sql.SQL("""
SELECT DISTINCT m.table_id, 'delete' FROM {p}.branch_removed m
 WHERE m.begin_snapshot <= {n} AND (m.end_snapshot IS NULL OR m.end_snapshot > {n})
   AND NOT EXISTS (SELECT FROM {b}.branch_removed c WHERE c.data_file_id = m.data_file_id AND c.is_parents)
""")

SELECT_CUT_INLINED = sql.SQL("SELECT DISTINCT file_id FROM {relation} WHERE begin_snapshot > {n}")
SELECT_MET_INLINED = sql.SQL("SELECT DISTINCT file_id FROM {relation} WHERE begin_snapshot > {n}")
COUNT_OLD_INLINED = sql.SQL("SELECT file_id, count(*) FROM {relation} WHERE begin_snapshot <= {n} GROUP BY file_id")
SELECT_INLINED_ROWS = sql.SQL("""
SELECT {row_id}, {begin}, {end} FROM {relation}
 WHERE {begin} > {n} AND {end} IS NULL OR {begin} <= {n} AND ({end} IS NULL OR {end} > {n})
""")
SELECT_SHAPES = sql.SQL("""
SELECT w.fork_version,
       (SELECT string_agg(c.column_id || ':' || c.begin_snapshot, ',' ORDER BY c.column_id) FROM {b}.ducklake_column c
         WHERE c.table_id = {table_id} AND c.begin_snapshot <= w.begin AND (c.end_snapshot IS NULL OR c.end_snapshot > w.begin)),
       (SELECT string_agg(c.column_id || ':' || c.begin_snapshot, ',' ORDER BY c.column_id) FROM {b}.ducklake_column c
         WHERE c.table_id = {table_id} AND c.begin_snapshot <= {n} AND (c.end_snapshot IS NULL OR c.end_snapshot > {n})),
       (SELECT string_agg(c.column_id || ':' || c.begin_snapshot, ',' ORDER BY c.column_id) FROM {b}.ducklake_column c
         WHERE c.table_id = {table_id} AND c.end_snapshot IS NULL)
  FROM (SELECT coalesce(
            (SELECT max(begin_snapshot) FROM {b}.ducklake_schema_versions WHERE table_id = {table_id} AND schema_version = {version}),
            (SELECT min(begin_snapshot) FROM {b}.ducklake_table WHERE table_id = {table_id})) AS begin,
               (SELECT max(schema_version) FROM {b}.ducklake_schema_versions WHERE table_id = {table_id} AND begin_snapshot <= {n})
            AS fork_version) w
""")
HAS_NEW_INLINED = sql.SQL("""
SELECT EXISTS (SELECT FROM {relation} WHERE {begin} > {n}), EXISTS (SELECT FROM {relation} WHERE {end} > {n})
""")


def read_changes(conn: psycopg.Connection, point: MergePoint) -> Changes:
    """Return what both sides changed since the fork point."""
    branch: dict[str, SideVersions] = {}
    main: dict[str, SideVersions] = {}
    kinds = list_kinds(point.lake_format)
    for kind in KINDS:
        branch[kind.name], main[kind.name] = _read_versions(conn, point, kind) if kind in kinds else (SideVersions(), SideVersions())
    reader = _FileReader(conn, point)
    history = _read_history(conn, point, point.source)
    objects = {side: _read_objects(conn, side) for side in (point.source, point.target)}
    return Changes(
        point,
        branch,
        main,
        reader.read_files(),
        reader.read_main_data(),
        history,
        _read_history(conn, point, point.target),
        objects[point.source],
        objects[point.target],
        {
            kind.name: set(conn.execute(SELECT_EQUAL[kind.name].format(**point.names)).fetchall()) if kind in kinds else set()
            for kind in KINDS
            if kind.name in SELECT_EQUAL
        },
        {side: _read_ids(conn, point, SELECT_BUCKETED, side) for side in (point.source, point.target)},
        _read_ids(conn, point, SELECT_REFS, point.source),
        _read_unfit(conn, point),
        _read_ids(conn, point, SELECT_PROTECTED, point.target, key=sql.Literal(PROTECTION)),
        _read_namespace_tags(conn, point),
        {side: _read_definitions(conn, point, side) for side in (point.source, point.target)},
        {each for each in _read_ids(conn, point, SELECT_UPGRADED, point.source) if _may_be_upgraded(history, each)},
    )


def _read_namespace_tags(conn: psycopg.Connection, point: MergePoint) -> dict[tuple[int, str], bool | None]:
    name = sql.SQL(SCHEMA_NAME)
    names = {f"name_of_{side}": name.format(lake=sql.SQL("{}.").format(point.names[side])) for side in ("b", "p")}
    return {(row[0], row[1]): row[2] for row in conn.execute(SELECT_NAMESPACE_TAGS.format(**point.names, **names)).fetchall()}


def _read_definitions(conn: psycopg.Connection, point: MergePoint, side: str) -> Mapping[int, Definition]:
    kinds = ("column", "partition_info", "sort_info")
    found: dict[int, Definition] = {}
    for table_id, *row in conn.execute(SELECT_DEFINITIONS.format(**point.names, s=sql.Identifier(side))).fetchall():
        changed = frozenset(kind for kind, is_changed in zip(kinds, row[:3], strict=True) if is_changed)
        found[table_id] = Definition(changed, tuple(row[3:]))
    return found


def _may_be_upgraded(history: SideHistory, table_id: int) -> bool:
    """Return False if no commit changed notes of the table: then its version was raised by publishing what DuckLake's rows need."""
    return not history.is_whole or NOTES_KIND in history.kinds.get(table_id, set())


def _read_ids(conn: psycopg.Connection, point: MergePoint, query: sql.SQL, side: str, **names: sql.Composable) -> set[int]:
    return {row[0] for row in conn.execute(query.format(**point.names, s=sql.Identifier(side), **names)).fetchall()}


def _read_unfit(conn: psycopg.Connection, point: MergePoint) -> dict[tuple[str, str], set[int]]:
    return {
        (kind, side): _read_ids(conn, point, query, side, o=sql.Identifier(other))
        for kind, query in SELECT_UNFIT.items()
        for side, other in ((point.source, point.target), (point.target, point.source))
    }


def _read_versions(conn: psycopg.Connection, point: MergePoint, kind: VersionedKind) -> tuple[SideVersions, SideVersions]:
    keys = sql.SQL(", ").join(sql.Identifier(name) for name in kind.key)
    # What a parent branch has deleted of the lake's rows, the branch still shows from the lake.
    kept = "own_" if kind.is_viewed and not point.has_parent_branch else "ducklake_"
    names = {"t": sql.Identifier("ducklake_" + kind.name), "kept": sql.Identifier(kept + kind.name)}
    query = SELECT_VERSIONS.format(**point.names, **names, keys=keys, placeholder=sql.Literal(PLACEHOLDER))
    branch, main = SideVersions(), SideVersions()
    for *version, is_base, is_branch, is_main in conn.execute(query).fetchall():
        for side, is_there in ((branch, is_branch), (main, is_main)):
            if is_there != is_base:
                (side.added if is_there else side.ended).append(tuple(version))
    return branch, main


def _read_objects(conn: psycopg.Connection, schema: str) -> list[LiveObject]:
    rows = conn.execute(SELECT_OBJECTS.format(s=sql.Identifier(schema), no_parent=sql.Literal(NO_PARENT))).fetchall()
    return [LiveObject(*row) for row in rows if row[1] != PLACEHOLDER]


def _read_history(conn: psycopg.Connection, point: MergePoint, side: str) -> SideHistory:
    names = {**point.names, "s": sql.Identifier(side)}
    kinds: dict[int, set[str]] = defaultdict(set)
    for (text,) in conn.execute(SELECT_HISTORY.format(**names, branch=sql.Literal(point.source))).fetchall():
        for change in parse_changes(text):
            if change.value.isdecimal():
                kinds[int(change.value)].add(change.kind)
    row = conn.execute(SELECT_IS_WHOLE.format(**names, branch=sql.Literal(point.source))).fetchone()
    return SideHistory(dict(kinds), bool(row and row[0]))


class _FileReader:
    """Reads what both sides did to data files, delete files and inlined rows."""

    def __init__(self, conn: psycopg.Connection, point: MergePoint) -> None:
        self._conn = conn
        self._point = point
        self._found: dict[int, FileChanges] = defaultdict(FileChanges)
        self._inlined = {
            side: {row[0] for row in conn.execute(SELECT_INLINED, {"schema": schema}).fetchall()}
            for side, schema in ((True, point.source), (False, point.target))
        }

    def read_files(self) -> dict[int, FileChanges]:
        """Return what the branch did to the rows of each table."""
        for table_id, count, rows in self._run(SELECT_ADDED):
            self._found[table_id].added_count, self._found[table_id].added_rows = count, rows
        for table_id, file_id in self._run(SELECT_REMOVED, has_parent_branch=sql.Literal(self._point.has_parent_branch)):
            self._found[table_id].removed.append(file_id)
        for table_id, file_id in self._run(SELECT_CUT, placeholder=sql.Literal(PLACEHOLDER)):
            self._found[table_id].cut.add(file_id)
            self._found[table_id].cut_by_files.add(file_id)
        own = {row[0] for row in self._run(SELECT_OWN)}
        for name in sorted(self._inlined[True]):
            if name.startswith("ducklake_inlined_delete_"):
                for (file_id,) in self._run(SELECT_CUT_INLINED, relation=self._point.relation(name, on_branch=True)):
                    found = self._found[get_table_id(name)]
                    found.has_inlined_deletes = True
                    found.cut |= set() if file_id in own else {file_id}
        self._meet_main()
        self._read_inlined_rows()
        return {table_id: found for table_id, found in self._found.items() if not found.is_empty}

    def read_main_data(self) -> dict[int, set[str]]:
        """Return what the lake's rows show of what it did to the rows of each table."""
        found: dict[int, set[str]] = defaultdict(set)
        has_parent_branch = self._point.has_parent_branch
        names = {"placeholder": sql.Literal(PLACEHOLDER), "has_parent_branch": sql.Literal(has_parent_branch)}
        rows = [*self._run(SELECT_MAIN_DATA, **names)]
        rows += self._run(SELECT_PARENT_REMOVED) if has_parent_branch else []
        for table_id, what in rows:
            found[table_id].add(what)
        for name in self._inlined[False]:
            relation = self._point.relation(name, on_branch=False)
            if name.startswith("ducklake_inlined_delete_"):
                if self._run(SELECT_MET_INLINED, relation=relation):
                    found[get_table_id(name)].add("delete")
                continue
            [(has_new, has_ended)] = self._run(HAS_NEW_INLINED, relation=relation)
            found[get_table_id(name)] |= {what for what, is_so in (("append", has_new), ("delete", has_ended)) if is_so}
        return {table_id: kinds for table_id, kinds in found.items() if kinds}

    def _meet_main(self) -> None:
        """Note which of the files that the branch touched are gone from the lake, and which lost rows there."""
        touched = {table_id: {*found.removed, *found.cut} for table_id, found in self._found.items() if found.removed or found.cut}
        ids = sorted({file_id for each in touched.values() for file_id in each})
        lost = {row[0] for row in self._conn.execute(SELECT_LOST.format(**self._point.names), {"ids": ids}).fetchall()}
        met: set[int] = {row[0] for row in self._conn.execute(SELECT_MET.format(**self._point.names), {"ids": ids}).fetchall()}
        for table_id, files in touched.items():
            found, name = self._found[table_id], f"ducklake_inlined_delete_{table_id}"
            if name in self._inlined[False]:
                relation = self._point.relation(name, on_branch=False)
                met |= {row[0] for row in self._run(SELECT_MET_INLINED, relation=relation)}
                found.unflushed = self._list_unflushed(name) & found.cut
            found.lost, found.met = files & lost, files & met

    def _list_unflushed(self, name: str) -> set[int]:
        """Return the files of which the branch has flushed inlined deletes that the lake has still."""
        counts: list[dict[int, int]] = []
        for side in (False, True):
            relation = self._point.relation(name, on_branch=side)
            counts.append(
                {row[0]: row[1] for row in self._run(COUNT_OLD_INLINED, relation=relation)} if name in self._inlined[side] else {}
            )
        main, branch = counts
        return {file_id for file_id, count in main.items() if branch.get(file_id) != count}

    def _read_inlined_rows(self) -> None:
        """Note the inlined rows that the branch added, and those of the fork point that it ended or flushed."""
        names = {name for side in self._inlined.values() for name in side if name.startswith("ducklake_inlined_data_")}
        for name in sorted(names):
            table_id, fork = get_table_id(name), self._point.fork_snapshot_id
            mine, theirs = (self._read_rows(name, on_branch=side) for side in (True, False))
            if any(begin > fork for _, begin in mine):
                self._found[table_id].new_inlined[name] = self._compute_shape(table_id, int(name.split("_")[4]))
            # A row of the fork point that the branch has no longer was flushed there.
            ended = {row for row, end in mine.items() if row[1] <= fork and end is not None}
            flushed = {row for row in theirs if row[1] <= fork and row not in mine}
            if ended or flushed:
                self._found[table_id].ended_rows[name] = sorted(ended | flushed)
                self._found[table_id].lost_rows += sum(1 for row in ended | flushed if row not in theirs or theirs[row] is not None)

    def _compute_shape(self, table_id: int, version: int) -> str:
        """Return which columns a table of inlined rows has: those of the fork point or of now, or others."""
        names = {"table_id": sql.Literal(table_id), "version": sql.Literal(version)}
        [(fork_version, shape, at_fork, now)] = self._conn.execute(SELECT_SHAPES.format(**self._point.names, **names)).fetchall()
        if fork_version is not None and version <= fork_version:
            return SAME
        return AT_FORK if shape == at_fork and at_fork is not None else NOW if shape == now else OTHER

    def _read_rows(self, name: str, *, on_branch: bool) -> Mapping[tuple[int, int], int | None]:
        if name not in self._inlined[on_branch]:
            return {}
        rows = self._run(SELECT_INLINED_ROWS, relation=self._point.relation(name, on_branch=on_branch))
        return {(row_id, begin): end for row_id, begin, end in rows}

    def _run(self, query: sql.SQL, **names: sql.Composable) -> Sequence[tuple[Any, ...]]:
        return self._conn.execute(query.format(**self._point.names, **names)).fetchall()


def get_table_id(name: str) -> int:
    """Return the table that a table of inlined rows or deletes belongs to."""
    return int(name.split("_")[3])
