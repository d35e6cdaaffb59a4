"""DuckDB's macros as Iceberg functions: macros from DuckLake's rows, the SQL with which the binder types them, and their definitions.

`catalog.functions` calls this on a worker thread, when a function is loaded. DuckDB only parses
the texts here; `function_binder` runs in a process of its own. No I/O.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any, Literal, NamedTuple, cast
from uuid import UUID, uuid5

from duckicelake.iceberg.function_metadata import (
    FunctionDefinition,
    FunctionLogEntry,
    FunctionMetadata,
    FunctionParameter,
    FunctionVersion,
    format_signature,
)
from duckicelake.iceberg.types import IcebergType, ListType, MapType, NestedField, StructType
from duckicelake.lake.rows import ColumnRow, MacroRow
from duckicelake.translate.namespaces import fold_name
from duckicelake.translate.sql import NameContext, Parser, Tree, as_query, find_qualified_query, list_names
from duckicelake.translate.types import SQL_NAMES, WHOLE_DOUBLES, columns_at, find_primitive, format_sql_type, quote
from duckicelake.translate.view_columns import DUCKLAKE_NAMES

UNTYPED = "unknown"
"""DuckLake's word for a parameter without a type, and for the type of a default that is not there."""

MAX_VERSIONS = 20
"""Versions of a macro before its current one that are published."""


@dataclass(frozen=True, slots=True)
class MacroParameter:
    """A parameter; its type is in DuckLake's words. `default_value` is a text of type `default_type`, None if there is no default."""

    name: str
    type: str
    default_value: str | None
    default_type: str


@dataclass(frozen=True, slots=True)
class MacroOverload:
    """One implementation of a macro."""

    impl_id: int
    dialect: str
    sql: str
    kind: Literal["scalar", "table"]
    parameters: tuple[MacroParameter, ...]


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro from its lake snapshot on, until it is replaced or dropped."""

    schema_name: str
    schema_uuid: UUID
    name: str
    macro_id: int
    begin_snapshot: int
    end_snapshot: int | None
    begun_at: datetime
    overloads: tuple[MacroOverload, ...]

    @property
    def kind(self) -> Literal["scalar", "table"]:
        """Scalar and table macros of one name are two macros."""
        return self.overloads[0].kind


def to_macros(rows: Sequence[MacroRow]) -> list[Macro]:
    """Return macros from their rows, which are in order of macro and implementation."""
    return [_to_macro(list(found)) for _, found in groupby(rows, lambda row: row.macro_id)]


def _to_macro(rows: Sequence[MacroRow]) -> Macro:
    first = rows[0]
    overloads = tuple(_to_overload(list(found)) for _, found in groupby(rows, lambda row: row.impl_id))
    return Macro(
        first.schema_name,
        first.schema_uuid,
        first.macro_name,
        first.macro_id,
        first.begin_snapshot,
        first.end_snapshot,
        first.begun_at,
        overloads,
    )


def _to_overload(rows: Sequence[MacroRow]) -> MacroOverload:
    first = rows[0]
    parameters = tuple(
        MacroParameter(
            row.parameter_name,
            (row.parameter_type or UNTYPED).lower(),
            None if row.default_value_type == UNTYPED else row.default_value,
            row.default_value_type,
        )
        for row in rows
        if row.parameter_name is not None
    )
    return MacroOverload(first.impl_id, first.dialect, first.sql, first.kind, parameters)


def list_versions(macro: Macro, macros: Sequence[Macro]) -> list[Macro]:
    """Return the latest `MAX_VERSIONS` macros that a live one has replaced, one after the other, and itself at the end.

    DuckDB replaces a macro by ending it and creating another of its name at the same lake snapshot.
    """
    versions = [macro]
    while len(versions) <= MAX_VERSIONS:
        begin = versions[0].begin_snapshot
        earlier = [other for other in macros if other.end_snapshot == begin and other.begin_snapshot < begin and _is_same(other, macro)]
        if not earlier:
            break
        versions.insert(0, earlier[-1])
    return versions


def _is_same(a: Macro, b: Macro) -> bool:
    return a.kind == b.kind and fold_name(a.schema_name) == fold_name(b.schema_name) and fold_name(a.name) == fold_name(b.name)


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
    """Return queries whose columns are the macro's result; the first that DuckDB accepts gives its types.

    The first gives columns as arguments, because DuckDB takes what it does with a constant NULL for a NULL without a type. The second
    gives constants, for macros that allow nothing else, as in LIMIT.
    """
    columns = [f'p."{position}"' for position, _ in enumerate(overload.parameters)]
    source = ", ".join(
        f'CAST(NULL AS {format_leaf(parameter.type)}) AS "{position}"' for position, parameter in enumerate(overload.parameters)
    )
    constants = [_format_example(parameter.type) for parameter in overload.parameters]
    with_columns, with_constants = _format_macro_call(macro, overload, name, columns), _format_macro_call(macro, overload, name, constants)
    if overload.kind == "table":
        return [*([f"FROM (SELECT {source}) AS p, {with_columns} AS r SELECT r.*"] if columns else []), f"FROM {with_constants}"]
    return [*([f"FROM (SELECT {source}) AS p SELECT {with_columns}"] if columns else []), SELECT + with_constants]


def _format_macro_call(macro: Macro, overload: MacroOverload, name: str, arguments: Sequence[str]) -> str:
    given = (
        value if parameter.default_value is None else f"{quote(parameter.name)} := {value}"
        for parameter, value in zip(overload.parameters, arguments, strict=True)
    )
    return f"{quote(macro.schema_name)}.{quote(name)}({', '.join(given)})"


def _format_example(column_type: str) -> str:
    value = EXAMPLES["date"] if column_type.startswith("timestamp") else EXAMPLES.get(column_type, "1")
    return f"CAST('{value}' AS {format_leaf(column_type)})"


RESULT_NAMES: Mapping[str, str] = {
    **DUCKLAKE_NAMES,
    "UTINYINT": "uint8",
    "USMALLINT": "uint16",
    "UINTEGER": "uint32",
    "TIMESTAMP_S": "timestamp_s",
    "TIMESTAMP_MS": "timestamp_ms",
    "TIMESTAMP_NS": "timestamp_ns",
    "JSON": "json",
    "GEOMETRY": "geometry",
}
"""DuckLake's names of the types that DuckDB's binder returns, as far as Iceberg has them."""

INEXACT = WHOLE_DOUBLES | {"timetz"}
"""DuckLake types that tables store as types which cannot hold all their values; a function would return them."""


class NotExpressible(Exception):
    """Why an implementation is left out."""


@dataclass(frozen=True, slots=True)
class BoundOverload:
    """An implementation with its texts by dialect and the binder's answer, `{"columns": [[name, type], …]}` or `{"error": text}`."""

    macro: Macro
    overload: MacroOverload
    texts: Mapping[str, str]
    answer: Mapping[str, Any]


class _Candidate(NamedTuple):
    """A version of a definition that is not built yet."""

    macro: Macro
    kind: Literal["scalar", "table"]
    parameters: tuple[FunctionParameter, ...]
    return_type: IcebergType
    version: FunctionVersion

    @property
    def definition_id(self) -> str:
        return format_signature([parameter.type for parameter in self.parameters])


@dataclass(frozen=True, slots=True)
class TranslatedFunction:
    """A function's metadata, and each current implementation that is left out with the reason. No metadata: all are left out."""

    metadata: FunctionMetadata | None
    left_out: tuple[str, ...]


def translate_function(bound: Sequence[BoundOverload]) -> TranslatedFunction:
    """Return the function of all live macros of one name, with the versions that they replaced.

    An earlier implementation is a version of the definition with its parameter types if it returns the same type.
    """
    candidates: list[_Candidate] = []
    left_out: list[str] = []
    for item in sorted(bound, key=lambda item: (item.macro.end_snapshot is not None, item.macro.begin_snapshot, item.overload.impl_id)):
        try:
            candidates.append(_check_against(_to_candidate(item), candidates, is_live=item.macro.end_snapshot is None))
        except NotExpressible as error:
            if item.macro.end_snapshot is None:
                left_out.append(f"{_format_call(item)}: {error}")
    if not candidates:
        return TranslatedFunction(None, tuple(left_out))
    macro = candidates[0].macro
    properties = {"left-out": "; ".join(left_out)} if left_out else {}
    definitions = tuple(_build_definitions(candidates))
    # DuckLake gives macros no uuid: the function of a name in a schema is one, also after it was dropped and created again
    metadata = FunctionMetadata(
        uuid5(macro.schema_uuid, f"function {fold_name(macro.name)}"), definitions, tuple(_build_log(candidates)), properties
    )
    return TranslatedFunction(metadata, tuple(left_out))


def _format_call(item: BoundOverload) -> str:
    return f"{item.macro.name}({', '.join(f'{parameter.name} {parameter.type}' for parameter in item.overload.parameters)})"


def _to_candidate(item: BoundOverload) -> _Candidate:
    """Return an implementation as a version. Raises: NotExpressible: Iceberg cannot have it"""
    parameters = tuple(FunctionParameter(parameter.name, _to_parameter_type(parameter.type)) for parameter in item.overload.parameters)
    if item.overload.dialect != "duckdb":
        raise NotExpressible(f"its dialect is {item.overload.dialect!r}")
    if "error" in item.answer:
        raise NotExpressible(item.answer["error"])
    columns = [(name, _to_result_type(told)) for name, told in cast("list[tuple[str, Any]]", item.answer["columns"])]
    return_type = _to_struct(columns) if item.overload.kind == "table" else columns[0][1]
    version = FunctionVersion(item.macro.begin_snapshot, item.macro.begun_at, dict(item.texts))
    return _Candidate(item.macro, item.overload.kind, parameters, return_type, version)


def _to_parameter_type(column_type: str) -> IcebergType:
    if column_type == UNTYPED:
        raise NotExpressible("a parameter has no type; declare it, as in (a INTEGER)")
    if column_type in NESTED:
        raise NotExpressible(f"DuckLake does not keep what a parameter of type {column_type} consists of")
    found = None if column_type in INEXACT else find_primitive(column_type)
    if found is None:
        raise NotExpressible(f"Iceberg has no type for a parameter of type {column_type}")
    return found


def _to_result_type(told: Any) -> IcebergType:
    """Return the Iceberg type of a result, from the binder's words."""
    match told:
        case {"list": element}:
            return ListType(0, _to_result_type(element), False)
        case {"map": [key, value]}:
            return MapType(0, _to_result_type(key), 0, _to_result_type(value), False)
        case {"struct": fields}:
            return _to_struct([(name, _to_result_type(kind)) for name, kind in cast("list[tuple[str, Any]]", fields)])
        case _:
            name = RESULT_NAMES.get(told, "")
            found = find_primitive(told.lower() if told.startswith("DECIMAL(") else name)
            if found is None:
                raise NotExpressible(f"Iceberg has no type for a result of type {told}; cast it")
            return found


def _to_struct(columns: Sequence[tuple[str, IcebergType]]) -> StructType:
    return StructType(tuple(NestedField(0, name, kind, False) for name, kind in columns))


def _check_against(found: _Candidate, candidates: Sequence[_Candidate], *, is_live: bool) -> _Candidate:
    """Return a version that fits the ones before it. Raises: NotExpressible: it does not"""
    others = [other for other in candidates if other.definition_id == found.definition_id]
    if is_live and others:
        raise NotExpressible("another implementation has the same parameter types in Iceberg")
    if not is_live and not (others and (others[0].kind, others[0].return_type) == (found.kind, found.return_type)):
        raise NotExpressible("it is no version of a definition that is left")
    return found


def _order(candidates: Sequence[_Candidate], key: Callable[[_Candidate], Any]) -> Iterator[tuple[Any, list[_Candidate]]]:
    for value, group in groupby(sorted(candidates, key=key), key):
        yield value, list(group)


def _build_definitions(candidates: Sequence[_Candidate]) -> Iterator[FunctionDefinition]:
    positions = {found.definition_id: position for position, found in reversed(list(enumerate(candidates)))}
    for _, group in _order(candidates, lambda found: positions[found.definition_id]):
        versions = sorted(group, key=lambda found: found.version.version_id)
        newest = versions[-1]
        kind: Literal["udf", "udtf"] = "udtf" if newest.kind == "table" else "udf"
        yield FunctionDefinition(newest.parameters, newest.return_type, kind, tuple(found.version for found in versions))


def _build_log(candidates: Sequence[_Candidate]) -> Iterator[FunctionLogEntry]:
    for snapshot, begun in _order(candidates, lambda found: found.macro.begin_snapshot):
        current = [found for found in candidates if _is_live_at(found.macro, snapshot)]
        pairs = sorted((found.definition_id, found.version.version_id) for found in current)
        yield FunctionLogEntry(begun[0].version.created_at, tuple(pairs))


def _is_live_at(macro: Macro, snapshot: int) -> bool:
    return macro.begin_snapshot <= snapshot and (macro.end_snapshot is None or snapshot < macro.end_snapshot)
