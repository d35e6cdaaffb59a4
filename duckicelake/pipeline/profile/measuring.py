"""What Spark does: sketches of every column by Iceberg's own procedure, and one scan for what only the rows tell."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from duckicelake.iceberg.types import NestedField
from duckicelake.pipeline.ingest.target import quote, quote_ident, quote_text
from duckicelake.pipeline.profile.state import MeasuredTable
from duckicelake.pipeline.rest import TableIdent

SHOWN_LETTERS = 64
"""How much of the least and the greatest value of a column is shown."""
_CUT = "…"


@dataclass(frozen=True, slots=True)
class Extremes:
    """What the rows tell of one column; the least and the greatest value as text, None where there is no value."""

    nulls: int
    minimum: str | None
    maximum: str | None


def compute_statistics(spark: SparkSession, catalog: str, ident: TableIdent, state: MeasuredTable) -> str:
    """Have a file with sketches of the snapshot written and registered; returns where it is.

    Raises: what Spark raises
    """
    columns = ", ".join(quote_text(name) for name in state.list_sketched())
    where = f"snapshot_id => {state.snapshot_id}, columns => array({columns})"
    rows: list[Any] = spark.sql(_format_call(catalog, "compute_table_stats", ident, where)).collect()
    return rows[0]["statistics_file"] if rows else ""


def compute_partition_statistics(spark: SparkSession, catalog: str, ident: TableIdent, state: MeasuredTable) -> None:
    """Have the files and rows of each partition of the snapshot counted and registered. Raises: what Spark raises"""
    spark.sql(_format_call(catalog, "compute_partition_stats", ident, f"snapshot_id => {state.snapshot_id}")).collect()


def _format_call(catalog: str, procedure: str, ident: TableIdent, arguments: str) -> str:
    # Without the catalog, a namespace of a catalog's name would be taken for that one.
    table = quote_text(quote_ident(catalog, ident))
    return f"CALL {quote(catalog)}.system.{procedure}(table => {table}, {arguments})"


def read_extremes(spark: SparkSession, name: str, state: MeasuredTable) -> dict[int, Extremes]:
    """Nulls, least and greatest value of each column at the snapshot, by field id, in one scan. Raises: what Spark raises"""
    columns = state.list_columns()
    rows = spark.read.option("versionAsOf", state.snapshot_id).table(name)
    found: Any = rows.agg(*_list_aggregates(columns)).first()
    return {item.field_id: Extremes(*found[3 * place : 3 * place + 3]) for place, item in enumerate(columns)}


def _list_aggregates(columns: Sequence[NestedField]) -> list[Column]:
    aggregates: list[Column] = []
    for place, item in enumerate(columns):
        column = F.col(quote(item.name))
        ends = [_show(end(column), item).alias(f"{name}{place}") for name, end in (("min", F.min), ("max", F.max))]
        aggregates += [F.count_if(column.isNull()).alias(f"nulls{place}"), *ends]
    return aggregates


def _show(value: Column, item: NestedField) -> Column:
    is_binary = str(item.type).startswith(("binary", "fixed"))
    text = F.hex(F.substring(value, 1, SHOWN_LETTERS)) if is_binary else value.cast("string")
    is_long = F.length(value if is_binary else text) > SHOWN_LETTERS
    return F.when(is_long, F.concat(F.substring(text, 1, SHOWN_LETTERS), F.lit(_CUT))).otherwise(text)
