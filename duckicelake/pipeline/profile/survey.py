"""What DuckLake's rows say of a table's live files at one lake snapshot: sums that Postgres makes, so nothing grows with the files."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import LiteralString, TypeVar

import psycopg
from psycopg.rows import class_row, scalar_row

Row = TypeVar("Row")

# A size of n bits lies between 2^(n-1) and 2^n: exact, where a logarithm is not.
SELECT_SIZES = """
SELECT greatest(length(ltrim(file_size_bytes::bit(64)::text, '0')) - 1, 0) AS power, count(*)::bigint AS files,
       sum(file_size_bytes)::bigint AS bytes, sum(record_count)::bigint AS records
  FROM ducklake_data_file
 WHERE table_id = %(table_id)s AND begin_snapshot <= %(at)s AND (end_snapshot IS NULL OR end_snapshot > %(at)s)
 GROUP BY power ORDER BY power
"""

# Of a snapshot that was made beside main the lake snapshot has the rows that moved main there, not that of its own number.
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
    """What is told of one column in the data files; `files` is how many of them tell its null values, `sized_files` its bytes."""

    column_id: int
    bytes: int
    sized_files: int
    nulls: int
    files: int


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The data files of a table at one lake snapshot: deletes and inlined rows are beside them."""

    sizes: tuple[SizeClass, ...] = ()
    columns: Mapping[int, ColumnSums] = field(default_factory=dict[int, ColumnSums])

    @property
    def files(self) -> int:
        return sum(one.files for one in self.sizes)

    @property
    def records(self) -> int:
        return sum(one.records for one in self.sizes)


def read_files(conn: psycopg.Connection, table_id: int, snapshot_id: int) -> FileFacts:
    """What the files that a snapshot of main has are like."""
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
