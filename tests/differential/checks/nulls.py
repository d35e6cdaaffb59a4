"""Readers find the NULLs of NOT NULL columns by IS NULL and count the other rows; they rely on `required` there."""

from collections.abc import Sequence

from pyiceberg.expressions import IsNull, NotNull

from tests.differential.generator.kinds import Column, Scalar, quote
from tests.differential.generator.model import Table
from tests.support.readers import DuckDBIcebergReader, DuckLakeReader, PyIcebergReader, Reader, SparkReader

UNFILTERED = ("float32", "float64", "uuid")
"""Scalar types by whose NULLs PyIceberg does not filter rightly."""

_MOST = 2
"""Columns of a table, which is asked once or twice for each."""


def check_nulls(table: Table, reader: Reader) -> None:
    """Fail unless a reader counts the NULLs and the values of NOT NULL columns as the model has them, those with NULLs first."""
    columns = [column for column in table.columns[1:] if column.required and _can_filter(reader, table, column)]
    columns.sort(key=lambda column: (not table.holds_null(column.column_id), column.column_id))
    for column in columns[:_MOST]:
        values = [row.values.get(column.column_id, column.initial) for row in table.rows]
        nulls = sum(value is None for value in values)
        expected = (nulls, len(values) - nulls, len(values) - nulls)
        counted = count_nulls(table, reader, column)
        where = f"{reader.name}, {table.ident}, column {column.name}"
        assert counted == expected, f"{where}: IS NULL, IS NOT NULL and count say {counted}, not {expected}"


def _can_filter(reader: Reader, table: Table, column: Column) -> bool:
    """Return True if a reader finds NULLs by a filter.

    PyIceberg 0.12 filters by no nested column, takes a dot in a name for a path, and NaN for NULL; pyarrow 26 compares no UUIDs with
    a file's statistics, and fails. Of DuckDB see `Table.lacking`.
    """
    if isinstance(reader, PyIcebergReader):
        return isinstance(column.kind, Scalar) and "." not in column.name and column.kind.name not in UNFILTERED
    return not isinstance(reader, DuckLakeReader) or column.column_id not in table.lacking


def count_nulls(table: Table, reader: Reader, column: Column) -> tuple[int, ...]:
    """Return how many rows a reader finds by IS NULL and by IS NOT NULL, and how many values it counts."""
    match reader:
        case PyIcebergReader():
            published = reader.catalog.load_table(table.ident)
            found = [len(published.scan(row_filter=kind(column.name)).to_arrow()) for kind in (IsNull, NotNull)]
            return (*found, len(values := published.scan().to_arrow()[column.name]) - values.null_count)
        case SparkReader():
            name = column.name.replace("`", "``")
            queries = _list_queries(reader.sql_name(table.ident), f"`{name}`")
            return tuple(reader.spark.arrow(query).column(0)[0].as_py() for query in queries)
        case DuckLakeReader() | DuckDBIcebergReader():
            catalog = "lake" if isinstance(reader, DuckLakeReader) else "ice"
            queries = _list_queries(f"{catalog}.{table.sql_name}", quote(column.name))
            return tuple(reader.conn.execute(query).fetchall()[0][0] for query in queries)
        case _:
            raise AssertionError(f"no counts by {reader.name}")


def _list_queries(name: str, column: str) -> Sequence[str]:
    return (
        f"SELECT count(*) FROM {name} WHERE {column} IS NULL",
        f"SELECT count(*) FROM {name} WHERE {column} IS NOT NULL",
        f"SELECT count({column}) FROM {name}",
    )
