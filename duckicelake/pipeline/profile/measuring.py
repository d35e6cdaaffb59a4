"""Statistics that Spark computes (Iceberg's procedures and one scan), and sums over a table's live files that Postgres computes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.rows import class_row, scalar_row
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from duckicelake.iceberg.types import NestedField
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.common.spark_sql import quote, quote_ident, quote_text
from duckicelake.pipeline.profile.statistics import MeasuredTable

SHOWN_LETTERS = 64
"""How much of the least and the greatest value of a column is shown."""
_CUT = "…"


@dataclass(frozen=True, slots=True)
class Extremes:
    """Nulls, least and greatest value of one column; the least and the greatest value as text, None where there is no value."""

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
    """Return nulls, least and greatest value of each column at the snapshot, by field id, in one scan. Raises: what Spark raises"""
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


Row = TypeVar("Row")

# A size of n bits lies between 2^(n-1) and 2^n: exact, where a logarithm is not.
SELECT_SIZES = """
SELECT greatest(length(ltrim(file_size_bytes::bit(64)::text, '0')) - 1, 0) AS power, count(*)::bigint AS files,
       sum(file_size_bytes)::bigint AS bytes, sum(record_count)::bigint AS records
  FROM ducklake_data_file
 WHERE table_id = %(table_id)s AND begin_snapshot <= %(at)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s)
 GROUP BY power ORDER BY power
"""

# For a snapshot of a branch, the lake snapshot that set main to it has the rows, not that of its own number.
SELECT_LAKE_SNAPSHOT = """
SELECT coalesce(max(lake_snapshot_id), %(snapshot_id)s)::bigint FROM iceberg_move
 WHERE table_id = %(table_id)s AND snapshot_id = %(snapshot_id)s
"""

SELECT_COLUMNS = """
SELECT s.column_id, coalesce(sum(s.column_size_bytes), 0)::bigint AS bytes, count(s.column_size_bytes)::bigint AS sized_files,
       coalesce(sum(s.null_count), 0)::bigint AS nulls, count(s.null_count)::bigint AS files
  FROM ducklake_data_file f JOIN ducklake_file_column_stats s ON s.data_file_id = f.data_file_id AND s.table_id = f.table_id
 WHERE f.table_id = %(table_id)s AND f.begin_snapshot <= %(at)s AND (f.end_snapshot IS NULL OR f.end_snapshot > %(at)s)
 GROUP BY s.column_id
"""


@dataclass(frozen=True, slots=True)
class SizeClass:
    """The data files of 2^power bytes and more, below twice that."""

    power: int
    files: int
    bytes: int
    records: int


@dataclass(frozen=True, slots=True)
class ColumnSums:
    """Sums over the data files for one column; `files` is how many of them count its null values, `sized_files` its bytes."""

    column_id: int
    bytes: int
    sized_files: int
    nulls: int
    files: int


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The data files of a table at one lake snapshot: deletes and inlined rows are not among them."""

    sizes: tuple[SizeClass, ...] = ()
    columns: Mapping[int, ColumnSums] = field(default_factory=dict[int, ColumnSums])

    @property
    def files(self) -> int:
        return sum(one.files for one in self.sizes)

    @property
    def records(self) -> int:
        return sum(one.records for one in self.sizes)


def read_files(conn: psycopg.Connection, table_id: int, snapshot_id: int) -> FileFacts:
    """Return what the files that a snapshot of main has are like."""
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        with conn.cursor(row_factory=scalar_row) as cursor:
            [at] = cursor.execute(SELECT_LAKE_SNAPSHOT, {"table_id": table_id, "snapshot_id": snapshot_id}).fetchall()
        asked = {"table_id": table_id, "at": at}
        sizes = _ask(conn, SizeClass, SELECT_SIZES, asked)
        columns = _ask(conn, ColumnSums, SELECT_COLUMNS, asked)
    return FileFacts(tuple(sizes), {one.column_id: one for one in columns})


def _ask(conn: psycopg.Connection, row: type[Row], query: LiteralString, asked: Mapping[str, int]) -> list[Row]:
    with conn.cursor(row_factory=class_row(row)) as cursor:
        return cursor.execute(query, asked).fetchall()
