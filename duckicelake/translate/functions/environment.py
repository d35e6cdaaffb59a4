"""The statements that make tables, views and macros of a lake known to the binder, and the query that asks for a macro's result."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from duckicelake.lake.rows import ColumnRow
from duckicelake.translate.functions.macros import Macro, MacroOverload, MacroParameter
from duckicelake.translate.leaf_types import SQL_NAMES, format_sql_type, quote
from duckicelake.translate.namespaces import fold_name
from duckicelake.translate.types import columns_at
from duckicelake.translate.views.names import NameContext, as_query, find_qualified_query, list_names
from duckicelake.translate.views.parser import Parser, Tree

EXACT_SQL_NAMES: Mapping[str, str] = {
    **SQL_NAMES,
    "int128": "HUGEINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "uint128": "UHUGEINT",
    "timestamp_us": "TIMESTAMP",
}
"""DuckDB's names of the DuckLake types whose own name is not one."""

NESTED = frozenset({"struct", "list", "map"})
SELECT = "SELECT "


@dataclass(frozen=True, slots=True)
class Body:
    """The text of an implementation, with every table and view qualified by its schema, and what it names.

    `relations` are (schema, name); `functions` are folded, and most are DuckDB's own.
    """

    sql: str
    relations: frozenset[tuple[str, str]]
    functions: frozenset[str]


def find_body(parser: Parser, sql: str, names: NameContext) -> Body | None:
    """Return a query with its names qualified, or None if it reads anything but tables and views of this lake."""
    qualified = find_qualified_query(parser, sql, names)
    if qualified is None:
        return None
    text = as_query(qualified)
    tree = parser.find_query(text)
    if tree is None:
        return None
    return Body(text, frozenset(list_names(tree, "")), frozenset(fold_name(name) for name in _list_functions(tree)))


def find_overload_body(parser: Parser, overload: MacroOverload, names: NameContext) -> Body | None:
    """Return the text of an implementation, or None if it reads anything but tables and views of this lake."""
    if overload.kind == "table":
        return find_body(parser, overload.sql, names)
    body = find_body(parser, SELECT + overload.sql, names)
    if body is None or not body.sql.startswith(SELECT):
        return None
    return Body(body.sql.removeprefix(SELECT), body.relations, body.functions)


def _list_functions(node: object) -> Iterator[str]:
    if isinstance(node, list):
        for item in cast("list[object]", node):
            yield from _list_functions(item)
    elif isinstance(node, dict):
        entry = cast("Tree", node)
        if entry.get("class") == "FUNCTION":
            yield entry["function_name"]
        for value in entry.values():
            yield from _list_functions(value)


def format_leaf(column_type: str) -> str:
    """Return DuckDB's name of a DuckLake type without children."""
    return EXACT_SQL_NAMES.get(column_type, column_type.upper())


def format_schema(schema_name: str) -> str:
    """Return the statement that creates a schema."""
    return f"CREATE SCHEMA {quote(schema_name)}"


def format_table(schema_name: str, table_name: str, rows: Sequence[ColumnRow]) -> str:
    """Return the statement that creates an empty table with a table's live columns."""
    tree = columns_at(rows, (), max(row.begin_snapshot for row in rows))
    columns = (f"{quote(row.column_name)} {format_sql_type(row, tree, format_leaf)}" for row in tree.children.get(None, ()))
    return f"CREATE TABLE {quote(schema_name)}.{quote(table_name)} ({', '.join(columns)})"


def format_view(schema_name: str, view_name: str, column_aliases: str, sql: str) -> str:
    """Return the statement that creates a view; `column_aliases` in DuckLake's words, `"a","b"`."""
    names = f" ({column_aliases})" if column_aliases else ""
    return f"CREATE VIEW {quote(schema_name)}.{quote(view_name)}{names} AS {sql}"


def format_macro(macro: Macro, bodies: Mapping[int, str], name: str) -> str | None:
    """Return the statement that creates a macro under a name, from the texts of its implementations by id; None if it has none."""
    keyword = "TABLE " if macro.kind == "table" else ""
    overloads = [
        f"({', '.join(_format_parameter(parameter) for parameter in overload.parameters)}) AS {keyword}{bodies[overload.impl_id]}"
        for overload in macro.overloads
        if overload.impl_id in bodies
    ]
    return f"CREATE MACRO {quote(macro.schema_name)}.{quote(name)}{', '.join(overloads)}" if overloads else None


def _format_parameter(parameter: MacroParameter) -> str:
    has_type = parameter.type not in NESTED and parameter.type != "unknown"
    declared = f"{quote(parameter.name)} {format_leaf(parameter.type)}" if has_type else quote(parameter.name)
    if parameter.default_value is None:
        return declared
    value = "'" + parameter.default_value.replace("'", "''") + "'"
    return f"{declared} := CAST({value} AS {format_leaf(parameter.default_type)})"


EXAMPLES: Mapping[str, str] = {
    "varchar": "a",
    "blob": "a",
    "json": "{}",
    "boolean": "true",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "date": "2000-01-01",
    "time": "00:00:00",
    "geometry": "POINT (0 0)",
}
"""A value of each type of a parameter as text; `timestamp…` takes that of a date, all others take 1."""


def format_questions(macro: Macro, overload: MacroOverload, name: str) -> list[str]:
    """Return queries whose columns are the macro's result; the first that DuckDB accepts tells its types.

    The first gives columns as arguments, because DuckDB takes what it does with a constant NULL for a NULL without a type. The second
    gives constants, for macros that allow nothing else, as in LIMIT.
    """
    columns = [f'p."{position}"' for position, _ in enumerate(overload.parameters)]
    source = ", ".join(
        f'CAST(NULL AS {format_leaf(parameter.type)}) AS "{position}"' for position, parameter in enumerate(overload.parameters)
    )
    constants = [_format_example(parameter.type) for parameter in overload.parameters]
    with_columns, with_constants = _format_call(macro, overload, name, columns), _format_call(macro, overload, name, constants)
    if overload.kind == "table":
        return [*([f"FROM (SELECT {source}) AS p, {with_columns} AS r SELECT r.*"] if columns else []), f"FROM {with_constants}"]
    return [*([f"FROM (SELECT {source}) AS p SELECT {with_columns}"] if columns else []), SELECT + with_constants]


def _format_call(macro: Macro, overload: MacroOverload, name: str, arguments: Sequence[str]) -> str:
    given = (
        value if parameter.default_value is None else f"{quote(parameter.name)} := {value}"
        for parameter, value in zip(overload.parameters, arguments, strict=True)
    )
    return f"{quote(macro.schema_name)}.{quote(name)}({', '.join(given)})"


def _format_example(column_type: str) -> str:
    value = EXAMPLES["date"] if column_type.startswith("timestamp") else EXAMPLES.get(column_type, "1")
    return f"CAST('{value}' AS {format_leaf(column_type)})"
