"""Inlined rows as the catalog will read them: by psycopg, columns by their place."""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from duckdb import DuckDBPyConnection
from psycopg import Connection, sql

from duckicelake.store.derived_files import DerivedFile, InlinedColumn, convert_rows, encode_inlined, split_by_snapshot

# The newest inlined table of a table; columns of the table as they are now.
INLINED_TABLE = """
SELECT i.table_id, i.table_name FROM ducklake_inlined_data_tables i JOIN ducklake_table t USING (table_id)
WHERE t.table_name = %s AND t.end_snapshot IS NULL ORDER BY i.schema_version DESC LIMIT 1"""
COLUMNS = """
SELECT column_id, column_name, column_type, parent_column FROM ducklake_column
WHERE table_id = %s AND end_snapshot IS NULL ORDER BY parent_column NULLS FIRST, column_order"""
STORED_COLUMNS = """
SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum"""
AS_TEXT = ("time without time zone", "time with time zone")


def read_inlined(conn: Connection, table_name: str) -> tuple[tuple[InlinedColumn, ...], list[tuple[Any, ...]]]:
    """The columns of a table and its inlined rows, as (row_id, begin_snapshot, values …)."""
    found = conn.execute(INLINED_TABLE, [table_name]).fetchone()
    assert found is not None
    table_id, inlined_table = found
    rows = conn.execute(COLUMNS, [table_id]).fetchall()
    stored = conn.execute(STORED_COLUMNS, [inlined_table]).fetchall()
    picked = [sql.SQL("{}::text" if kind in AS_TEXT else "{}").format(sql.Identifier(name)) for name, kind in [*stored[:2], *stored[3:]]]
    query = sql.SQL("SELECT {} FROM {} ORDER BY row_id").format(sql.SQL(", ").join(picked), sql.Identifier(inlined_table))
    return _find_children(rows, None), conn.execute(query).fetchall()


def _find_children(rows: list[tuple[Any, ...]], parent: int | None) -> tuple[InlinedColumn, ...]:
    return tuple(InlinedColumn(row[0], row[1], row[2], _find_children(rows, row[0])) for row in rows if row[3] == parent)


@dataclass(frozen=True)
class InlinedTable:
    """A table of a lake that a file's tests share; DuckDB writes it, psycopg reads it."""

    name: str
    duckdb: DuckDBPyConnection
    psycopg: Connection

    def run(self, statements: str) -> None:
        """Run SQL in which `{t}` is the table."""
        self.duckdb.execute(statements.replace("{t}", self.name))

    def fetch(self, query: str) -> list[Any]:
        """Rows of a query in which `{t}` is the table."""
        return self.duckdb.execute(query.replace("{t}", self.name)).fetchall()

    def rows(self) -> list[tuple[Any, ...]]:
        """The inlined rows, as (row_id, begin_snapshot, values …)."""
        return read_inlined(self.psycopg, self.name)[1]

    def read(self) -> tuple[tuple[InlinedColumn, ...], pa.Table]:
        """The columns, and the inlined rows converted."""
        columns, rows = read_inlined(self.psycopg, self.name)
        return columns, convert_rows(columns, rows)

    def read_files(self) -> dict[int, DerivedFile]:
        """The derived files by lake snapshot."""
        columns, table = self.read()
        return {snapshot_id: encode_inlined(columns, part) for snapshot_id, part in split_by_snapshot(table)}
