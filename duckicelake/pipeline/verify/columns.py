"""Columns as Iceberg sees them, in the words of DuckDB, and what of a table can be compared."""

from collections.abc import Mapping
from typing import Any

from duckicelake.errors import Unsupported
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType, find_decimal, walk_fields
from duckicelake.pipeline.verify.tally import GROUPED_BY, CompareSpec, GroupField

_DUCKDB: Mapping[str, str] = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    # Spark shows it as text.
    "uuid": "VARCHAR",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
}


def quote(name: str) -> str:
    """A name in DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def format_select(schema: Schema, table: str, lake_snapshot_id: int | None, names: Mapping[int, str] | None = None) -> str:
    """The query that shows DuckLake's rows in Iceberg's columns; `names` are those that DuckLake has there, by field id.

    Raises: Unsupported: DuckLake lacks a column there
    """
    columns = ", ".join(
        f"{_format_value(quote(_get_lake_name(item, names)), item.type, names)} AS {quote(item.name)}" for item in schema.fields
    )
    at = "" if lake_snapshot_id is None else f" AT (VERSION => {lake_snapshot_id})"
    return f"SELECT {columns} FROM {table}{at}"  # noqa: S608  names are quoted


def check_readable(schema: Schema) -> None:
    """Raises: Unsupported: there is a column that Spark does not read, so nobody can compare."""
    unread = find_unread(schema)
    if unread is not None:
        raise Unsupported(f"column {unread[0]} is {unread[1]}, which Spark does not read")


def find_unread(schema: Schema) -> tuple[str, PrimitiveType] | None:
    """A column, also inside others, of a type that Spark does not read; None: there is none."""
    leaves = ((path, item.type) for path, item in walk_fields(schema.fields) if isinstance(item.type, PrimitiveType))
    return next(((path, form) for path, form in leaves if _find_leaf(form) is None), None)


def build_compare_spec(schema: Schema, spec: Mapping[str, Any]) -> CompareSpec:
    """What to compare: all columns, grouped by those parts of the partition spec that say something of a row by name."""
    sources = {item.field_id: item for item in schema.fields}
    groups: list[GroupField] = []
    for part in spec["fields"]:
        source = sources.get(part["source-id"])
        if part["transform"] in GROUPED_BY and source is not None and isinstance(source.type, PrimitiveType):
            groups.append(GroupField(source.name, source.type, part["transform"]))
    return CompareSpec(schema.fields, tuple(groups))


def _get_lake_name(item: NestedField, names: Mapping[int, str] | None) -> str:
    if names is None:
        return item.name
    if item.field_id not in names:
        raise Unsupported(f"column {item.name} (id {item.field_id}) was dropped in DuckLake before main came to these rows")
    return names[item.field_id]


def _is_renamed(form: IcebergType, names: Mapping[int, str] | None) -> bool:
    """Whether some field of a struct has another name in DuckLake: casts go by names."""
    match form:
        case StructType(fields):
            return any([_get_lake_name(item, names) != item.name or _is_renamed(item.type, names) for item in fields])
        case ListType():
            return _is_renamed(form.element_type, names)
        case MapType():
            return _is_renamed(form.key_type, names) or _is_renamed(form.value_type, names)
        case PrimitiveType():
            return False


def _format_value(value: str, form: IcebergType, names: Mapping[int, str] | None, depth: int = 0) -> str:
    """A value of DuckLake as Iceberg's type has it. `depth` keeps names of lambdas' parameters apart."""
    one = f"x{depth}"
    match form:
        case StructType(fields) if _is_renamed(form, names):
            theirs = [(item, f"struct_extract({value}, {_quote_text(_get_lake_name(item, names))})") for item in fields]
            parts = ", ".join(f"{quote(item.name)} := {_format_value(field, item.type, names, depth)}" for item, field in theirs)
            return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({parts}) END"
        case ListType() if _is_renamed(form, names):
            return f"list_transform({value}, lambda {one}: {_format_value(one, form.element_type, names, depth + 1)})"
        case MapType() if _is_renamed(form, names):
            inner = (("key", form.key_type), ("value", form.value_type))
            parts = ", ".join(f"{name} := {_format_value(f'{one}.{name}', type_, names, depth + 1)}" for name, type_ in inner)
            return f"map_from_entries(list_transform(map_entries({value}), lambda {one}: struct_pack({parts})))"
        case _:
            return f"CAST({value} AS {_format_type(form)})"


def _quote_text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _format_type(form: IcebergType) -> str:
    match form:
        case StructType(fields):
            return f"STRUCT({', '.join(f'{quote(item.name)} {_format_type(item.type)}' for item in fields)})"
        case ListType():
            return f"{_format_type(form.element_type)}[]"
        case MapType():
            return f"MAP({_format_type(form.key_type)}, {_format_type(form.value_type)})"
        case PrimitiveType():
            return _find_leaf(form) or ""


def _find_leaf(form: PrimitiveType) -> str | None:
    if form.name.startswith("fixed"):
        return "BLOB"
    decimal = find_decimal(form)
    return _DUCKDB.get(form.name) if decimal is None else f"DECIMAL({decimal[0]}, {decimal[1]})"
