"""Names of tables in the SQL of views and macros: qualified for DuckLake, and without `{DUCKLAKE_CATALOG}` for Iceberg clients.

`catalog.views`, `view_changes` and `functions` call this with a DuckDB connection that only parses (`views.parser`). A rename of a view
to another namespace calls it in the commit's transaction, under the lake's lock.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from duckicelake.errors import BadRequest
from duckicelake.translate.namespaces import Levels, fold_name, to_schema_name
from duckicelake.translate.views.parser import Parser, Tree, replace_unquoted

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
