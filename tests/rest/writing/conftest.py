"""A DuckDB session beside the requests."""

import pytest
from duckdb import DuckDBPyConnection

from tests.support.lakes import FreshLake


@pytest.fixture
def duck(lake: FreshLake) -> DuckDBPyConnection:
    """A DuckDB session in the lake, with the table `t`."""
    session = lake.duckdb()
    session.execute("CREATE TABLE t AS SELECT 1 AS a, 'x' AS b")
    return session
