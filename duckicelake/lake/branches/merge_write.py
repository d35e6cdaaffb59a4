"""The rows of a merge: the branch's changes as one lake snapshot of the lake.

`merge` calls it in the transaction that holds both locks. `rebase` calls it there too, with a `MergePoint` whose `target` is the branch
and whose `source` is a copy of the branch's changes: then the rows are written into the branch.

Ids of the branch are unique in the lake, so nothing is renumbered. What the branch added begins with the merge's snapshot, what it ended
ends there, and relative paths of its files become full ones.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from duckicelake.lake.branches.changes import AT_FORK, NOW, SideVersions, get_table_id
from duckicelake.lake.branches.layout import (
    FOLDER,
    KINDS,
    VersionedKind,
    read_columns,
)
from duckicelake.lake.branches.merge_rules import MergePlan
from duckicelake.lake.branches.registry import MergePoint


@dataclass(frozen=True, slots=True)
class Head:
    """The newest lake snapshot of one side, with its counters."""

    snapshot_id: int
    schema_version: int
    next_catalog_id: int
    next_file_id: int


SELECT_HEAD = sql.SQL("""
SELECT snapshot_id, schema_version, next_catalog_id, next_file_id FROM {s}.ducklake_snapshot
 WHERE snapshot_id = (SELECT max(snapshot_id) FROM {s}.ducklake_snapshot)
""")


def read_head(conn: psycopg.Connection, schema: str) -> Head:
    """Return the newest lake snapshot of a side."""
    row = conn.execute(SELECT_HEAD.format(s=sql.Identifier(schema))).fetchone()
    assert row is not None
    return Head(*row)


TEXT_KEYS = ("key", "column_name")

END_VERSIONS = sql.SQL("""
UPDATE {p}.{t} t SET end_snapshot = {m} FROM unnest({arrays}) AS v({names})
 WHERE {same} AND t.end_snapshot IS NULL
""")
ADD_VERSIONS = sql.SQL("""
INSERT INTO {p}.{t} ({columns}) SELECT {values} FROM {b}.{t} f JOIN unnest({arrays}) AS v({names}) ON {same_f} WHERE f.end_snapshot IS NULL
""")
ADD_PARTS = sql.SQL("INSERT INTO {p}.{t} ({columns}) SELECT {values} FROM {b}.{t} f WHERE f.{key} = ANY(%(ids)s)")
PARTS: Mapping[str, Sequence[str]] = {
    "partition_info": ("partition_column",),
    "sort_info": ("sort_expression",),
    "macro": ("macro_impl", "macro_parameters"),
}
"""The tables whose rows belong to a version, by its kind; the last column of the kind's key identifies them."""

MAPPED_SCHEMA = sql.SQL(
    "coalesce((SELECT x.theirs FROM unnest({mine}, {theirs}) AS x(mine, theirs) WHERE x.mine = f.schema_id), f.schema_id)"
)
MAPPED_PARENT = sql.SQL(
    "coalesce((SELECT x.theirs FROM unnest({mine}, {theirs}) AS x(mine, theirs) WHERE x.mine = f.parent_schema_id), f.parent_schema_id)"
)
MAPPED_OBJECT = sql.SQL(
    "coalesce((SELECT x.theirs FROM unnest({mine}, {theirs}) AS x(mine, theirs) WHERE x.mine = f.object_id), f.object_id)"
)
# A table that the lake has keeps the folder it has there. A new one lies in the lake's folders.
IS_KNOWN = sql.SQL("EXISTS (SELECT FROM {p}.ducklake_table x WHERE x.table_id = f.table_id)")
TABLE_PATH = sql.SQL("""
CASE WHEN {is_known} THEN (SELECT CASE WHEN s.schema_id = {schema} THEN t.path ELSE {folder} END
                                    FROM {p}.ducklake_table t JOIN {p}.ducklake_schema s ON s.schema_id = t.schema_id
                                   WHERE t.table_id = f.table_id ORDER BY t.begin_snapshot DESC LIMIT 1)
     ELSE {moved} END""")
TABLE_IS_RELATIVE = sql.SQL("""
CASE WHEN {is_known} THEN (SELECT t.schema_id = {schema} AND coalesce(t.path_is_relative, true) FROM {p}.ducklake_table t
                                   WHERE t.table_id = f.table_id ORDER BY t.begin_snapshot DESC LIMIT 1)
     ELSE f.path_is_relative END""")
MOVED_BACK = sql.SQL("""
(SELECT CASE WHEN coalesce(f.path_is_relative, true) THEN f.path
             WHEN starts_with(f.path, k.iceberg_path) THEN k.lake_iceberg_path || substr(f.path, length(k.iceberg_path) + 1)
             WHEN starts_with(f.path, k.data_path) THEN k.lake_data_path || substr(f.path, length(k.data_path) + 1)
             ELSE f.path END FROM {folders} k)""")

DROPPED = ("table", "partition_info", "column", "column_tag", "data_file", "delete_file", "sort_info")
END_DROPPED = sql.SQL("UPDATE {p}.{t} SET end_snapshot = {m} WHERE {key} = ANY(%(ids)s) AND end_snapshot IS NULL")
ADD_SCHEMA_VERSIONS = sql.SQL("""
INSERT INTO {p}.ducklake_schema_versions (begin_snapshot, schema_version, table_id) SELECT {m}, {v}, unnest(%(ids)s::bigint[])
""")

END_FILES = sql.SQL("UPDATE {p}.{t} SET end_snapshot = {m} WHERE data_file_id = ANY(%(ids)s) AND end_snapshot IS NULL")
ADD_FILES = sql.SQL("""
WITH root AS (
    SELECT DISTINCT ON (t.table_id) t.table_id, {folder} AS root
      FROM {b}.ducklake_table t JOIN {b}.ducklake_schema s ON s.schema_id = t.schema_id
     WHERE t.table_id = ANY(%(tables)s)
     ORDER BY t.table_id, t.begin_snapshot DESC
)
INSERT INTO {p}.{into} ({columns}) SELECT {values} FROM {b}.{own} f JOIN root r ON r.table_id = f.table_id
 WHERE (f.{key} >= {nf} OR f.begin_snapshot > {n}) AND f.end_snapshot IS NULL AND f.data_file_id < 9223372036854775807
""")
ADD_FILE_PARTS = sql.SQL("""
INSERT INTO {p}.{into} ({columns}) SELECT {values} FROM {b}.{own} f
  JOIN {p}.ducklake_data_file d ON d.data_file_id = f.data_file_id AND d.begin_snapshot = {m}
 WHERE f.table_id = ANY(%(tables)s)
""")
FILE_PARTS = ("file_column_stats", "file_partition_value", "file_variant_stats")
ADD_MAPPINGS = sql.SQL("""
INSERT INTO {p}.{t} ({columns}) SELECT {values} FROM {b}.{t} f
 WHERE f.mapping_id IN (SELECT d.mapping_id FROM {p}.ducklake_data_file d WHERE d.begin_snapshot = {m})
   AND NOT EXISTS (SELECT FROM {p}.{t} o WHERE o.mapping_id = f.mapping_id)
""")

UPDATE_STATS = sql.SQL("""
WITH added AS (
    SELECT w.table_id, coalesce(sum(d.record_count), 0) + w.inlined AS row_count, coalesce(sum(d.file_size_bytes), 0) AS size
      FROM unnest(%(tables)s::bigint[], %(inlined)s::bigint[]) AS w(table_id, inlined)
      LEFT JOIN {p}.ducklake_data_file d ON d.table_id = w.table_id AND d.begin_snapshot = {m}
     GROUP BY w.table_id, w.inlined
), changed AS (
    UPDATE {p}.ducklake_table_stats s
       SET record_count = s.record_count + a.row_count, file_size_bytes = s.file_size_bytes + a.size,
           next_row_id = greatest(s.next_row_id, b.next_row_id)
      FROM added a JOIN {b}.ducklake_table_stats b ON b.table_id = a.table_id
     WHERE s.table_id = a.table_id
 RETURNING s.table_id
)
INSERT INTO {p}.ducklake_table_stats (table_id, record_count, next_row_id, file_size_bytes)
SELECT a.table_id, a.row_count, b.next_row_id, a.size FROM added a JOIN {b}.ducklake_table_stats b ON b.table_id = a.table_id
 WHERE NOT EXISTS (SELECT FROM changed c WHERE c.table_id = a.table_id)
""")
# Bounds of both sides together are not exact, and DuckDB answers min and max from exact ones: without bounds it reads the files'.
DELETE_BOUNDS = sql.SQL("DELETE FROM {p}.ducklake_table_column_stats WHERE table_id = ANY(%(tables)s)")

SELECT_RELATION = "SELECT to_regclass(format('%%I.%%I', %(schema)s::text, %(name)s::text)) IS NOT NULL"
CREATE_DELETES = sql.SQL("CREATE TABLE {relation} (file_id bigint, row_id bigint, begin_snapshot bigint)")
ADD_DELETES = sql.SQL("""
INSERT INTO {relation} (file_id, row_id, begin_snapshot) SELECT file_id, row_id, {m} FROM {source} i
 WHERE i.begin_snapshot > {n} AND EXISTS (SELECT FROM {p}.ducklake_data_file d WHERE d.data_file_id = i.file_id AND d.end_snapshot IS NULL)
""")
CREATE_ROWS = sql.SQL("""
CREATE TABLE {relation} (LIKE {source} INCLUDING ALL);
INSERT INTO {p}.ducklake_inlined_data_tables (table_id, table_name, schema_version) VALUES ({table_id}, {name}, {version})
""")
# A branch that was reset keeps tables of inlined rows that a session still reads, without their registration.
REGISTER_ROWS = sql.SQL("""
INSERT INTO {p}.ducklake_inlined_data_tables (table_id, table_name, schema_version)
SELECT {table_id}, {name}, {version} WHERE NOT EXISTS (SELECT FROM {p}.ducklake_inlined_data_tables WHERE table_name = {name})
""")
SELECT_NEWEST = sql.SQL("""
SELECT r.table_name FROM {s}.ducklake_inlined_data_tables r
 WHERE r.table_id = {table_id}
   AND r.schema_version >= (SELECT max(v.schema_version) FROM {s}.ducklake_schema_versions v
                             WHERE v.table_id = {table_id} AND v.begin_snapshot < {m})
 ORDER BY r.schema_version DESC LIMIT 1
""")
STOP_INLINING = sql.SQL("""
DELETE FROM {p}.ducklake_metadata WHERE key = 'data_inlining_row_limit' AND scope = 'table' AND scope_id = {table_id};
INSERT INTO {p}.ducklake_metadata (key, value, scope, scope_id) VALUES ('data_inlining_row_limit', '0', 'table', {table_id})
""")
ADD_VERSION = sql.SQL("""
INSERT INTO {p}.ducklake_schema_versions (begin_snapshot, schema_version, table_id) SELECT {m}, {version}, {table_id}
 WHERE NOT EXISTS (SELECT FROM {p}.ducklake_schema_versions WHERE table_id = {table_id} AND schema_version = {version})
""")
ADD_ROWS = sql.SQL("INSERT INTO {relation} SELECT {values} FROM {source} WHERE {begin} > {n} AND {end} IS NULL")
END_ROWS = sql.SQL("""
UPDATE {relation} t SET {end} = {m} FROM unnest(%(rows)s::bigint[], %(begins)s::bigint[]) AS v(row_id, begin_snapshot)
 WHERE t.{row_id} = v.row_id AND t.{begin} = v.begin_snapshot AND t.{end} IS NULL
""")
SELECT_FORK_VERSION = sql.SQL("""
SELECT max(schema_version) FROM {p}.ducklake_schema_versions WHERE table_id = {table_id} AND begin_snapshot <= {n}
""")


class MergeWriter:
    """Writes the rows of one merge. `snapshot_id`, `schema_version`: those of the lake snapshot that it makes."""

    def __init__(self, conn: psycopg.Connection, point: MergePoint, plan: MergePlan, main: Head, branch: Head) -> None:
        self._conn = conn
        self._point = point
        self._plan = plan
        self.snapshot_id = max(main.snapshot_id, branch.snapshot_id) + 1
        # Above both sides': DuckDB keeps its catalog, and names tables of inlined rows, by this number.
        self.schema_version = max(main.schema_version, branch.schema_version) + 1
        self._names: dict[str, sql.Composable] = {
            **point.names,
            "m": sql.Literal(self.snapshot_id),
            "v": sql.Literal(self.schema_version),
            "is_known": IS_KNOWN.format(**point.names),
            "folders": point.folders,
        }

    def write(self) -> None:
        """Write everything but the lake snapshot itself."""
        for kind in KINDS:
            self._write_versions(kind, self._plan.versions[kind.name])
        self._drop_tables()
        self._run(ADD_SCHEMA_VERSIONS, {"ids": sorted(self._plan.new_tables | self._plan.reshaped)})
        self._write_files()
        inlined = self._write_inlined()
        tables = sorted(table_id for table_id, found in self._plan.files.items() if found.added_count or inlined.get(table_id))
        self._run(UPDATE_STATS, {"tables": tables, "inlined": [inlined.get(table_id, 0) for table_id in tables]})
        self._run(DELETE_BOUNDS, {"tables": tables})

    def _run(self, query: sql.SQL, parameters: Mapping[str, object] | None = None, /, **names: sql.Composable) -> None:
        self._conn.execute(query.format(**self._names, **names), parameters)

    def _write_versions(self, kind: VersionedKind, side: SideVersions) -> None:
        dropped = self._plan.dropped_tables
        ended = [version for version in side.ended if version[0] not in dropped]
        table = sql.Identifier("ducklake_" + kind.name)
        if ended:
            self._run(END_VERSIONS, None, t=table, **_format_versions(kind, ended))
        if side.added:
            columns = read_columns(self._conn, self._point.target, "ducklake_" + kind.name)
            listed = sql.SQL(", ").join(map(sql.Identifier, columns))
            values = sql.SQL(", ").join(self._format_value(kind, column) for column in columns)
            self._run(ADD_VERSIONS, None, t=table, columns=listed, values=values, **_format_versions(kind, side.added))
            for part in PARTS.get(kind.name, ()):
                self._copy(
                    ADD_PARTS, "ducklake_" + part, {"ids": [version[-2] for version in side.added]}, key=sql.Identifier(kind.key[-1])
                )

    def _format_value(self, kind: VersionedKind, column: str) -> sql.Composable:
        """Return the value of a column of a new row of the lake; `f` is the branch's row."""
        if column == "begin_snapshot":
            return self._names["m"]
        mapped = {
            "mine": sql.Literal(list(self._plan.schemas)) + sql.SQL("::bigint[]"),
            "theirs": sql.Literal(list(self._plan.schemas.values())) + sql.SQL("::bigint[]"),
        }
        schema = MAPPED_SCHEMA.format(**mapped)
        if column == "schema_id" and kind.name != "schema":
            return schema
        if column == "object_id":
            return MAPPED_OBJECT.format(**mapped)
        if column == "parent_schema_id":
            return MAPPED_PARENT.format(**mapped)
        if column in ("path", "path_is_relative") and kind.name == "table":
            moved, folder = MOVED_BACK.format(**self._names), FOLDER.format(source=self._names["p"])
            form = TABLE_PATH if column == "path" else TABLE_IS_RELATIVE
            return form.format(**self._names, schema=schema, moved=moved, folder=folder)
        if column == "path" and kind.name == "schema":
            return MOVED_BACK.format(**self._names)
        return sql.Identifier("f", column)

    def _copy(self, query: sql.SQL, table: str, parameters: Mapping[str, object], **names: sql.Composable) -> None:
        """Copy rows of the branch as they are, but for where relative paths start."""
        resolved: Mapping[str, sql.Composable] = {
            "begin_snapshot": self._names["m"],
            "path": sql.SQL("CASE WHEN coalesce(f.path_is_relative, true) THEN r.root || f.path ELSE f.path END"),
            "path_is_relative": sql.SQL("false"),
            # At the merge's snapshot all rows of a file are there.
            "partial_max": sql.SQL("NULL"),
        }
        columns = read_columns(self._conn, self._point.target, table)
        values = [resolved.get(column, sql.Identifier("f", column)) for column in columns]
        listed = sql.SQL(", ").join(map(sql.Identifier, columns))
        own = sql.Identifier(table.replace("ducklake_", "own_"))
        # A view of a branch would write each row by a trigger.
        into = own if self._has("own_data_file") else sql.Identifier(table)
        names |= {"t": sql.Identifier(table), "own": own, "into": into}
        self._run(query, parameters, columns=listed, values=sql.SQL(", ").join(values), **names)

    def _drop_tables(self) -> None:
        ids = {"ids": sorted(self._plan.dropped_tables)}
        if ids["ids"]:
            for name in DROPPED:
                self._run(END_DROPPED, ids, t=sql.Identifier("ducklake_" + name), key=sql.Identifier("table_id"))
            self._run(END_DROPPED, ids, t=sql.Identifier("ducklake_tag"), key=sql.Identifier("object_id"))

    def _write_files(self) -> None:
        tables = {"tables": sorted(self._plan.files)}
        removed = sorted({file_id for found in self._plan.files.values() for file_id in found.removed})
        cut = sorted({file_id for found in self._plan.files.values() for file_id in found.cut_by_files})
        self._run(END_FILES, {"ids": removed}, t=sql.Identifier("ducklake_data_file"))
        # The branch's delete file of a file has the positions of the lake's, too.
        self._run(END_FILES, {"ids": [*removed, *cut]}, t=sql.Identifier("ducklake_delete_file"))
        folder = FOLDER.format(source=self._names["b"])
        for name, key in (("ducklake_data_file", "data_file_id"), ("ducklake_delete_file", "delete_file_id")):
            self._copy(ADD_FILES, name, tables, key=sql.Identifier(key), folder=folder)
        for name in FILE_PARTS:
            self._copy(ADD_FILE_PARTS, "ducklake_" + name, tables)
        for name in ("ducklake_column_mapping", "ducklake_name_mapping"):
            self._copy(ADD_MAPPINGS, name, {})

    def _write_inlined(self) -> dict[int, int]:
        """Write inlined rows and deletes; return the number of new rows by table."""
        counts: dict[int, int] = {}
        for table_id in sorted(self._plan.new_tables | self._plan.reshaped):
            self._prepare_inlining(table_id)
        for table_id, found in self._plan.files.items():
            for name, rows in found.ended_rows.items():
                parameters = {"rows": [row for row, _ in rows], "begins": [begin for _, begin in rows]}
                self._run(END_ROWS, parameters, relation=self._point.relation(name, on_branch=False))
            for name, shape in found.new_inlined.items():
                counts[table_id] = counts.get(table_id, 0) + self._add_rows(name, shape)
            if found.has_inlined_deletes:
                self._add_deletes(f"ducklake_inlined_delete_{table_id}")
        return counts

    def _prepare_inlining(self, table_id: int) -> None:
        """Make the table for later inlined rows of a table with other columns, as one side has it, or let its rows go to files.

        DuckDB would make one itself, and read its rows by the columns that the table had first.
        """
        names = {**self._names, "table_id": sql.Literal(table_id)}
        is_branchs = table_id not in self._plan.shaped_on_main
        side = self._names["b" if is_branchs else "p"]
        row = self._conn.execute(SELECT_NEWEST.format(**names, s=side)).fetchone()
        if row is None:
            self._conn.execute(STOP_INLINING.format(**names))
            return
        target = f"ducklake_inlined_data_{table_id}_{self.schema_version}"
        relations = {
            "relation": self._point.relation(target, on_branch=False),
            "source": self._point.relation(row[0], on_branch=is_branchs),
        }
        version = sql.Literal(self.schema_version)
        self._conn.execute(CREATE_ROWS.format(**names, **relations, name=sql.Literal(target), version=version))

    def _add_deletes(self, name: str) -> None:
        relation = self._point.relation(name, on_branch=False)
        if not self._has(name):
            self._conn.execute(CREATE_DELETES.format(relation=relation))
        self._run(ADD_DELETES, relation=relation, source=self._point.relation(name, on_branch=True))

    def _add_rows(self, name: str, shape: str) -> int:
        table_id, version = get_table_id(name), int(name.split("_")[4])
        names = {**self._names, "table_id": sql.Literal(table_id)}
        if shape == AT_FORK:
            row = self._conn.execute(SELECT_FORK_VERSION.format(**names)).fetchone()
            version = version if row is None or row[0] is None else row[0]
        elif shape == NOW:
            version = self.schema_version
            self._conn.execute(ADD_VERSION.format(**names, version=sql.Literal(version)))
        target = f"ducklake_inlined_data_{table_id}_{version}"
        relations = {"relation": self._point.relation(target, on_branch=False), "source": self._point.relation(name, on_branch=True)}
        if self._has(target):
            self._conn.execute(REGISTER_ROWS.format(**names, name=sql.Literal(target), version=sql.Literal(version)))
        else:
            self._conn.execute(CREATE_ROWS.format(**names, **relations, name=sql.Literal(target), version=sql.Literal(version)))
        columns = read_columns(self._conn, self._point.source, name)
        # The second column of inlined rows is the snapshot they begin with.
        values = sql.SQL(", ").join(self._names["m"] if place == 1 else sql.Identifier(column) for place, column in enumerate(columns))
        return self._conn.execute(ADD_ROWS.format(**self._names, **relations, values=values)).rowcount

    def _has(self, name: str) -> bool:
        row = self._conn.execute(SELECT_RELATION, {"schema": self._point.target, "name": name}).fetchone()
        return bool(row and row[0])


def _format_versions(kind: VersionedKind, versions: Iterable[Sequence[int | str]]) -> dict[str, sql.Composable]:
    """Return arrays of keys and first snapshots of versions, and conditions that a row is one of them."""
    names = (*kind.key, "begin_snapshot")
    by_column = list(zip(*versions, strict=True))
    types = [sql.SQL("::text[]") if name in TEXT_KEYS else sql.SQL("::bigint[]") for name in names]
    arrays = [sql.Literal(list(values)) + type_ for values, type_ in zip(by_column, types, strict=True)]
    return {
        "arrays": sql.SQL(", ").join(arrays),
        "names": sql.SQL(", ").join(map(sql.Identifier, names)),
        "same": _format_same("t", names),
        "same_f": _format_same("f", names),
    }


def _format_same(row: str, names: Sequence[str]) -> sql.Composed:
    return sql.SQL(" AND ").join(sql.SQL("{} = {}").format(sql.Identifier(row, name), sql.Identifier("v", name)) for name in names)
