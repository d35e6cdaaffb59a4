"""What single readers do not read of a table that is published, and what helps: `READER_LIMITS` is the one list of it.

`duckicelake check` warns from this list. A limit is the reader's own; the published table is right, and other readers read it.
Versions: Spark 3.5 to 4.1 with Iceberg 1.11, Trino 483, PyIceberg 0.12, Polars 2.1, Daft 0.7.26, Flink 2.1, ClickHouse 26.9,
DataFusion with pyiceberg-core 0.11. docs/upstream.md describes each limit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from duckicelake.lake.rows import ColumnRow, TableState
from duckicelake.translate.leaf_types import ColumnTree, format_replacement, format_sql_leaf, quote
from duckicelake.translate.to_ducklake.columns import METADATA_NAMES, RESERVED_NAMES
from duckicelake.translate.types import columns_at, format_path, get_path, list_defaulted


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table at the lake's head. `oldest_row`: the lake snapshot of its oldest live row. `has_files`: DuckLake has data files of it."""

    state: TableState
    tree: ColumnTree
    oldest_row: int
    has_files: bool

    @property
    def name(self) -> str:
        """The schema and the table."""
        return f"{self.state.table.schema_name}.{self.state.table.table_name}"


Affected = Sequence[ColumnRow]


@dataclass(frozen=True, slots=True)
class ReaderLimit:
    """What a reader does with certain columns: "Spark" "cannot read columns of the type TIME", and what helps.

    `find` returns the columns of a table that are concerned. `format_example` returns SQL that helps with one of them.
    """

    readers: str
    effect: str
    remedy: str
    find: Callable[[PublishedTable], Affected]
    format_example: Callable[[PublishedTable, ColumnRow], str] | None = None


def read_published_table(state: TableState, oldest_row: int, *, has_files: bool) -> PublishedTable:
    """Return what the limits look at, of a state that was read whole."""
    return PublishedTable(state, columns_at(state.columns, state.column_tags, state.position.lake_snapshot_id), oldest_row, has_files)


def select_types(types: Iterable[str], table: PublishedTable) -> Affected:
    """Return the columns, and parts of columns, that have one of these DuckLake types."""
    wanted = frozenset(types)
    return [row for rows in table.tree.children.values() for row in rows if row.column_type.lower() in wanted]


def select_types_in_files(types: Iterable[str], table: PublishedTable) -> Affected:
    """Return the columns of these DuckLake types when the table has data files: inlined rows are published in files of another kind."""
    return select_types(types, table) if table.has_files else ()


def select_reserved_names(table: PublishedTable) -> Affected:
    """Return the columns that are called like one of Iceberg's metadata columns."""
    return [row for row in table.tree.children.get(None, ()) if row.column_name in METADATA_NAMES]


def select_defaults(table: PublishedTable) -> Affected:
    """Return the columns with a default that live rows lack."""
    defaulted = list_defaulted(table.state, table.oldest_row)
    return [row for row in table.tree.children.get(None, ()) if row.column_id in defaulted]


def select_younger(table: PublishedTable) -> Affected:
    """Return the columns that are younger than some live row, or that a file lacks."""
    first: dict[int, int] = {}
    for row in table.state.columns:
        first[row.column_id] = min(row.begin_snapshot, first.get(row.column_id, row.begin_snapshot))
    roots = table.tree.children.get(None, ())
    return [row for row in roots if first[row.column_id] > table.oldest_row or row.column_id in table.state.lacked]


def format_type_change(types: Mapping[str, str], table: PublishedTable, column: ColumnRow) -> str:
    """Return the SQL that gives a column a type that the reader reads; other types inside it stay as they are."""
    root = get_path(column.column_id, table.tree)[0]
    return format_replacement(table.state.table, root, table.tree, lambda leaf: types.get(leaf) or format_sql_leaf(leaf))


def format_rename(table: PublishedTable, column: ColumnRow) -> str:
    """Return the SQL that gives a column a name that is free."""
    taken = {row.column_name.lower() for row in table.tree.children.get(None, ())} | RESERVED_NAMES
    name = column.column_name.lstrip("_")
    while name.lower() in taken:
        name += "_"
    return f"ALTER TABLE {format_table(table)} RENAME COLUMN {quote(column.column_name)} TO {quote(name)};"


def format_rewrite(table: PublishedTable, column: ColumnRow) -> str:
    """Return the SQL that writes a column's default into data files."""
    name = quote(column.column_name)
    return " ".join(("UPDATE", format_table(table), "SET", name, "=", f"{name};"))


def format_table(table: PublishedTable) -> str:
    """Return the table as SQL names it."""
    return f"{quote(table.state.table.schema_name)}.{quote(table.state.table.table_name)}"


def list_columns(table: PublishedTable, affected: Affected) -> list[str]:
    """Return the full names of columns and of parts of them."""
    return [format_path(get_path(row.column_id, table.tree)) for row in affected]


UNSIGNED = {"uint8": "INTEGER", "uint16": "INTEGER", "uint32": "BIGINT"}
TIMES = {"time": "VARCHAR", "timetz": "VARCHAR"}
NANOSECONDS = {"timestamp_ns": "TIMESTAMP"}
SHAPES = {"geometry": "VARCHAR"}


def limit_types(readers: str, effect: str, remedy: str, types: Mapping[str, str]) -> ReaderLimit:
    """Return the limit of a reader that does not read some DuckLake types, each with the SQL type that it reads."""
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
    limit_types("Spark, PyIceberg, and Trino without its geospatial plugin", "cannot read columns of the type GEOMETRY", REPLACE, SHAPES),
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
        "Polars",
        "cannot read columns of the type JSON in files that DuckDB writes",
        'Use `pl.scan_iceberg(table, reader_override="pyiceberg")`, or VARCHAR columns',
        partial(select_types_in_files, ("json",)),
    ),
)
"""Every limit that `check` warns of. A limit that is not here is not warned of: add it here, and to docs/upstream.md."""
