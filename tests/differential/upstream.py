"""A lake that a DuckDB session fills by itself, and what is published of it."""

from typing import Any

import duckdb

from tests.support.readers import Ident, Served

T: Ident = ("main", "t")


def run(served: Served, *statements: str) -> duckdb.DuckDBPyConnection:
    """A session on the lake, after these statements."""
    conn = served.lake.duckdb()
    for statement in statements:
        conn.execute(statement)
    return conn


def published(served: Served, column: str) -> list[Any]:
    """A column as DuckDB's iceberg extension reads it, which must be as PyIceberg does."""
    rows = served.duckdb_iceberg().read(T)[column].to_pylist()
    assert sorted(served.pyiceberg().read(T)[column].to_pylist(), key=repr) == sorted(rows, key=repr)
    return rows
