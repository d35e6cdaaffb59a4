"""A lake that the tests of a file share, and a table of it for each test."""

import secrets
from collections.abc import Iterator

import pytest
from duckdb import DuckDBPyConnection
from psycopg import Connection

from tests.store.lake_rows import InlinedTable
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack


@pytest.fixture(scope="module")
def shared_lake(stack: SharedStack) -> Iterator[FreshLake]:
    """One lake for all tables of this file."""
    with make_lake(stack) as lake:
        yield lake


@pytest.fixture(scope="module")
def connections(shared_lake: FreshLake) -> tuple[DuckDBPyConnection, Connection]:
    """A session of each kind on the lake."""
    return shared_lake.duckdb(), shared_lake.psycopg()


@pytest.fixture
def table(connections: tuple[DuckDBPyConnection, Connection]) -> InlinedTable:
    """A table nobody else uses, not created yet."""
    return InlinedTable(f"t{secrets.token_hex(4)}", *connections)
