"""The subset of SQL that means the same in Spark and in DuckDB: a closed list of syntax nodes.

Left out on purpose: division and subtraction (other result types), casts and functions (other corner cases),
LIKE and backslashes (other escapes), USING and NATURAL (another order of columns), LIMIT (another order of rows).
"""

import logging
from collections.abc import Mapping

from sqlglot import ErrorLevel, exp, parse
from sqlglot.errors import SqlglotError
from sqlglot.expressions.core import Expr

from duckicelake.translate.views.parser import MAX_SQL

DUCKDB, SPARK = "duckdb", "spark"
BINARY = frozenset({"this", "expression"})
ONE = frozenset({"this"})
LISTED = frozenset({"expressions"})
NOTHING: frozenset[str] = frozenset()

EXACT: Mapping[type[Expr], frozenset[str]] = {
    exp.Select: frozenset({"with_", "expressions", "distinct", "from_", "joins", "where", "group", "having", "order"}),
    exp.With: LISTED,
    exp.CTE: frozenset({"this", "alias"}),
    exp.Union: frozenset({"with_", "this", "expression", "distinct", "order"}),
    exp.Distinct: LISTED,
    exp.From: ONE,
    exp.Join: frozenset({"this", "on", "side", "kind"}),
    exp.Where: ONE,
    exp.Group: LISTED,
    exp.Having: ONE,
    exp.Order: LISTED,
    exp.Ordered: frozenset({"this", "desc", "nulls_first"}),
    exp.Table: frozenset({"this", "db", "catalog", "alias"}),
    exp.TableAlias: frozenset({"this", "columns"}),
    exp.Subquery: frozenset({"this", "alias"}),
    exp.Alias: frozenset({"this", "alias"}),
    exp.Column: frozenset({"this", "table"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.Star: NOTHING,
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Boolean: ONE,
    exp.Null: NOTHING,
    exp.Paren: ONE,
    exp.And: BINARY,
    exp.Or: BINARY,
    exp.Not: ONE,
    exp.EQ: BINARY,
    exp.NEQ: BINARY,
    exp.GT: BINARY,
    exp.GTE: BINARY,
    exp.LT: BINARY,
    exp.LTE: BINARY,
    exp.NullSafeEQ: BINARY,
    exp.Is: BINARY,
    exp.In: frozenset({"this", "expressions", "query"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.Exists: ONE,
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.If: frozenset({"this", "true"}),
    exp.Coalesce: frozenset({"this", "expressions"}),
    exp.Add: BINARY,
    exp.Mul: BINARY,
    exp.Neg: ONE,
    exp.Count: frozenset({"this", "big_int"}),
    exp.Sum: ONE,
    exp.Min: ONE,
    exp.Max: ONE,
}
"""The arguments that each kind of node may have; any other node or argument has no exact translation."""

JOINS = frozenset({("", ""), ("", "INNER"), ("", "CROSS"), ("LEFT", ""), ("RIGHT", ""), ("FULL", ""), ("LEFT", "OUTER")}) | {
    ("RIGHT", "OUTER"),
    ("FULL", "OUTER"),
}


def find_translation(sql: str, output_names: tuple[str, ...] | None) -> str | None:
    """Return a Spark query in DuckDB's dialect if both mean the same, else None.

    `output_names` are the columns that Spark stored for the query; without them a query with `*` depends on the tables' current
    columns, and is not translated.
    """
    tree = _find_tree(sql, SPARK)
    if tree is None or not all(_is_exact(node) for node in tree.walk()):
        return None
    has_star = any(not isinstance(node.parent, exp.Count) for node in tree.find_all(exp.Star))
    if has_star and output_names is None:
        return None
    if has_star and output_names is not None:
        wanted = [exp.column(exp.to_identifier(name, quoted=True)) for name in output_names]
        tree = exp.select(*wanted).from_(tree.subquery("query"))
    return _find_text(tree, DUCKDB)


def find_spark_text(sql: str) -> str | None:
    """Return a DuckDB query, as DuckDB writes it, in Spark's dialect if both mean the same, else None."""
    tree = _find_tree(sql, DUCKDB)
    if tree is None:
        return None
    try:
        simplified = tree.transform(_as_plain)
    except RecursionError:
        return None
    return _find_text(simplified, SPARK) if all(_is_exact(node) for node in simplified.walk()) else None


def _as_plain(node: Expr) -> Expr:
    """Undo the rewriting of COUNT(*) and booleans by DuckDB's serializer."""
    if isinstance(node, exp.Anonymous) and node.name.lower() == "count_star" and not node.expressions:
        return exp.Count(this=exp.Star(), big_int=True)
    if isinstance(node, exp.Cast) and node.to.is_type("boolean") and isinstance(node.this, exp.Literal) and node.name in ("t", "f"):
        return exp.Boolean(this=node.name == "t")
    return node


def _find_tree(sql: str, dialect: str) -> exp.Select | exp.Union | None:
    if len(sql) > MAX_SQL or "\\" in sql or "/*+" in sql:
        return None
    # sqlglot would log the texts that it cannot parse.
    logging.getLogger("sqlglot").setLevel(logging.ERROR)
    try:
        statements = parse(sql, read=dialect, error_level=ErrorLevel.RAISE)
    except (SqlglotError, RecursionError, ValueError):
        return None
    only = statements[0] if len(statements) == 1 else None
    return only if isinstance(only, exp.Select | exp.Union) else None


def _find_text(tree: Expr, dialect: str) -> str | None:
    try:
        return tree.sql(dialect=dialect, comments=False, unsupported_level=ErrorLevel.RAISE)
    except (SqlglotError, RecursionError):
        return None


def _is_exact(node: Expr) -> bool:
    allowed = EXACT.get(type(node))
    if allowed is None or any(value not in (None, [], "", False) and key not in allowed for key, value in node.args.items()):
        return False
    if isinstance(node, exp.Join):
        return (str(node.side).upper(), str(node.kind).upper()) in JOINS
    if isinstance(node, exp.Literal) and not node.is_string:
        return node.name.replace(".", "", 1).isdecimal()
    return True
