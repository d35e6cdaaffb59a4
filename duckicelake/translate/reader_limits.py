"""Limits of single readers on published tables, with remedies: `READER_LIMITS` lists all of them.

`duckicelake check` warns from this list. No I/O. A limit is the reader's own: the published table is correct, and other readers read it.
Versions: Spark 3.5 to 4.1 with Iceberg 1.11 and 1.12, Trino 483, PyIceberg 0.12, Polars 2.1, Daft 0.7.26, Flink 2.1, ClickHouse 26.9,
DataFusion with pyiceberg-core 0.11. docs/upstream.md describes each limit.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from duckicelake.lake.lake_format import V1_0
from duckicelake.lake.rows import ColumnRow, TableState
from duckicelake.translate.to_ducklake.columns import METADATA_NAMES
from duckicelake.translate.types import (
    HIDE,
    PROPERTY,
    VARIANT,
    ColumnTree,
    columns_at,
    format_path,
    format_replacement,
    format_sql_leaf,
    get_path,
    list_defaulted,
    quote,
)
from duckicelake.translate.unreadable_columns import hides_columns


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """A table at the lake's head. `oldest_row`: the lake snapshot of its oldest live row. `has_files`: it has data files in DuckLake."""

    state: TableState
    tree: ColumnTree
    oldest_row: int
    has_files: bool

    @property
    def name(self) -> str:
        """The name of the table with its schema."""
        return f"{self.state.table.schema_name}.{self.state.table.table_name}"


Affected = Sequence[ColumnRow]


@dataclass(frozen=True, slots=True)
class ReaderLimit:
    """A limit of a reader on certain columns, such as "Spark" "cannot read columns of the type TIME", with the remedy.

    `find` returns the affected columns of a table. `format_example` returns SQL that helps for one of them.
    """

    readers: str
    effect: str
    remedy: str
    find: Callable[[CheckedTable], Affected]
    format_example: Callable[[CheckedTable, ColumnRow], str] | None = None


def to_checked_table(state: TableState, oldest_row: int, *, has_files: bool) -> CheckedTable:
    """Return the table that the limits are checked on, from a completely read state."""
    return CheckedTable(state, columns_at(state.columns, state.column_tags, state.position.lake_snapshot_id), oldest_row, has_files)


def select_types(types: Iterable[str], table: CheckedTable) -> Affected:
    """Return the columns and nested fields with one of these DuckLake types."""
    wanted = frozenset(types)
    return [row for rows in table.tree.children.values() for row in rows if row.column_type.lower() in wanted]


def select_types_in_files(types: Iterable[str], table: CheckedTable) -> Affected:
    """Return the columns of these DuckLake types if the table has data files; files of inlined rows do not have the limit."""
    return select_types(types, table) if table.has_files else ()


def select_shown_variants(table: CheckedTable) -> Affected:
    """Return the columns of the type VARIANT that are published."""
    return () if hides_columns(table.state.tags) else select_types((VARIANT,), table)


def select_reserved_names(table: CheckedTable) -> Affected:
    """Return the columns with the name of one of Iceberg's metadata columns."""
    return [row for row in table.tree.children.get(None, ()) if row.column_name in METADATA_NAMES]


def select_defaults(table: CheckedTable) -> Affected:
    """Return the columns whose default some live rows read."""
    defaulted = list_defaulted(table.state, table.oldest_row)
    return [row for row in table.tree.children.get(None, ()) if row.column_id in defaulted]


def select_younger(table: CheckedTable) -> Affected:
    """Return the columns that are younger than a live row, or that a file lacks."""
    first: dict[int, int] = {}
    for row in table.state.columns:
        first[row.column_id] = min(row.begin_snapshot, first.get(row.column_id, row.begin_snapshot))
    roots = table.tree.children.get(None, ())
    return [row for row in roots if first[row.column_id] > table.oldest_row or row.column_id in table.state.lacked]


def select_double_partitions(table: CheckedTable) -> Affected:
    """Return the columns of the type double by whose values live files may be partitioned, by DuckDB or a client."""
    live = (row for row in table.state.partitions if row.end_snapshot is None or row.end_snapshot > table.oldest_row)
    parted = {row.column_id for row in live if row.transform == IDENTITY}
    for note in table.state.notes.specs:
        parted |= {field["source-id"] for field in json.loads(note.json) if field["transform"] == IDENTITY and not note.is_removed}
    return [row for row in select_types(DOUBLES, table) if row.column_id in parted]


def format_type_change(types: Mapping[str, str], table: CheckedTable, column: ColumnRow) -> str:
    """Return the SQL that gives a column a type that the reader reads; other types inside it are unchanged."""
    root = get_path(column.column_id, table.tree)[0]
    return format_replacement(table.state.table, root, table.tree, lambda leaf: types.get(leaf) or format_sql_leaf(leaf))


def format_rename(table: CheckedTable, column: ColumnRow) -> str:
    """Return the SQL that gives a column a free name."""
    taken = {row.column_name.lower() for row in table.tree.children.get(None, ())} | V1_0.reserved_names
    name = column.column_name.lstrip("_")
    while name.lower() in taken:
        name += "_"
    return f"ALTER TABLE {format_table(table)} RENAME COLUMN {quote(column.column_name)} TO {quote(name)};"


def format_rewrite(table: CheckedTable, column: ColumnRow) -> str:
    """Return the SQL that writes a column's default into data files."""
    name = quote(column.column_name)
    return " ".join(("UPDATE", format_table(table), "SET", name, "=", f"{name};"))


def format_table(table: CheckedTable) -> str:
    """Return the table's name in SQL."""
    return f"{quote(table.state.table.schema_name)}.{quote(table.state.table.table_name)}"


def list_columns(table: CheckedTable, affected: Affected) -> list[str]:
    """Return the full names of columns and nested fields."""
    return [format_path(get_path(row.column_id, table.tree)) for row in affected]


IDENTITY = "identity"
DOUBLES = ("float64",)
UNSIGNED = {"uint8": "INTEGER", "uint16": "INTEGER", "uint32": "BIGINT"}
TIMES = {"time": "VARCHAR", "timetz": "VARCHAR"}
NANOSECONDS = {"timestamp_ns": "TIMESTAMP"}
SHAPES = {"geometry": "VARCHAR"}


def limit_types(readers: str, effect: str, remedy: str, types: Mapping[str, str]) -> ReaderLimit:
    """Return the limit of a reader that cannot read some DuckLake types, each with the SQL type that it reads."""
    return ReaderLimit(readers, effect, remedy, partial(select_types, types), partial(format_type_change, types))


REPLACE = "Replace the column with DuckDB, going on only as long as nothing fails"
READER_LIMITS: Sequence[ReaderLimit] = (
    limit_types(
        "Spark",
        "cannot read columns of the types UTINYINT, USMALLINT and UINTEGER in files that DuckDB writes",
        REPLACE,
        UNSIGNED,
    ),
    limit_types("Spark", "cannot read columns of the types TIME and TIMETZ", REPLACE, TIMES),
    limit_types(
        "Spark",
        "cannot read columns of the type TIMESTAMP_NS",
        f"{REPLACE} (TIMESTAMP has microseconds: cast to VARCHAR or BIGINT to keep more)",
        NANOSECONDS,
    ),
    limit_types(
        "Spark before Iceberg 1.12, PyIceberg, and Trino without its geospatial plugin",
        "cannot read columns of the type GEOMETRY",
        REPLACE,
        SHAPES,
    ),
    ReaderLimit(
        "PyIceberg without `duckicelake.pyiceberg_v3.install()`",
        "cannot load tables with columns of the type VARIANT",
        f"Leave the columns out with the table property {PROPERTY}={HIDE}, or replace them with DuckDB",
        select_shown_variants,
        partial(format_type_change, {}),
    ),
    ReaderLimit(
        "Spark",
        "cannot read tables with columns that are called like Iceberg's metadata columns",
        "Rename the column with DuckDB",
        select_reserved_names,
        format_rename,
    ),
    ReaderLimit(
        "Daft, Flink SQL and ClickHouse",
        "return NULL, without an error, in place of a column's default in rows that are older than the column",
        "Write the default into files with DuckDB",
        select_defaults,
        format_rewrite,
    ),
    ReaderLimit(
        "Spark (Iceberg 1.11)",
        "may lose rows when a query filters by a column whose default older rows lack",
        "Filter by `coalesce(column, value)`, or write the default into files with DuckDB",
        select_defaults,
        format_rewrite,
    ),
    ReaderLimit(
        "DataFusion",
        "returns values of another column, without an error, when a query selects only columns that are younger than a file",
        "Select an older column in the same query, or write the column into all files with DuckDB",
        select_younger,
        format_rewrite,
    ),
    ReaderLimit(
        "PyIceberg 0.12",
        "misses rows, without an error, when a query filters by a DOUBLE column by whose values the table is partitioned",
        "Filter after the scan, or partition by another column and rewrite the files",
        select_double_partitions,
    ),
    ReaderLimit(
        "Polars",
        "cannot read columns of the type JSON in files that DuckDB writes",
        'Use `pl.scan_iceberg(table, reader_override="pyiceberg")`, or VARCHAR columns',
        partial(select_types_in_files, ("json",)),
    ),
)
"""Every limit that `check` warns of. To add one, add it here and to docs/upstream.md."""
