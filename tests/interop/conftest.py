"""The rich lake, made once for each test process, and the clients that read it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.rich_lake import EVERYTHING, TRIPS, RichLake, fill_lake
from tests.rest.serving import make_settings, serve
from tests.support.lakes import make_lake
from tests.support.readers import DuckDBIcebergReader, PyIcebergReader, Served, SparkReader
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark


@pytest.fixture(scope="session")
def rich(stack: SharedStack) -> Iterator[RichLake]:
    """The rich lake behind a running server. Tests only read it."""
    with make_lake(stack) as lake:
        truth = fill_lake(lake, EVERYTHING)
        with serve(make_settings(lake)) as server:
            yield RichLake(Served(lake, server), truth)


@pytest.fixture(scope="session")
def pyiceberg(rich: RichLake) -> Iterator[PyIcebergReader]:
    """PyIceberg on the rich lake."""
    reader = rich.served.pyiceberg()
    yield reader
    reader.catalog.close()


@pytest.fixture(scope="session")
def duckdb_iceberg(rich: RichLake) -> DuckDBIcebergReader:
    """DuckDB's iceberg extension on the rich lake, attached as `ice`."""
    reader = rich.served.duckdb_iceberg()
    reader.conn.execute("SET TimeZone = 'UTC'")
    return reader


@pytest.fixture(scope="session")
def spark_reader(rich: RichLake, spark: Spark) -> SparkReader:
    """Spark on the rich lake."""
    return rich.served.spark(spark)


@pytest.fixture
def local(stack: SharedStack, tmp_path: Path) -> Iterator[RichLake]:
    """A served lake whose files lie in a local folder, with the table `trips`."""
    with make_lake(stack, str(tmp_path)) as lake, serve(make_settings(lake)) as server:
        yield RichLake(Served(lake, server), fill_lake(lake, TRIPS))
