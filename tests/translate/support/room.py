"""A lake that DuckDB writes, and what the server reads of it."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from duckdb import DuckDBPyConnection
from psycopg import Connection

from duckicelake.lake.read import find_table
from duckicelake.lake.read_files import read_data_files
from duckicelake.lake.read_table import LastRead, read_table
from duckicelake.lake.rows import DataFileRow, TableState
from duckicelake.translate.locations import file_uri, table_folder
from tests.support.lakes import FreshLake

EVERYTHING = LastRead()


@dataclass(frozen=True, slots=True)
class Room:
    """A DuckDB session and a Postgres connection on one local lake."""

    lake: FreshLake
    duckdb: DuckDBPyConnection
    postgres: Connection
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def name(self) -> str:
        """A table name nobody has used."""
        return f"t{next(self.numbers)}"

    def run(self, *statements: str) -> None:
        """Have DuckDB run them."""
        for statement in statements:
            self.duckdb.execute(statement)

    def flush(self, name: str) -> None:
        """Have DuckDB write a table's inlined rows to files. Of all tables DuckDB 1.5.5 fails at times, when many were altered."""
        self.run(f"CALL ducklake_flush_inlined_data('lake', table_name => '{name}')")

    def read(self, name: str, since: LastRead = EVERYTHING) -> TableState:
        """The state of a table of the main schema."""
        with self.postgres.transaction():
            table = find_table(self.postgres, "main", name)
            assert table is not None
            return read_table(self.postgres, table, since)

    def files(self, state: TableState) -> list[DataFileRow]:
        """The details of all data files of a state, in order of appearance."""
        ids = [span.data_file_id for span in state.spans]
        return sorted(read_data_files(self.postgres, ids), key=lambda row: ids.index(row.data_file_id))


def read_file(state: TableState, row: DataFileRow) -> pa.Table:
    """The rows of a data file of a local lake, as they lie there."""
    uri = file_uri(table_folder(state.data_path, state.table), row.path, row.path_is_relative)
    return pq.ParquetFile(uri.removeprefix("file://")).read()


def to_iceberg_values(column: pa.ChunkedArray) -> list[object]:
    """The values of a column as Iceberg values."""
    kind = column.type
    if isinstance(kind, pa.UuidType):
        return [None if value is None else value.bytes for value in column.to_pylist()]
    if pa.types.is_date32(kind):
        return column.cast(pa.int32()).to_pylist()
    if pa.types.is_time64(kind):
        return column.cast(pa.int64()).to_pylist()
    if pa.types.is_timestamp(kind):
        factor = {"s": 1_000_000, "ms": 1000, "us": 1}[kind.unit]
        return [None if number is None else number * factor for number in column.cast(pa.int64()).to_pylist()]
    return column.to_pylist()
