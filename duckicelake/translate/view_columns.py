"""The columns of a DuckDB view from its parsed text, without binding or running it: all names, and the types that are evident.

The types of columns of tables, constants, casts, comparisons and counts are evident; the types of other expressions are known
only to DuckDB's binder. `catalog.views` calls this for loads and changes of views, with the columns that the named tables have. No I/O.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import NamedTuple, cast

from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, PrimitiveType, StructType, find_decimal
from duckicelake.lake.rows import ColumnRow
from duckicelake.translate.namespaces import fold_name
from duckicelake.translate.sql import Tree
from duckicelake.translate.types import find_primitive

DUCKLAKE_NAMES: Mapping[str, str] = {
    "BOOLEAN": "boolean",
    "TINYINT": "int8",
    "SMALLINT": "int16",
    "INTEGER": "int32",
    "BIGINT": "int64",
    "FLOAT": "float32",
    "DOUBLE": "float64",
    "VARCHAR": "varchar",
    "BLOB": "blob",
    "DATE": "date",
    "TIME": "time",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP WITH TIME ZONE": "timestamptz",
    "UUID": "uuid",
}
"""DuckLake's names of DuckDB's types without parameters."""

BOOLEANS = ("COMPARE_", "CONJUNCTION_", "OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL", "OPERATOR_NOT")
MAX_COLUMNS = 10_000
SET_OPERATIONS = frozenset({"UNION", "EXCEPT", "INTERSECT"})
COUNTS = frozenset({"count", "count_star"})


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """A column of a query; its type is None if the text does not show it."""

    name: str
    type: IcebergType | None


ViewColumns = Sequence[ViewColumn]
Relations = Mapping[tuple[str, str], ViewColumns]
"""Columns of tables and views by (schema, name), both folded."""


class _Unknown(Exception):
    """The text does not show which columns there are."""


@dataclass(frozen=True, slots=True)
class QueryScope:
    """The meaning of names inside a query."""

    relations: Relations
    default_schema: str
    format_expression: Callable[[Tree], str]
    ctes: Mapping[str, ViewColumns]


def find_columns(tree: Tree, scope: QueryScope) -> ViewColumns | None:
    """Return the columns of a query in order, or None if its text does not show them."""
    try:
        return _read_query(tree["statements"][0]["node"], scope)
    except (_Unknown, KeyError, TypeError, RecursionError):
        return None


def _read_query(node: Tree, scope: QueryScope) -> ViewColumns:
    scope = _with_ctes(node, scope)
    if node["type"] == "SELECT_NODE":
        sources = _read_source(node["from_table"], scope)
        columns = [column for item in node["select_list"] for column in _read_item(item, sources, scope)]
        if len(columns) > MAX_COLUMNS:
            raise _Unknown
        return columns
    if node["type"] == "SET_OPERATION_NODE" and node["setop_type"] in SET_OPERATIONS:
        parts = node.get("children") or [node["left"], node["right"]]
        first, *rest = (_read_query(part, scope) for part in parts)
        for other in rest:
            if len(other) != len(first):
                raise _Unknown
            first = [a if a.type == b.type else replace(a, type=None) for a, b in zip(first, other, strict=True)]
        return first
    raise _Unknown


def _with_ctes(node: Tree, scope: QueryScope) -> QueryScope:
    for entry in node["cte_map"]["map"]:
        columns = _rename(_read_query(entry["value"]["query"]["node"], scope), entry["value"]["aliases"])
        scope = replace(scope, ctes={**scope.ctes, fold_name(entry["key"]): columns})
    return scope


class FromItem(NamedTuple):
    """A name in FROM, its columns, and the schema that may qualify it, for tables and views without an alias."""

    name: str
    columns: ViewColumns
    schema_name: str | None = None


def _read_source(node: Tree, scope: QueryScope) -> list[FromItem]:
    kind, alias = node["type"], node["alias"]
    if kind == "EMPTY":
        return []
    if kind == "BASE_TABLE":
        columns, schema_name = _find_relation(node, scope)
        return [FromItem(alias or node["table_name"], _rename(columns, node["column_name_alias"]), None if alias else schema_name)]
    if kind == "SUBQUERY":
        return [FromItem(alias, _rename(_read_query(node["subquery"]["node"], scope), node["column_name_alias"]))]
    if kind == "JOIN" and node["ref_type"] in ("REGULAR", "CROSS") and node["join_type"] in ("INNER", "LEFT", "RIGHT", "OUTER"):
        if node["using_columns"]:
            raise _Unknown
        return [*_read_source(node["left"], scope), *_read_source(node["right"], scope)]
    raise _Unknown


def _find_relation(node: Tree, scope: QueryScope) -> tuple[ViewColumns, str | None]:
    """Return the columns of a table, view or CTE, and its schema."""
    name = fold_name(node["table_name"])
    if not node["schema_name"] and not node["catalog_name"] and name in scope.ctes:
        return scope.ctes[name], None
    schema_name = fold_name(node["schema_name"] or scope.default_schema)
    return scope.relations[schema_name, name], schema_name


def _rename(columns: ViewColumns, names: Sequence[str]) -> ViewColumns:
    if len(names) > len(columns):
        raise _Unknown
    return [replace(column, name=name) for column, name in zip(columns, names, strict=False)] + list(columns[len(names) :])


def _read_item(item: Tree, sources: Sequence[FromItem], scope: QueryScope) -> Iterable[ViewColumn]:
    if item["class"] == "STAR":
        return _read_star(item, sources)
    if item["class"] == "COLUMN_REF":
        type_ = _find_column(item["column_names"], sources)
        return [ViewColumn(item["alias"] or item["column_names"][-1], type_)]
    return [ViewColumn(item["alias"] or scope.format_expression(item), _find_expression_type(item, sources))]


def _read_star(item: Tree, sources: Sequence[FromItem]) -> list[ViewColumn]:
    changes = ("replace_list", "rename_list", "qualified_exclude_list", "expr")
    if item["columns"] or any(item.get(key) for key in changes):
        raise _Unknown
    relation = fold_name(item["relation_name"])
    matching = [source.columns for source in sources if not relation or fold_name(source.name) == relation]
    excluded = {fold_name(name) for name in item["exclude_list"]}
    return [column for columns in matching for column in columns if fold_name(column.name) not in excluded]


def _find_column(path: Sequence[str], sources: Sequence[FromItem]) -> IcebergType | None:
    """Return the type of a plain column; None for a part of a struct, and for a name that two tables have."""
    *table, name = (fold_name(part) for part in path)
    matching = [source for source in sources if tuple(table) in _list_prefixes(source)]
    types = [column.type for source in matching for column in source.columns if fold_name(column.name) == name]
    return types[0] if len(types) == 1 else None


def _list_prefixes(source: FromItem) -> Sequence[tuple[str, ...]]:
    """Return the qualifiers that a column of the source may have."""
    name = fold_name(source.name)
    return [(), (name,), *([] if source.schema_name is None else [(source.schema_name, name)])]


def _find_expression_type(item: Tree, sources: Sequence[FromItem]) -> IcebergType | None:
    kind = item["type"]
    if item["class"] == "COLUMN_REF":
        return _find_column(item["column_names"], sources)
    if item["class"] == "CONSTANT" and not item["value"]["is_null"]:
        return _find_named_type(item["value"]["type"])
    if item["class"] == "CAST" and not item["try_cast"]:
        return _find_named_type(item["cast_type"])
    if item["class"] == "FUNCTION" and item["function_name"] in COUNTS:
        return PrimitiveType("long")
    return PrimitiveType("boolean") if kind.startswith(BOOLEANS) else None


def _find_named_type(type_node: Tree) -> IcebergType | None:
    kind, info = type_node["id"], cast("Tree", type_node.get("type_info") or {})
    if kind == "DECIMAL" and "width" in info:
        return find_primitive(f"decimal({info['width']},{info['scale']})")
    return find_primitive(DUCKLAKE_NAMES.get(kind, "")) if not info else None


ALIAS = re.compile(r'"((?:[^"]|"")*)"')


def name_columns(read_columns: ViewColumns | None, column_aliases: str) -> ViewColumns:
    """Return a view's columns under the names that DuckDB shows: its aliases first, and no name twice.

    Shape:  `column_aliases` is `"a","b"`, in DuckLake's words
    """
    aliases = [name.replace('""', '"') for name in ALIAS.findall(column_aliases)]
    if read_columns is None or len(read_columns) < len(aliases):
        read_columns = [ViewColumn(name, None) for name in aliases]
    named: list[ViewColumn] = []
    used: set[str] = set()
    for column in _rename(read_columns, aliases):
        name, number = column.name, 0
        while fold_name(name) in used:
            number += 1
            name = f"{column.name}_{number}"
        used.add(fold_name(name))
        named.append(replace(column, name=name))
    return named


TYPE_OF_UNKNOWN = PrimitiveType("string")
"""The published type of a column whose type only DuckDB's binder knows: every engine can show any value as text."""

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
    "timestamptz_ns": "TIMESTAMPTZ_NS",
    "unknown": '"NULL"',
    "string": "VARCHAR",
    "uuid": "UUID",
    "binary": "BLOB",
}


def to_columns(rows: Sequence[ColumnRow]) -> list[ViewColumn]:
    """Return the columns of a table; a type that Iceberg lacks is None."""
    return [ViewColumn(row.column_name, _find_type(row, rows)) for row in rows if row.parent_column is None]


def _find_type(row: ColumnRow, rows: Sequence[ColumnRow]) -> IcebergType | None:
    kind = row.column_type.lower()
    if kind not in ("struct", "list", "map"):
        return find_primitive(kind)
    children = [child for child in rows if child.parent_column == row.column_id]
    child_types = [(child.column_name, _find_type(child, rows)) for child in children]
    types = [found_type for _, found_type in child_types if found_type is not None]
    if len(types) < len(children) or not types:
        return None
    match kind, types:
        case "list", [element]:
            return ListType(0, element, False)
        case "map", [key, value]:
            return MapType(0, key, 0, value, False)
        case "struct", _:
            return StructType(
                tuple(NestedField(0, name, child_type, False) for (name, _), child_type in zip(child_types, types, strict=True))
            )
        case _:
            return None


def number_fields(columns: Sequence[ViewColumn]) -> tuple[NestedField, ...]:
    """Return columns as the fields of a schema, with ids from 1; an unknown type becomes a string."""
    ids = count(1)
    roots = [next(ids) for _ in columns]
    return tuple(
        NestedField(field_id, column.name, _number(column.type or TYPE_OF_UNKNOWN, ids), False)
        for field_id, column in zip(roots, columns, strict=True)
    )


def _number(type_: IcebergType, ids: Iterator[int]) -> IcebergType:
    match type_:
        case StructType(fields):
            return StructType(tuple(replace(item, field_id=next(ids), type=_number(item.type, ids)) for item in fields))
        case ListType():
            return replace(type_, element_id=next(ids), element_type=_number(type_.element_type, ids))
        case MapType():
            return replace(
                type_,
                key_id=next(ids),
                key_type=_number(type_.key_type, ids),
                value_id=next(ids),
                value_type=_number(type_.value_type, ids),
            )
        case _:
            return type_


def format_sql_type(type_: IcebergType) -> str:
    """Return a type in DuckDB's SQL; VARCHAR for types that it lacks."""
    match type_:
        case StructType(fields):
            return f"STRUCT({', '.join(f'{quote(item.name)} {format_sql_type(item.type)}' for item in fields)})" if fields else "VARCHAR"
        case ListType():
            return f"{format_sql_type(type_.element_type)}[]"
        case MapType():
            return f"MAP({format_sql_type(type_.key_type)}, {format_sql_type(type_.value_type)})"
        case PrimitiveType():
            decimal = find_decimal(type_)
            return f"DECIMAL({decimal[0]}, {decimal[1]})" if decimal else SQL_TYPES.get(type_.name, "VARCHAR")


def quote(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'
