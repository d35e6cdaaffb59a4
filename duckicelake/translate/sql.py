"""The SQL of views and macros, as data: DuckDB's own parser, from text to tree and back, and the names of tables in it.

The parser binds and runs nothing, and its connection has no external access. Names are qualified for DuckLake, and lose
`{DUCKLAKE_CATALOG}` for Iceberg clients.

`catalog.views` and `catalog.functions` call this with such a connection, in a read transaction or in none. Two changes of views may parse
under the lake's lock, in the commit's transaction: a rename to another namespace, and a commit to a view that DuckDB created or changed.
"""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import duckdb

from duckicelake.errors import BadRequest
from duckicelake.translate.namespaces import Levels, fold_name, to_schema_name

MAX_SQL = 65_536
"""The longest text of a view, in characters, that is parsed."""

CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
    "memory_limit": "256MB",
    "threads": "1",
}
"""The settings of each DuckDB that sees SQL of users: the parser here, and the process of `function_binder`."""

Tree = dict[str, Any]
"""A node of a query as DuckDB writes it in JSON."""


@dataclass(frozen=True, slots=True)
class Parser:
    """A DuckDB connection that only parses. For one thread."""

    _conn: duckdb.DuckDBPyConnection

    def find_query(self, sql: str) -> Tree | None:
        """Return the tree of a text that is exactly one query, or None for any other text."""
        if len(sql) > MAX_SQL or "\0" in sql:
            return None
        try:
            tree = cast("Tree", json.loads(self._ask("SELECT json_serialize_sql(?)", sql)))
        except (duckdb.Error, RecursionError, ValueError):
            return None
        return tree if not tree["error"] and len(tree["statements"]) == 1 else None

    def find_text(self, tree: Tree) -> str | None:
        """Return a tree as DuckDB writes it as text, or None if it cannot."""
        try:
            return self._ask("SELECT json_deserialize_sql(?::JSON)", json.dumps(tree))
        except (duckdb.Error, RecursionError, ValueError):
            return None

    def _ask(self, query: str, text: str) -> str:
        row = self._conn.execute(query, [text]).fetchone()
        assert row is not None
        return str(row[0])


def replace_unquoted(sql: str, old: str, new: str, *, in_names: bool = False) -> str:
    """Replace a part of a text outside of string constants and, unless `in_names`, of quoted names."""
    content = sql.encode()
    tokens = duckdb.tokenize(sql)
    ends = [start for start, _ in tokens[1:]] + [len(content)]
    parts: list[bytes] = []
    position = 0
    for (start, kind), end in zip(tokens, ends, strict=True):
        is_name = kind == duckdb.token_type.identifier and content[start : start + 1] == b'"'
        if kind == duckdb.token_type.string_const or (is_name and not in_names):
            parts += [content[position:start].replace(old.encode(), new.encode()), content[start:end]]
            position = end
    return b"".join([*parts, content[position:].replace(old.encode(), new.encode())]).decode()


@contextmanager
def open_parser() -> Generator[Parser]:
    """Open a parser, and close it at the end of the block."""
    with duckdb.connect(":memory:", config=CONFIG) as conn:
        yield Parser(conn)


CATALOG = "{DUCKLAKE_CATALOG}"
"""DuckLake's placeholder for the name under which a session has attached the lake."""

QUOTED_CATALOG = f'"{CATALOG}".'
HARMLESS_FUNCTIONS = frozenset({"range", "generate_series", "unnest"})
"""Table functions that read nothing outside the query."""


@dataclass(frozen=True, slots=True)
class NameContext:
    """The meaning of names in a query: `default_namespace` of an unqualified name, `own_catalog` for this lake.

    `is_own`: names without a catalog are in this lake. `nests_schemas`: DuckDB addresses a nested namespace by several names there,
    which its SQL parser does not take before DuckDB 2.0.
    """

    default_namespace: Levels
    own_catalog: str
    is_own: bool = True
    nests_schemas: bool = False


class _NotOwnTable(Exception):
    """The query reads something other than tables and views of this lake."""


def find_qualified_query(parser: Parser, sql: str, names: NameContext) -> str | None:
    """Return a DuckDB query with every table name fully qualified, or None if it reads anything else."""
    if CATALOG in sql and replace_unquoted(sql, CATALOG, "", in_names=True) != sql:
        return None
    tree = parser.find_query(sql)
    if tree is None:
        return None
    try:
        for table in list_tables(tree):
            _qualify(table, names)
    except (_NotOwnTable, BadRequest, RecursionError):
        return None
    text = parser.find_text(tree)
    return None if text is None else replace_unquoted(text, QUOTED_CATALOG, f"{CATALOG}.", in_names=True)


def _qualify(table: Tree, names: NameContext) -> None:
    catalog, schema = table["catalog_name"], table["schema_name"]
    if catalog:
        is_own = fold_name(catalog) == fold_name(names.own_catalog)
    else:
        is_own = names.is_own
    if not is_own or table["at_clause"] is not None:
        raise _NotOwnTable
    if not schema and names.nests_schemas and len(names.default_namespace) > 1:
        raise _NotOwnTable
    table["catalog_name"] = CATALOG
    table["schema_name"] = schema or to_schema_name(names.default_namespace)


def list_tables(tree: Tree) -> list[Tree]:
    """Return the nodes of all tables and views that a query reads, without its own CTEs.

    Raises: _NotOwnTable: it reads something else
    """
    return [table for statement in tree["statements"] for table in _walk(statement["node"], frozenset())]


def _walk(node: object, defined: frozenset[str]) -> Iterator[Tree]:
    if isinstance(node, list):
        for item in cast("list[object]", node):
            yield from _walk(item, defined)
    elif isinstance(node, dict):
        yield from _walk_node(cast("dict[str, Any]", node), defined)


def _walk_node(node: Tree, defined: frozenset[str]) -> Iterator[Tree]:
    kind = node.get("type")
    if kind == "BASE_TABLE" and "table_name" in node:
        is_defined = not node["schema_name"] and not node["catalog_name"] and fold_name(node["table_name"]) in defined
        if not is_defined:
            yield node
        return
    _check(kind, node)
    ctes = cast("Tree", node.get("cte_map") or {"map": []})
    for entry in ctes["map"]:
        yield from _walk(entry["value"], defined)
        defined |= {fold_name(entry["key"])}
    if kind == "RECURSIVE_CTE_NODE":
        yield from _walk(node["left"], defined)
        yield from _walk(node["right"], defined | {fold_name(node["cte_name"])})
        return
    for key, value in node.items():
        if key != "cte_map":
            yield from _walk(value, defined)


def _check(kind: object, node: Tree) -> None:
    if kind in ("SHOW_REF", "VALUE_PARAMETER", "PIVOT"):
        raise _NotOwnTable
    if kind == "TABLE_FUNCTION" and "function" in node and node["function"].get("function_name") not in HARMLESS_FUNCTIONS:
        raise _NotOwnTable


def list_names(tree: Tree, default_schema: str) -> set[tuple[str, str]]:
    """Return (schema, name) of the tables and views that a DuckLake view reads; empty if it reads anything else."""
    try:
        return {(table["schema_name"] or default_schema, table["table_name"]) for table in list_tables(tree)}
    except (_NotOwnTable, RecursionError):
        return set()


def as_query(sql: str) -> str:
    """Return a DuckLake view's text without the catalog placeholder: names without a catalog are in the view's own.

    Source: DuckLake puts the catalog's name there, but not into texts and quoted names (DuckLakeUtil::ReplaceSkippingQuotes)
    """
    return replace_unquoted(sql, f"{CATALOG}.", "") if f"{CATALOG}." in sql else sql
