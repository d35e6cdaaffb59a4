"""Columns whose values need care: those that Iceberg calls required but may hold NULLs, too large integers, missing defaults.

`lake.read_table`, `lake.writing.read_back` and `catalog.snapshot_building` call this in the transaction of a load or commit; only the
`read_` functions and `with_value_checks` ask Postgres. A required column has a first file whose statistics do not prove that it holds no
NULL. DuckLake checks NOT NULL only where it has statistics of the column itself: it lets NULLs into STRUCT, LIST and MAP columns by INSERT
and UPDATE, and into columns of every type by `ducklake_add_data_files`.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, cast

import psycopg

from duckicelake.lake.rows import ColumnRow, ColumnStatsRow, FileSpan, JsonNote, NullableRow, RepeatedFileRow, TableState

FLOATING = frozenset({"float32", "float64"})
NO_SNAPSHOT = sys.maxsize
ROW_GROUP_ROWS = 2_048
"""A file of so many rows has one row group with any options of the lake: DuckDB writes whole vectors."""


def list_required(columns: Sequence[ColumnRow], schemas: Sequence[JsonNote]) -> frozenset[int]:
    """Return the ids of the columns that some schema of the table may call `required`.

    These are the NOT NULL columns of the root, and the nested fields that a noted schema calls required: DuckDB writes
    `nulls_allowed = false` for every nested field.
    """
    roots = frozenset([row.column_id for row in columns if not row.nulls_allowed and row.parent_column is None])
    nested = frozenset([row.column_id for row in columns if row.parent_column is not None])
    return roots | (nested & frozenset().union(*[_read_required(note.json) for note in schemas])) if nested else roots


@lru_cache(maxsize=512)
def _read_required(text: str) -> frozenset[int]:
    node: object = json.loads(text)
    fields = cast("Mapping[str, object]", node)["fields"] if isinstance(node, dict) else node
    return frozenset(_walk_required(cast("Iterable[Mapping[str, object]]", fields)))


def _walk_required(fields: Iterable[Mapping[str, object]]) -> Iterator[int]:
    for field in fields:
        if field.get("required"):
            yield cast("int", field["id"])
        type_ = field["type"]
        if isinstance(type_, dict):
            yield from _walk_required(_list_children(cast("Mapping[str, object]", type_)))


def _list_children(type_: Mapping[str, object]) -> Iterable[Mapping[str, object]]:
    if "fields" in type_:
        return cast("Iterable[Mapping[str, object]]", type_["fields"])
    parts = [part for part in ("element", "key", "value") if part in type_]
    return [{"id": type_[f"{part}-id"], "type": type_[part], "required": type_.get(f"{part}-required", False)} for part in parts]


class NullProof(NamedTuple):
    """A leaf that is a required column or part of one: where the leaf has no NULL, the column has none."""

    column_id: int
    leaf_id: int
    is_repeated: bool


def list_proofs(columns: Sequence[ColumnRow], required: Iterable[int]) -> list[NullProof]:
    """Return the leaves that may prove that required columns hold no NULL.

    A leaf has a NULL wherever it or one of its parents is NULL, and one for each empty list or map. Iceberg's
    writers (Java 1.11) count the floating-point leaves of lists and maps by their values alone, so these prove nothing.
    """
    rows = {row.column_id: row for row in columns}
    parents = {row.parent_column for row in rows.values()}
    proofs: list[NullProof] = []
    wanted = frozenset(required)
    for leaf in rows.values():
        path = [] if leaf.column_id in parents else _list_path(leaf, rows)
        is_repeated = any(row.column_type.lower() in ("list", "map") for row in path)
        if path and not (is_repeated and leaf.column_type.lower() in FLOATING):
            proofs += [NullProof(row.column_id, leaf.column_id, is_repeated) for row in path if row.column_id in wanted]
    return proofs


def _list_path(leaf: ColumnRow, rows: Mapping[int, ColumnRow]) -> list[ColumnRow]:
    """Return a leaf and all its parents. Parents have lower ids in most lakes, but a cycle must end too."""
    path = [leaf]
    while (parent := path[-1].parent_column) is not None and parent in rows and rows[parent] not in path:
        path.append(rows[parent])
    return path


SELECT_PROOFS = """
SELECT column_id, count(*)
  FROM ducklake_file_column_stats
 WHERE table_id = %(table_id)s AND data_file_id BETWEEN %(first)s AND %(last)s AND column_id = ANY(%(leaves)s)
   -- Where DuckLake counts nothing, both counts are 0.
   AND null_count = 0 AND value_count > 0
 GROUP BY column_id
"""

SELECT_NULLABLE = """
SELECT t.column_id, n.begin_snapshot AS lake_snapshot_id
  FROM unnest(%(column_ids)s::bigint[], %(column_begins)s::bigint[], %(defaulted_until)s::bigint[], %(required_since)s::bigint[],
              %(proofs)s::text[]) AS t(column_id, column_begin, defaulted_until, required_since, leaves)
 CROSS JOIN LATERAL (
       SELECT f.begin_snapshot
         FROM ducklake_data_file f
        WHERE f.table_id = %(table_id)s AND f.data_file_id BETWEEN %(first)s AND %(last)s AND f.record_count > 0
          -- The index is ordered by begin_snapshot, so the first match ends the search.
          AND f.begin_snapshot >= %(begin_snapshot)s
          -- No snapshot has both the column and a file that ended before the column began.
          AND coalesce(f.end_snapshot > t.column_begin, true)
          -- Files from before the column read its default.
          AND f.begin_snapshot >= t.defaulted_until
          AND NOT EXISTS (SELECT FROM ducklake_file_column_stats s
                           WHERE s.table_id = %(table_id)s AND s.data_file_id = f.data_file_id
                             AND s.column_id = ANY(t.leaves::bigint[]) AND s.null_count = 0 AND s.value_count >= f.record_count)
          -- Iceberg's writers may write no counts, and the schema that they wrote with allows no NULL.
          AND NOT (f.begin_snapshot >= t.required_since
                   AND EXISTS (SELECT FROM iceberg_file n WHERE n.data_file_id = f.data_file_id)
                   AND NOT EXISTS (SELECT FROM ducklake_file_column_stats s
                                    WHERE s.table_id = %(table_id)s AND s.data_file_id = f.data_file_id
                                      AND s.column_id = t.column_id AND s.null_count > 0))
          -- DuckLake writes statistics for all its files; its rewrites lack columns that are younger than the rows.
          AND NOT (t.defaulted_until > 0 AND f.mapping_id IS NULL
                   AND NOT EXISTS (SELECT FROM iceberg_file n WHERE n.data_file_id = f.data_file_id)
                   AND NOT EXISTS (SELECT FROM ducklake_file_column_stats s
                                    WHERE s.table_id = %(table_id)s AND s.data_file_id = f.data_file_id
                                      AND s.column_id = ANY(t.leaves::bigint[])))
        ORDER BY f.begin_snapshot
        LIMIT 1) n
 ORDER BY t.column_id
"""


SELECT_ONLY_IN_PATHS = """
SELECT n.target_field_id AS column_id, min(f.begin_snapshot) AS lake_snapshot_id
  FROM ducklake_name_mapping n
  JOIN ducklake_data_file f ON f.mapping_id = n.mapping_id
 WHERE f.table_id = %(table_id)s AND f.data_file_id BETWEEN %(first)s AND %(last)s AND f.record_count > 0
   AND n.is_partition AND n.target_field_id = ANY(%(column_ids)s)
 GROUP BY n.target_field_id
 ORDER BY n.target_field_id
"""
"""PyIceberg takes a value from the partition of a file that lacks the column only if the column is optional."""


def read_nullable(conn: psycopg.Connection, state: TableState, next_file_id: int) -> list[NullableRow]:
    """Return the required columns that may hold a NULL in a file from `next_file_id` on, or that it has only in its path.

    Each comes with the lake snapshot of the first such file.
    """
    required = list_required(state.columns, state.notes.schemas)
    new = [span for span in state.spans if span.data_file_id >= next_file_id and span.record_count] if required else []
    if not new:
        return []
    proofs = list_proofs(state.columns, required)
    in_paths = required & {row.target_field_id for row in state.name_mappings if row.is_partition}
    parameters: dict[str, object] = {
        "table_id": state.table.table_id,
        "first": min([span.data_file_id for span in new]),
        "last": max([span.data_file_id for span in new]),
        "leaves": sorted({proof.leaf_id for proof in proofs if not proof.is_repeated}),
        "column_ids": sorted(in_paths),
    }
    first: dict[int, int] = dict(conn.execute(SELECT_ONLY_IN_PATHS, parameters).fetchall()) if in_paths else {}
    counts: dict[int, int] = dict(conn.execute(SELECT_PROOFS, parameters).fetchall())
    # Lists and maps may have fewer values than the file has rows, so their files are checked one by one.
    proven = {proof.column_id for proof in proofs if not proof.is_repeated and counts.get(proof.leaf_id) == len(new)}
    ends = compute_default_ends(state.columns, sorted(required - proven))
    if not ends:
        return [NullableRow(*item) for item in sorted(first.items())]
    parameters |= {
        "column_ids": list(ends),
        "column_begins": [min(row.begin_snapshot for row in state.columns if row.column_id == column_id) for column_id in ends],
        "defaulted_until": list(ends.values()),
        "required_since": [compute_required_since(state.columns, column_id) for column_id in ends],
        "proofs": ["{" + ",".join(str(proof.leaf_id) for proof in proofs if proof.column_id == column_id) + "}" for column_id in ends],
        "begin_snapshot": min([span.begin_snapshot for span in new]),
    }
    for column_id, lake_snapshot_id in conn.execute(SELECT_NULLABLE, parameters):
        first[column_id] = min(lake_snapshot_id, first.get(column_id, lake_snapshot_id))
    return [NullableRow(*item) for item in sorted(first.items())]


def compute_default_ends(columns: Sequence[ColumnRow], column_ids: Iterable[int]) -> dict[int, int]:
    """Return, for each of these columns, the lake snapshot before which files read its default; 0 if they read NULL."""
    first: dict[int, ColumnRow] = {}
    for row in columns:
        if row.column_id not in first or row.begin_snapshot < first[row.column_id].begin_snapshot:
            first[row.column_id] = row
    return {i: 0 if first[i].initial_default is None else first[i].begin_snapshot for i in column_ids}


def compute_required_since(columns: Sequence[ColumnRow], column_id: int) -> int:
    """Return the lake snapshot since which a root column has been NOT NULL, as far as its rows remain; else `NO_SNAPSHOT`."""
    rows = sorted([row for row in columns if row.column_id == column_id and row.parent_column is None], key=lambda row: row.begin_snapshot)
    since = NO_SNAPSHOT
    for row in rows:
        since = NO_SNAPSHOT if row.nulls_allowed else min(since, row.begin_snapshot)
    return since


def has_no_nulls(state: TableState, files: Sequence[FileSpan], stats: Mapping[int, Sequence[ColumnStatsRow]]) -> bool:
    """Return True if the statistics of a client's new files, or their schema, prove that no required column holds a NULL."""
    required = list_required(state.columns, state.notes.schemas)
    if not required:
        return True
    proofs = list_proofs(state.columns, required)
    for file in files:
        counted = {row.column_id for row in stats.get(file.data_file_id, ()) if row.null_count == 0}
        counted &= {row.column_id for row in stats.get(file.data_file_id, ()) if (row.value_count or 0) >= file.record_count}
        proven = frozenset([proof.column_id for proof in proofs if proof.leaf_id in counted])
        null = frozenset([row.column_id for row in stats.get(file.data_file_id, ()) if row.null_count])
        proven |= frozenset([i for i in required - null if compute_required_since(state.columns, i) <= file.begin_snapshot])
        if file.record_count and not required <= proven:
            return False
    return True


SELECT_TOO_LARGE = """
SELECT DISTINCT c.column_id
  FROM ducklake_column c
  -- Files from before the column's type was changed.
  JOIN ducklake_data_file f ON f.table_id = c.table_id
   AND (c.end_snapshot IS NULL OR f.begin_snapshot < c.end_snapshot
        -- A DuckDB transaction may insert rows before it changes the type; a client's commit writes its files with the new type.
        OR (f.begin_snapshot = c.end_snapshot
            AND NOT EXISTS (SELECT FROM iceberg_snapshot n WHERE n.table_id = c.table_id AND n.lake_snapshot_id = c.end_snapshot)))
  LEFT JOIN ducklake_file_column_stats s ON s.data_file_id = f.data_file_id AND s.table_id = f.table_id AND s.column_id = c.column_id
 WHERE c.table_id = %(table_id)s AND lower(c.column_type) = 'uint32' AND f.data_file_id >= %(next_file_id)s
   AND CASE WHEN s.data_file_id IS NULL
            -- DuckDB writes statistics of every column; a file that was added may lack them although it has the column.
            THEN EXISTS (SELECT FROM ducklake_name_mapping n WHERE n.mapping_id = f.mapping_id AND n.target_field_id = c.column_id)
            WHEN s.value_count IS NULL AND s.max_value IS NULL AND f.record_count <= %(row_group)s
            -- Of a field whose structs are all NULL DuckDB writes no statistics; a file that was added, or is a client's, may have none.
            THEN f.mapping_id IS NOT NULL OR EXISTS (SELECT FROM iceberg_file n WHERE n.data_file_id = f.data_file_id)
            -- Of a struct's field in a list, DuckDB may count no value in a file of several row groups if one of them has none.
            WHEN s.max_value IS NULL
            THEN coalesce(s.value_count, 1) > 0
              OR (f.record_count > %(row_group)s AND c.parent_column = ANY(%(nested)s::bigint[]))
            WHEN s.max_value ~ '^[0-9]{1,10}$' THEN s.max_value::bigint > 2147483647
            ELSE true END
 ORDER BY c.column_id
"""


SELECT_WITHOUT_DEFAULTED = """
SELECT a.column_id
  -- Take the first row of the column: a column that was renamed later was already in the files.
  FROM (SELECT column_id, min(begin_snapshot) AS begin_snapshot, max(coalesce(end_snapshot, 9223372036854775807)) AS end_snapshot
          FROM ducklake_column
         WHERE table_id = %(table_id)s GROUP BY column_id HAVING bool_or(initial_default IS NOT NULL)) a
 WHERE EXISTS (SELECT FROM ducklake_data_file f
                WHERE f.table_id = %(table_id)s AND f.data_file_id >= %(next_file_id)s
                  AND f.begin_snapshot >= a.begin_snapshot AND f.begin_snapshot < a.end_snapshot
                  AND NOT EXISTS (SELECT FROM ducklake_file_column_stats s
                                   WHERE s.table_id = f.table_id AND s.data_file_id = f.data_file_id AND s.column_id = a.column_id
                                   -- OFFSET 0 forces a look-up for each file; Postgres might hash the statistics of all tables.
                                  OFFSET 0)
                  -- A file without any statistics says nothing about this column.
                  AND EXISTS (SELECT FROM ducklake_file_column_stats s
                               WHERE s.table_id = f.table_id AND s.data_file_id = f.data_file_id OFFSET 0))
 ORDER BY a.column_id
"""


def with_value_checks(conn: psycopg.Connection, state: TableState, next_file_id: int) -> TableState:
    """Return the state with `too_large`, `lacked` and `nullable` set from files that were not read before.

    `too_large`: the uint32 columns that may hold numbers from 2^31 on in such a file. `lacked`: the columns with a default that
    such a file lacks although it is younger than the column. DuckLake's rewrites leave out columns that are younger than the rows;
    so do files that a transaction wrote before it added the column, and files of clients that did not know it yet. `nullable`: the
    required columns of which such a file is not proven to hold no NULL.
    """
    parameters: dict[str, object] = {"table_id": state.table.table_id, "next_file_id": next_file_id}
    parameters |= {"row_group": ROW_GROUP_ROWS, "nested": [row.column_id for row in state.columns if row.parent_column is not None]}
    if any(row.column_type.lower() == "uint32" for row in state.columns):
        state = replace(state, too_large=[row[0] for row in conn.execute(SELECT_TOO_LARGE, parameters)])
    if any(row.initial_default is not None for row in state.columns):
        state = replace(state, lacked=[row[0] for row in conn.execute(SELECT_WITHOUT_DEFAULTED, parameters)])
    nullable = read_nullable(conn, state, next_file_id)
    return replace(state, nullable=nullable) if nullable else state


SELECT_REPEATED_FILES = """
SELECT path, data_file_id, begin_snapshot, end_snapshot
  FROM (SELECT r.*, count(*) OVER (PARTITION BY r.path) AS times
          FROM (SELECT CASE WHEN coalesce(path_is_relative, true) THEN %(folder)s::text || path ELSE path END AS path,
                       data_file_id, begin_snapshot, end_snapshot
                  FROM (SELECT table_id, path, path_is_relative, data_file_id, begin_snapshot, end_snapshot FROM ducklake_data_file
                         UNION ALL
                        SELECT table_id, path, path_is_relative, data_file_id, begin_snapshot, end_snapshot FROM iceberg_merged_file) f
                 WHERE table_id = %(table_id)s) r) counted
 WHERE times > 1
 ORDER BY path, begin_snapshot, data_file_id
"""


def read_repeated_files(conn: psycopg.Connection, table_id: int, folder: str) -> list[RepeatedFileRow]:
    """Return the files that a table has more than one row for, live at the same time or not; `folder` is the table's."""
    parameters = {"table_id": table_id, "folder": folder}
    return [RepeatedFileRow._make(row) for row in conn.execute(SELECT_REPEATED_FILES, parameters)]
