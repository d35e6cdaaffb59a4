"""DuckLake's leaf types in Iceberg: the published types, replacements for the others, and the SQL that replaces a column. No I/O.

`types`, `schemas`, `views` and `functions` of `translate` use it for loads; `name_mapping` asks `reads_as_stored` for files that other
writers made (loads and commits); `reader_limits` formats SQL for `duckicelake check`.

A type is published if every reader reads its values from DuckDB's Parquet files unchanged. Some hold only a part of their
values exactly (`PARTIAL`): a value outside of that part makes the server refuse the table. Once such a column is dropped, it is
left out of older schemas too, so that the table can be read again.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from duckicelake.iceberg.types import PrimitiveType, decimal_type
from duckicelake.lake.rows import ColumnRow, TableRow

PRIMITIVES: Mapping[str, str] = {
    "boolean": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "uint8": "int",
    "uint16": "int",
    "uint32": "long",
    "int128": "double",
    "uint128": "double",
    "float32": "float",
    "float64": "double",
    "varchar": "string",
    "json": "string",
    "blob": "binary",
    "uuid": "uuid",
    "date": "date",
    "time": "time",
    "timetz": "time",
    "timestamp": "timestamp",
    "timestamp_us": "timestamp",
    "timestamp_s": "timestamp",
    "timestamp_ms": "timestamp",
    "timestamp_ns": "timestamp_ns",
    "timestamptz": "timestamptz",
    "timestamptz_ns": "timestamptz_ns",
    "null": "unknown",
    "geometry": "geometry",
}
"""DuckLake types that Iceberg readers read unchanged from DuckDB's Parquet files."""

WHOLE_DOUBLES = frozenset({"int128", "uint128"})
"""Integer types that DuckDB writes to Parquet as doubles."""

PARTIAL = WHOLE_DOUBLES | {"uint32", "timetz"}
"""uint32: values below 2^31. int128, uint128: values that a double holds. timetz: times in UTC."""

ONLY_IN_V3 = frozenset({"timestamp_ns", "timestamptz_ns", "unknown", "geometry"})
"""Iceberg types that need format version 3."""

REPLACEMENTS: Mapping[str, str] = {
    "uint32": "BIGINT",
    "uint64": "DECIMAL(20, 0)",
    "int128": "DECIMAL(38, 0)",
    "uint128": "DECIMAL(38, 0)",
    "variant": "JSON",
}
"""A published type that can hold the values of the unpublished one; VARCHAR for the others."""

PROPERTY, REFUSE, HIDE = "iceberg.unreadable-columns", "refuse", "hide"
"""The table property that says what becomes of a column that Iceberg cannot represent."""

SQL_NAMES: Mapping[str, str] = {
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
}
"""DuckDB's SQL names of published types whose DuckLake name is not a SQL name."""

DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


def find_primitive(column_type: str) -> PrimitiveType | None:
    """Return the Iceberg type of a DuckLake leaf type, or None if it is not published."""
    if column_type in PRIMITIVES:
        return PrimitiveType(PRIMITIVES[column_type])
    decimal = DECIMAL.fullmatch(column_type)
    return decimal_type(int(decimal[1]), int(decimal[2])) if decimal else None


def format_sql_leaf(column_type: str) -> str:
    """Return the SQL name of a leaf type, or of its replacement."""
    if column_type in PARTIAL or find_primitive(column_type) is None:
        return REPLACEMENTS.get(column_type, "VARCHAR")
    return SQL_NAMES.get(column_type, column_type.upper())


STORED_KINDS: Mapping[str, str] = {
    "boolean": "bool",
    "int8": "int8",
    "int16": "u?int8|int16",
    "int32": "u?int8|u?int16|int32",
    "int64": "u?int8|u?int16|int32|int64",
    "uint8": "uint8",
    "uint16": "uint8|uint16",
    "uint32": "uint8|uint16|uint32",
    "float32": "float",
    "float64": "float|double",
    "varchar": "(large_)?string(_view)?|extension<arrow.json>",
    "json": "(large_)?string(_view)?|extension<arrow.json>",
    "blob": "(large_)?binary(_view)?|fixed_size_binary.*",
    "uuid": "extension<arrow.uuid>|fixed_size_binary.16.",
    "date": "date32.*",
    "time": "time64.us.",
    "timestamp": "timestamp.(us|ms).",
    "timestamp_us": "timestamp.(us|ms).",
    "timestamp_s": "nothing",
    "timestamp_ms": "timestamp.ms.",
    "timestamp_ns": "timestamp.ns.",
    "timestamptz": "timestamp.(us|ms), tz=.*",
    "timestamptz_ns": "timestamp.ns, tz=.*",
}
"""Arrow types that a file of another writer may store for a DuckLake type, so that Iceberg readers return the same values as DuckDB."""


def reads_as_stored(ducklake_type: str, kind: str) -> bool:
    """Return True if DuckDB and Iceberg readers read the same values from a column stored as this Arrow type."""
    stored = re.fullmatch(r"decimal(?:32|64|128)\((\d+), (\d+)\)", kind)
    column = re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", ducklake_type)
    if column is not None:
        return stored is not None and stored[2] == column[2] and int(stored[1]) <= int(column[1])
    return re.fullmatch(STORED_KINDS.get(ducklake_type, ".*"), kind) is not None


FindLeaf = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class ColumnTree:
    """The columns live at one lake snapshot, by parent (None: the table) in column order."""

    children: Mapping[int | None, Sequence[ColumnRow]]
    comments: Mapping[int, str]


def quote(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def format_remedy(table: TableRow, root: ColumnRow, tree: ColumnTree) -> str:
    """Return the advice to replace a column with DuckDB by one of a published type, with its name and values.

    Older snapshots lose the column by that.
    """
    return f"Replace it with DuckDB, going on only as long as nothing fails: {format_replacement(table, root, tree)}"


def format_choice(table: TableRow, root: ColumnRow, tree: ColumnTree) -> str:
    """Return the advice to leave a column out, or to replace it."""
    return f"Leave it out with the table property {PROPERTY}={HIDE}, or keep its values. {format_remedy(table, root, tree)}"


def format_replacement(table: TableRow, root: ColumnRow, tree: ColumnTree, find_leaf: FindLeaf = format_sql_leaf) -> str:
    """Return the SQL by which DuckDB replaces a column by one of another type, with its name and values.

    `find_leaf` returns the SQL type that replaces a DuckLake leaf type.
    """
    taken = {row.column_name.lower() for row in tree.children.get(None, ())}
    spare = f"{root.column_name}_"
    while spare.lower() in taken:
        spare += "_"
    kind = format_sql_type(root, tree, find_leaf)
    name, old, new = f"{quote(table.schema_name)}.{quote(table.table_name)}", quote(root.column_name), quote(spare)
    steps = (
        ("ALTER TABLE", name, "ADD COLUMN", new, kind),
        ("UPDATE", name, "SET", new, "=", f"CAST({old} AS {kind})"),
        ("ALTER TABLE", name, "DROP COLUMN", old),
        ("ALTER TABLE", name, "RENAME COLUMN", new, "TO", old),
    )
    return f"{'; '.join(' '.join(words) for words in steps)};"


def format_sql_type(row: ColumnRow, tree: ColumnTree, find_leaf: FindLeaf = format_sql_leaf) -> str:
    """Return a column's type in SQL, with replacements of leaves that are not published."""
    parts = [(child, format_sql_type(child, tree, find_leaf)) for child in tree.children.get(row.column_id, ())]
    match row.column_type.lower():
        case "struct":
            return f"STRUCT({', '.join(f'{quote(child.column_name)} {kind}' for child, kind in parts)})"
        case "list":
            return f"{parts[0][1]}[]"
        case "map":
            return f"MAP({parts[0][1]}, {parts[1][1]})"
        case leaf:
            return find_leaf(leaf)
