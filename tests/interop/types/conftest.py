"""The lake with a table for each type, made once for each test process, and the clients that read it."""

from collections.abc import Iterator

import pytest

from tests.interop.rich_lake import RichLake, fill_lake
from tests.interop.types.tables import list_statements
from tests.rest.serving import make_settings, serve
from tests.support.lakes import make_lake
from tests.support.readers import DuckDBIcebergReader, PyIcebergReader, Served, SparkReader
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark


@pytest.fixture(scope="module")
def typed(stack: SharedStack) -> Iterator[RichLake]:
    """The lake behind a running server. Tests only read it."""
    with make_lake(stack) as lake:
        truth = fill_lake(lake, list_statements())
        with serve(make_settings(lake)) as server:
            yield RichLake(Served(lake, server), truth)


@pytest.fixture(scope="module")
def typed_pyiceberg(typed: RichLake) -> PyIcebergReader:
    """PyIceberg on it."""
    return typed.served.pyiceberg()


@pytest.fixture(scope="module")
def typed_duckdb(typed: RichLake) -> DuckDBIcebergReader:
    """DuckDB's iceberg extension on it, attached as `ice`."""
    reader = typed.served.duckdb_iceberg()
    reader.conn.execute("SET TimeZone = 'UTC'")
    return reader


@pytest.fixture(scope="module")
def typed_spark(typed: RichLake, spark: Spark) -> SparkReader:
    """Spark on it."""
    return typed.served.spark(spark)
