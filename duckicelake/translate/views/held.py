"""What DuckLake keeps of an Iceberg view: a query that DuckDB reads as the view means it, or one that says why not."""

from dataclasses import dataclass

from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.views.view_metadata import ViewMetadata, ViewVersion, current_version
from duckicelake.translate.to_ducklake.names import fold_name
from duckicelake.translate.views.names import Names, find_whole
from duckicelake.translate.views.parser import Parser
from duckicelake.translate.views.spark import DUCKDB, SPARK, find_translation
from duckicelake.translate.views.stand_ins import format_for_duckdb
from duckicelake.translate.views.types import quote

SPARK_COLUMNS = "spark.query-column-names"


@dataclass(frozen=True, slots=True)
class HeldView:
    """The text and the column names of a `ducklake_view`. `is_readable`: DuckDB can select from it."""

    sql: str
    column_aliases: str
    is_readable: bool = True


def hold_view(parser: Parser, view: ViewMetadata, catalog_name: str) -> HeldView:
    """Return what DuckLake keeps of a view's current version."""
    version = current_version(view)
    schema = next(item for item in view.schemas if item.schema_id == version.schema_id)
    is_own = version.default_catalog is None or fold_name(version.default_catalog) == fold_name(catalog_name)
    names = Names(version.default_namespace, catalog_name, is_own)
    text = _find_duckdb_text(version, _find_spark_columns(view, schema))
    whole = None if text is None else find_whole(parser, text, names)
    if whole is None or not _has_distinct_names(schema):
        dialects = [item.dialect for item in version.representations]
        return HeldView(format_for_duckdb(dialects, schema), "", is_readable=False)
    return HeldView(whole, ",".join(quote(item.name) for item in schema.fields))


def _find_duckdb_text(version: ViewVersion, spark_columns: tuple[str, ...] | None) -> str | None:
    by_dialect = {item.dialect.lower(): item.sql for item in version.representations}
    if DUCKDB in by_dialect:
        return by_dialect[DUCKDB]
    return find_translation(by_dialect[SPARK], spark_columns) if SPARK in by_dialect else None


def _find_spark_columns(view: ViewMetadata, schema: Schema) -> tuple[str, ...] | None:
    told = view.properties.get(SPARK_COLUMNS)
    names = () if told is None else tuple(told.split(","))
    return names if names and len(names) == len(schema.fields) else None


def _has_distinct_names(schema: Schema) -> bool:
    return len({fold_name(item.name) for item in schema.fields}) == len(schema.fields)
