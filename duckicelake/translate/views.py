"""Views between Iceberg and DuckLake: a query that DuckDB reads as the client meant it, or one that raises an error.

Queries are translated only within the subset of SQL that means the same in Spark and in DuckDB, which is a closed list of syntax nodes.
Left out on purpose: division and subtraction (other result types), casts and functions (other corner cases),
LIKE and backslashes (other escapes), USING and NATURAL (another order of columns), LIMIT (another order of rows).
`catalog.views` calls this on worker threads, for some changes in their transaction; `catalog.functions` translates macros for Spark.
DuckDB only parses the texts; nothing is read. A translation silences the logger of `sqlglot` for the whole process.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from sqlglot import ErrorLevel, exp, parse
from sqlglot.errors import SqlglotError
from sqlglot.expressions.core import Expr

from duckicelake.iceberg.requests.bodies import CreateView
from duckicelake.iceberg.requests.table_changes import NewIdentity
from duckicelake.iceberg.requests.updates import LAST_ADDED, AddSchema, AddViewVersion, SetCurrentViewVersion
from duckicelake.iceberg.requests.view_changes import DROP_DIALECT, apply_view_updates, build_new_view
from duckicelake.iceberg.schema import Schema, is_same_schema
from duckicelake.iceberg.view_metadata import (
    SqlRepresentation,
    ViewMetadata,
    ViewVersion,
    encode_view,
    get_current_version,
    parse_view,
)
from duckicelake.lake.note_rows import LiveView, ViewNote
from duckicelake.translate.namespaces import fold_name, to_levels
from duckicelake.translate.sql import MAX_SQL, NameContext, Parser, as_query, find_qualified_query
from duckicelake.translate.view_columns import format_sql_type, quote

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


SPARK_COLUMNS = "spark.query-column-names"


@dataclass(frozen=True, slots=True)
class DuckLakeView:
    """The text and the column names of a `ducklake_view`. `is_readable`: DuckDB can select from it."""

    sql: str
    column_aliases: str
    is_readable: bool = True


def to_ducklake_view(parser: Parser, view: ViewMetadata, catalog_name: str, *, nests_schemas: bool = False) -> DuckLakeView:
    """Return the DuckLake view for a view's current version."""
    version = get_current_version(view)
    schema = next(item for item in view.schemas if item.schema_id == version.schema_id)
    is_own = version.default_catalog is None or fold_name(version.default_catalog) == fold_name(catalog_name)
    names = NameContext(version.default_namespace, catalog_name, is_own, nests_schemas)
    text = _find_duckdb_text(version, _find_spark_columns(view, schema))
    qualified = None if text is None else find_qualified_query(parser, text, names)
    if qualified is None or not _has_distinct_names(schema):
        dialects = [item.dialect for item in version.representations]
        return DuckLakeView(format_for_duckdb(dialects, schema), "", is_readable=False)
    return DuckLakeView(qualified, ",".join(quote(item.name) for item in schema.fields))


def _find_duckdb_text(version: ViewVersion, spark_columns: tuple[str, ...] | None) -> str | None:
    by_dialect = {item.dialect.lower(): item.sql for item in version.representations}
    if DUCKDB in by_dialect:
        return by_dialect[DUCKDB]
    return find_translation(by_dialect[SPARK], spark_columns) if SPARK in by_dialect else None


def _find_spark_columns(view: ViewMetadata, schema: Schema) -> tuple[str, ...] | None:
    text = view.properties.get(SPARK_COLUMNS)
    names = () if text is None else tuple(text.split(","))
    return names if names and len(names) == len(schema.fields) else None


def _has_distinct_names(schema: Schema) -> bool:
    return len({fold_name(item.name) for item in schema.fields}) == len(schema.fields)


WHERE = "AS reason) AS stand_in WHERE (reason IS NULL)"


def format_for_duckdb(dialects: Iterable[str], schema: Schema) -> str:
    """Return the text of a view that has no SQL for DuckDB: it has the view's columns and raises an error."""
    message = (
        f"This view has no SQL that means the same in DuckDB; its dialects: {', '.join(dialects)}. Query it with one of those engines."
    )
    reason = message.replace("'", "''").replace("{", "(").replace("\0", "")
    columns = [f"CAST(NULL AS {format_sql_type(item.type)}) AS {quote(item.name)}" for item in schema.fields]
    return " ".join(("SELECT", ", ".join(columns) or "NULL AS nothing", f"FROM (SELECT error('{reason}')", WHERE))


def format_for_spark(schema: Schema) -> str:
    """Return the Spark text of a DuckDB view that may mean something else in Spark, which would read DuckDB's text as its own dialect."""
    columns = ["NULL AS `" + item.name.replace("`", "``") + "`" for item in schema.fields]
    reason = "This view is written in the SQL of DuckDB, and may mean something else in Spark. Query it with DuckDB."
    return " ".join(("SELECT", ", ".join(columns) or "NULL AS nothing", f"FROM (SELECT raise_error('{reason}')", WHERE))


COMMENT = "comment"
SUMMARY: Mapping[str, str] = {"engine-name": "duckdb"}
METADATA_PATH = "write.metadata.path"


def is_unchanged(live: LiveView, note: ViewNote) -> bool:
    """Return True if DuckLake still has the text that was written for a client's view."""
    same = (note.view_id, note.sql, note.column_aliases) == (live.view_id, live.sql, live.column_aliases)
    return same and note.is_told


def parse_view_note(note: ViewNote) -> ViewMetadata:
    """Return the metadata of a note."""
    return parse_view(json.loads(note.metadata))


def with_comment(view: ViewMetadata, comment: str | None) -> ViewMetadata:
    """Return the view with DuckLake's comment as a property, so that COMMENT ON VIEW is visible over REST."""
    if view.properties.get(COMMENT) == comment:
        return view
    others = {key: value for key, value in view.properties.items() if key != COMMENT}
    return replace(view, properties=others if comment is None else {**others, COMMENT: comment})


def build_version(live: LiveView, schema: Schema) -> ViewVersion:
    """Return the view version of DuckDB's definition, with a text for Spark, because Spark reads any dialect as its own."""
    text = as_query(live.sql)
    spark = find_spark_text(text) or format_for_spark(schema)
    return ViewVersion(
        version_id=1,
        schema_id=LAST_ADDED,
        timestamp_ms=get_time_ms(live),
        summary=SUMMARY,
        representations=(SqlRepresentation(text, DUCKDB), SqlRepresentation(spark, SPARK)),
        default_namespace=to_levels(live.schema_name),
    )


def build_ducklake_view(live: LiveView, schema: Schema, location: str) -> ViewMetadata:
    """Return the metadata of a view that no Iceberg client has seen."""
    identity = NewIdentity(str(live.view_uuid), location, get_time_ms(live))
    return build_new_view(CreateView(live.view_name, schema, build_version(live, schema)), identity)


def update_from_ducklake(base: ViewMetadata, live: LiveView, schema: Schema) -> ViewMetadata:
    """Return the view with DuckDB's definition as its current version; other dialects are no longer current."""
    current, new = get_current_version(base), build_version(live, schema)
    known_schema = next(item for item in base.schemas if item.schema_id == current.schema_id)
    is_same = (current.representations, current.default_namespace) == (new.representations, new.default_namespace)
    if is_same and is_same_schema(known_schema, schema):
        return base
    now_ms = max(get_time_ms(live), _to_ms(live) if is_same else 0)
    updates = (AddSchema(schema), AddViewVersion(replace(new, timestamp_ms=now_ms)), SetCurrentViewVersion(LAST_ADDED))
    droppable = replace(base, properties={**base.properties, DROP_DIALECT: "true"})
    return replace(apply_view_updates(droppable, updates, now_ms), properties=base.properties)


def get_time_ms(live: LiveView) -> int:
    """Return the time at which DuckDB defined the view: that of its lake snapshot, or the head's once that has expired."""
    return int((live.begun_at or live.head_at).timestamp() * 1000)


def _to_ms(live: LiveView) -> int:
    return int(live.head_at.timestamp() * 1000)


def build_view_note(view_id: int, base: ViewNote | None, view: ViewMetadata, view_row: DuckLakeView, is_told: bool) -> ViewNote:
    """Return the note of a view's new metadata, one version above the last."""
    content = encode_view(view)
    version = 1 if base is None else base.metadata_version + 1
    digest = hashlib.sha256(content).hexdigest()[:32]
    location = metadata_location(view, version, digest)
    return ViewNote(view_id, version, location, content.decode(), view_row.sql, view_row.column_aliases, is_told)


def metadata_location(view: ViewMetadata, metadata_version: int, digest: str) -> str:
    """Return the location of a view's metadata file, named by the digest of its bytes, so that no two files share it."""
    return f"{metadata_folder(view)}/{metadata_version:05d}-{digest}.metadata.json"


def metadata_folder(view: ViewMetadata) -> str:
    """Return the folder of a view's metadata files, without trailing slash."""
    return view.properties.get(METADATA_PATH, f"{view.location}/metadata").rstrip("/")
