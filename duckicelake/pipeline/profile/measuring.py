"""The measures of a table: its metadata at a snapshot, statistics that Spark computes, and sums over its files that Postgres computes.

Spark computes by Iceberg's procedures and one scan; reading the metadata is pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.rows import class_row, scalar_row
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from duckicelake.iceberg.schema import Schema, parse_schema
from duckicelake.iceberg.types import NestedField, PrimitiveType
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.common.spark_sql import quote, quote_ident, quote_text

SKETCH = "apache-datasketches-theta-v1"
POINTS = 300
"""As many snapshots as a line can show."""
_UNSKETCHED = ".`"
"""Iceberg's procedure takes these letters in a column's name for SQL."""


@dataclass(frozen=True, slots=True)
class Point:
    """A table at one of its snapshots."""

    at_ms: int
    snapshot_id: int
    rows: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """A table's metadata, read for what a profile needs of it at one snapshot."""

    metadata: Mapping[str, Any]
    snapshot: Mapping[str, Any]

    @property
    def snapshot_id(self) -> int:
        return self.snapshot["snapshot-id"]

    @property
    def schema(self) -> Schema:
        """The columns that the snapshot is read with."""
        wanted = self.snapshot.get("schema-id", self.metadata["current-schema-id"])
        return parse_schema(next(one for one in self.metadata["schemas"] if one["schema-id"] == wanted))

    @property
    def is_partitioned(self) -> bool:
        spec = next(one for one in self.metadata["partition-specs"] if one["spec-id"] == self.metadata["default-spec-id"])
        return any(item["transform"] != "void" for item in spec["fields"])

    @property
    def has_partition_statistics(self) -> bool:
        return any(one["snapshot-id"] == self.snapshot_id for one in self.metadata.get("partition-statistics", ()))

    @property
    def statistics_path(self) -> str:
        """Return where the statistics file of the snapshot is; empty when there is none."""
        return next((one["statistics-path"] for one in self._list_statistics()), "")

    @property
    def total(self) -> Point:
        """Return how big the table is."""
        return _measure(self.snapshot)

    @property
    def delete_files(self) -> int:
        return _count(self.snapshot, "total-delete-files")

    def list_columns(self) -> list[NestedField]:
        """Return the columns that have values to count: no structs, lists and maps."""
        return [item for item in self.schema.fields if isinstance(item.type, PrimitiveType)]

    def list_sketched(self) -> list[str]:
        """Return the names of the columns that get a sketch."""
        return [item.name for item in self.list_columns() if not set(_UNSKETCHED) & set(item.name)]

    def read_distinct(self) -> dict[int, int]:
        """Return the number of distinct values by field id, as the sketches of the snapshot estimate it."""
        blobs = [blob for one in self._list_statistics() for blob in one["blob-metadata"] if blob["type"] == SKETCH]
        told = [(blob["fields"], blob.get("properties", {}).get("ndv", "")) for blob in blobs]
        return {fields[0]: int(text) for fields, text in told if len(fields) == 1 and text.isdecimal()}

    def has_sketches(self) -> bool:
        """Return True if every column that can have a sketch has one, of this snapshot."""
        known, wanted = self.read_distinct(), set(self.list_sketched())
        return all(item.field_id in known for item in self.list_columns() if item.name in wanted)

    def list_growth(self) -> tuple[Point, ...]:
        """Return how big the table was at the snapshots of main, oldest first; of very many, some."""
        return thin(tuple(replace(_measure(one), at_ms=at_ms) for at_ms, one in self._list_main()))

    def _list_main(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the snapshots that main was at, each with when it came there: to an older one again, when it was rolled back."""
        by_id = {one["snapshot-id"]: one for one in self.metadata.get("snapshots", ())}
        for entry in self.metadata.get("snapshot-log", ()):
            found = by_id.get(entry["snapshot-id"])
            if found is not None and "total-records" in found.get("summary", {}):
                yield entry["timestamp-ms"], found

    def _list_statistics(self) -> Iterator[Mapping[str, Any]]:
        return (one for one in self.metadata.get("statistics", ()) if one["snapshot-id"] == self.snapshot_id)


def find_state(metadata: Mapping[str, Any], snapshot_id: int | None = None) -> MeasuredTable | None:
    """Return the table at a snapshot, else at its current one; None when it has none such, as a table to which nothing was ever written."""
    wanted = snapshot_id or metadata.get("current-snapshot-id")
    snapshot = next((one for one in metadata.get("snapshots", ()) if one["snapshot-id"] == wanted), None)
    return None if snapshot is None else MeasuredTable(metadata, snapshot)


def thin(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """Return at most POINTS of them, evenly chosen; the first and the last stay."""
    if len(points) <= POINTS:
        return points
    return tuple(points[number * (len(points) - 1) // (POINTS - 1)] for number in range(POINTS))


def _measure(snapshot: Mapping[str, Any]) -> Point:
    rows = _count(snapshot, "total-records") - _count(snapshot, "total-position-deletes")
    sizes = _count(snapshot, "total-data-files"), _count(snapshot, "total-files-size")
    return Point(snapshot["timestamp-ms"], snapshot["snapshot-id"], rows, *sizes)


def _count(snapshot: Mapping[str, Any], name: str) -> int:
    return int(snapshot.get("summary", {}).get(name, "0"))


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
