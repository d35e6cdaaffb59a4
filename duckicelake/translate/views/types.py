"""Types of views' columns: of DuckLake's rows, and in DuckDB's SQL."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count

from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType, find_decimal
from duckicelake.lake.rows import ColumnRow
from duckicelake.translate.shape.leaf_types import find_primitive
from duckicelake.translate.views.columns import Column

UNTOLD = PrimitiveType("string")
"""What stands for a type that only DuckDB's binder knows: every engine can show any value as text."""

SQL_TYPES: Mapping[str, str] = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
    "timestamp_ns": "TIMESTAMP_NS",
    "string": "VARCHAR",
    "uuid": "UUID",
    "binary": "BLOB",
}


def to_columns(rows: Sequence[ColumnRow]) -> list[Column]:
    """Return the columns of a table; None is the type of those that Iceberg has no word for."""
    return [Column(row.column_name, _find_type(row, rows)) for row in rows if row.parent_column is None]


def _find_type(row: ColumnRow, rows: Sequence[ColumnRow]) -> IcebergType | None:
    kind = row.column_type.lower()
    if kind not in ("struct", "list", "map"):
        return find_primitive(kind)
    children = [child for child in rows if child.parent_column == row.column_id]
    found = [(child.column_name, _find_type(child, rows)) for child in children]
    types = [found_type for _, found_type in found if found_type is not None]
    if len(types) < len(children) or not types:
        return None
    match kind, types:
        case "list", [element]:
            return ListType(0, element, False)
        case "map", [key, value]:
            return MapType(0, key, 0, value, False)
        case "struct", _:
            return StructType(tuple(NestedField(0, name, kept, False) for (name, _), kept in zip(found, types, strict=True)))
        case _:
            return None


def number_fields(columns: Sequence[Column]) -> tuple[NestedField, ...]:
    """Return columns as the fields of a schema, with ids from 1; a type that is not told is a text."""
    ids = count(1)
    roots = [next(ids) for _ in columns]
    return tuple(
        NestedField(field_id, column.name, _number(column.type or UNTOLD, ids), False)
        for field_id, column in zip(roots, columns, strict=True)
    )


def _number(found: IcebergType, ids: Iterator[int]) -> IcebergType:
    match found:
        case StructType(fields):
            return StructType(tuple(replace(item, field_id=next(ids), type=_number(item.type, ids)) for item in fields))
        case ListType():
            return replace(found, element_id=next(ids), element_type=_number(found.element_type, ids))
        case MapType():
            return replace(
                found,
                key_id=next(ids),
                key_type=_number(found.key_type, ids),
                value_id=next(ids),
                value_type=_number(found.value_type, ids),
            )
        case _:
            return found


def format_sql_type(found: IcebergType) -> str:
    """Return a type in DuckDB's SQL; a text for what it has no word for."""
    match found:
        case StructType(fields):
            return f"STRUCT({', '.join(f'{quote(item.name)} {format_sql_type(item.type)}' for item in fields)})" if fields else "VARCHAR"
        case ListType():
            return f"{format_sql_type(found.element_type)}[]"
        case MapType():
            return f"MAP({format_sql_type(found.key_type)}, {format_sql_type(found.value_type)})"
        case PrimitiveType():
            decimal = find_decimal(found)
            return f"DECIMAL({decimal[0]}, {decimal[1]})" if decimal else SQL_TYPES.get(found.name, "VARCHAR")


def quote(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'
