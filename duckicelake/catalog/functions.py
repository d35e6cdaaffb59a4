"""Functions: list and load. DuckDB creates them as macros; every load reads the lake, so it shows the latest change.

`rest/routes/views.py` calls this on worker threads, and `commands.management` for the command line. Macros are read in a read transaction;
after its end the binder, a process, finds their result types.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from duckicelake.access.grants import format_name
from duckicelake.catalog.namespaces import find_schema, get_parent
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import NoSuchFunction, Unsupported
from duckicelake.iceberg.function_metadata import encode_function
from duckicelake.lake.connect import read_format, reading
from duckicelake.lake.read_views import find_view, read_macro_names, read_macros, read_named_columns
from duckicelake.translate.functions import (
    SELECT,
    Body,
    BoundOverload,
    Macro,
    MacroOverload,
    find_body,
    find_overload_body,
    format_macro,
    format_questions,
    format_schema,
    format_table,
    format_view,
    list_versions,
    to_macros,
    translate_function,
)
from duckicelake.translate.namespaces import fold_name, to_levels, to_schema_name
from duckicelake.translate.sql import NameContext, Parser, open_parser
from duckicelake.translate.views import DUCKDB, SPARK, find_spark_text

MAX_STATEMENTS = 1_000
"""Tables, views and macros that are followed from one function."""
MAIN = "main"
OverloadKey = tuple[int, int]
"""(id of the macro, id of the implementation)."""
RelationName = tuple[str, str]
"""(schema, name)."""


def list_functions(warehouse: Warehouse, levels: tuple[str, ...]) -> list[Ident]:
    """Return the functions of a namespace in order of name.

    Raises: NoSuchNamespace: it does not exist
    """
    with reading(warehouse.lake) as conn:
        schema = find_schema(conn, levels)
        if schema is None:
            get_parent(conn, levels)
            return []
        stored = to_levels(schema.schema_name)
        return [Ident(stored, name) for name in read_macro_names(conn, schema.schema_id)]


def load_function(warehouse: Warehouse, ident: Ident) -> dict[str, Any]:
    """Return a function's metadata as JSON.

    Raises: NoSuchFunction: it does not exist. Unsupported: Iceberg can express none of its implementations
    """
    with open_parser() as parser:
        with reading(warehouse.lake) as conn:
            versions = _read_versions(conn, ident)
            environment = Environment(conn, parser, warehouse.name, read_format(conn).nests_schemas)
            for macro in versions:
                environment.add_macro(macro, _get_bound_name(macro))
            environment.follow()
        overloads = [(macro, overload) for macro in versions for overload in macro.overloads]
        texts = [environment.list_texts(macro, overload) for macro, overload in overloads]
    asked = [pair for pair, found in zip(overloads, texts, strict=True) if found]
    questions = [format_questions(macro, overload, _get_bound_name(macro)) for macro, overload in asked]
    answers = iter(warehouse.binder.bind(warehouse.name, environment.list_statements(), questions))
    translated = translate_function(
        [
            BoundOverload(macro, overload, found, next(answers) if found else {"error": environment.get_refusal(macro, overload)})
            for (macro, overload), found in zip(overloads, texts, strict=True)
        ]
    )
    if translated.metadata is None:
        raise Unsupported(f"The function {ident} cannot be expressed in Iceberg: {'; '.join(translated.left_out)}.")
    return encode_function(translated.metadata)


@dataclass(frozen=True, slots=True)
class FunctionSummary:
    """What clients load of a function. `name`: as the command line takes it; `left_out`: what they do not, and why; None: nothing."""

    name: str
    definition_ids: Sequence[str]
    left_out: str | None


def summarize_function(warehouse: Warehouse, ident: Ident) -> FunctionSummary:
    """Return what clients load of a function, which may be nothing. Raises: NoSuchFunction."""
    name = format_name((*ident.namespace, ident.name))
    try:
        metadata = load_function(warehouse, ident)
    except Unsupported as refused:
        return FunctionSummary(name, (), refused.message)
    ids = [definition["definition-id"] for definition in metadata["definitions"]]
    return FunctionSummary(name, ids, metadata.get("properties", {}).get("left-out"))


def _read_versions(conn: psycopg.Connection, ident: Ident) -> list[Macro]:
    """Return the live macros of a name with those that they replaced."""
    schema_name, name = fold_name(to_schema_name(ident.namespace)), fold_name(ident.name)
    macros = [macro for macro in to_macros(read_macros(conn, [name], with_history=True)) if fold_name(macro.schema_name) == schema_name]
    live = [macro for macro in macros if macro.end_snapshot is None]
    if not live:
        raise NoSuchFunction(f"Function does not exist: {ident}")
    return [version for macro in live for version in list_versions(macro, macros)]


def _get_bound_name(macro: Macro) -> str:
    """Return the name under which the binder knows a macro; an earlier version has one of its own."""
    return macro.name if macro.end_snapshot is None else f"{macro.name} {macro.macro_id}"


@dataclass(slots=True)
class Environment:
    """Macros, and all tables, views and macros of the lake that they name, directly or not, as statements for the binder."""

    conn: psycopg.Connection
    parser: Parser
    catalog: str
    nests_schemas: bool
    _bodies: dict[OverloadKey, Body] = field(default_factory=dict[OverloadKey, Body])
    _refusals: dict[OverloadKey, str] = field(default_factory=dict[OverloadKey, str])
    _statements: dict[str, None] = field(default_factory=dict[str, None])
    _columns: dict[RelationName, frozenset[str] | None] = field(default_factory=dict[RelationName, frozenset[str] | None])
    _macros: set[int] = field(default_factory=set[int])
    _relations_to_read: set[RelationName] = field(default_factory=set[RelationName])
    _functions_to_read: set[str] = field(default_factory=set[str])
    _functions_read: set[str] = field(default_factory=set[str])

    def add_macro(self, macro: Macro, name: str) -> None:
        """Add a macro under a name."""
        if macro.macro_id in self._macros:
            return
        self._macros.add(macro.macro_id)
        sqls: dict[int, str] = {}
        for overload in macro.overloads:
            found = self._read_body(macro, overload)
            if isinstance(found, str):
                self._refusals[macro.macro_id, overload.impl_id] = found
            else:
                self._bodies[macro.macro_id, overload.impl_id] = found
                sqls[overload.impl_id] = found.sql
                self._note(found)
        statement = format_macro(macro, sqls, name)
        if statement is not None:
            self._add(macro.schema_name, statement)

    def _read_body(self, macro: Macro, overload: MacroOverload) -> Body | str:
        """Return the text of an implementation with qualified names, or why it cannot be published.

        DuckDB takes a name without a schema from the schema that the session uses: the macro's own or `main`, if only one of them
        has all those names.
        """
        own = find_overload_body(self.parser, overload, self._build_names(macro.schema_name))
        main = find_overload_body(self.parser, overload, self._build_names(MAIN))
        if own is None or main is None:
            return "it reads something other than tables and views of this lake"
        free = {name for _, name in own.relations - main.relations}
        in_own = {name for name in free if self._is_relation(macro.schema_name, name)}
        in_main = {name for name in free if self._is_relation(MAIN, name)}
        if in_main == free and free and not in_own:
            return main
        if in_main:
            return f"it reads {', '.join(sorted(free))} without a schema, which {macro.schema_name} and {MAIN} have; write the schema"
        return own

    def _build_names(self, schema_name: str) -> NameContext:
        return NameContext(to_levels(schema_name), self.catalog, nests_schemas=self.nests_schemas)

    def _is_relation(self, schema_name: str, name: str) -> bool:
        return bool(read_named_columns(self.conn, schema_name, name)) or find_view(self.conn, schema_name, name) is not None

    def follow(self) -> None:
        """Read all that the macros name, and what that names in turn."""
        while (self._relations_to_read or self._functions_to_read) and len(self._statements) < MAX_STATEMENTS:
            names = self._functions_to_read - self._functions_read
            self._functions_read |= names
            self._functions_to_read.clear()
            for macro in to_macros(read_macros(self.conn, sorted(names))):
                self.add_macro(macro, macro.name)
            relations, self._relations_to_read = self._relations_to_read, set()
            for schema_name, name in sorted(relations):
                if (schema_name, name) not in self._columns:
                    self._add_relation(schema_name, name)

    def _add_relation(self, schema_name: str, name: str) -> None:
        rows = read_named_columns(self.conn, schema_name, name)
        roots = frozenset(fold_name(row.column_name) for row in rows if row.parent_column is None)
        self._columns[schema_name, name] = roots if rows else None
        if rows:
            self._add(schema_name, format_table(schema_name, name, rows))
            return
        view = find_view(self.conn, schema_name, name)
        body = None if view is None else find_body(self.parser, view.sql, self._build_names(view.schema_name))
        if view is not None and body is not None:
            self._note(body)
            self._add(schema_name, format_view(schema_name, name, view.column_aliases, body.sql))

    def _note(self, body: Body) -> None:
        self._relations_to_read |= body.relations
        self._functions_to_read |= body.functions

    def _add(self, schema_name: str, statement: str) -> None:
        self._statements[format_schema(schema_name)] = None
        self._statements[statement] = None

    def list_statements(self) -> list[str]:
        """Return the statements in one order for one state of the lake."""
        return sorted(self._statements)

    def get_refusal(self, macro: Macro, overload: MacroOverload) -> str:
        """Return why an implementation has no text."""
        return self._refusals[macro.macro_id, overload.impl_id]

    def list_texts(self, macro: Macro, overload: MacroOverload) -> dict[str, str]:
        """Return the texts of an implementation by dialect; none if it cannot be published."""
        body = self._bodies.get((macro.macro_id, overload.impl_id))
        if body is None:
            return {}
        spark = self._find_spark(overload, body)
        return {DUCKDB: body.sql} | ({} if spark is None else {SPARK: spark})

    def _find_spark(self, overload: MacroOverload, body: Body) -> str | None:
        """Return the text for Spark if both mean the same: Spark takes a column before a parameter of its name, DuckDB the parameter."""
        parameters = {fold_name(parameter.name) for parameter in overload.parameters}
        columns = [self._columns.get(name) for name in body.relations]
        if not all(found is not None and not found & parameters for found in columns):
            return None
        if overload.kind == "table":
            return find_spark_text(body.sql)
        text = find_spark_text(SELECT + body.sql)
        return text.removeprefix(SELECT) if text is not None and text.startswith(SELECT) else None
