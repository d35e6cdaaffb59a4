"""Texts that stand for a view where an engine cannot read it: its columns, and an error whatever is asked of them."""

from collections.abc import Iterable

from duckicelake.iceberg.schema import Schema
from duckicelake.translate.views.types import format_sql_type, quote

WHERE = "AS reason) AS stand_in WHERE (reason IS NULL)"


def format_for_duckdb(dialects: Iterable[str], schema: Schema) -> str:
    """Return the text of a view that has none for DuckDB."""
    told = (
        f"This view has no SQL that DuckDB can read as it is meant; its dialects: {', '.join(dialects)}. Query it with an engine of those."
    )
    reason = told.replace("'", "''").replace("{", "(").replace("\0", "")
    columns = [f"CAST(NULL AS {format_sql_type(item.type)}) AS {quote(item.name)}" for item in schema.fields]
    return " ".join(("SELECT", ", ".join(columns) or "NULL AS nothing", f"FROM (SELECT error('{reason}')", WHERE))


def format_for_spark(schema: Schema) -> str:
    """Return the text of a DuckDB view that may mean something else in Spark, which would read DuckDB's as its own."""
    columns = ["NULL AS `" + item.name.replace("`", "``") + "`" for item in schema.fields]
    reason = "This view is written in the SQL of DuckDB, and may mean something else in Spark. Query it with DuckDB."
    return " ".join(("SELECT", ", ".join(columns) or "NULL AS nothing", f"FROM (SELECT raise_error('{reason}')", WHERE))
